"""`last` is the newest whole checkpoint: whatever a kill, a full disk or a copy left half done is passed over."""

import json

import pytest

from taspo_trl.checkpoints import (
    checkpoint_to_resume,
    checkpoints_of,
    fault_of,
    last_checkpoint,
    step_of,
    weights_digest,
)
from taspo_trl.errors import ConfigurationError
from tests.checkpoints import put_checkpoint


def cut(path, share=0.5):
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])


NAMES = ["model.safetensors", "optimizer.pt", "rng_state.pth", "trainer_state.json"]


def test_other_weights_have_another_name_wherever_they_lie(tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(bytes(5_000_000))
    with open(tmp_path / "c" / "model.safetensors", "r+b") as file:
        file.seek(2_500_000)
        file.write(b"x")
    a, b, c = (weights_digest(tmp_path / name) for name in ("a", "b", "c"))
    assert a == b != c and weights_digest(tmp_path) is None and weights_digest("org/model") is None


def test_whole_checkpoint_has_no_fault(tmp_path):
    assert fault_of(put_checkpoint(tmp_path, 3)) == ""
    assert fault_of(put_checkpoint(tmp_path, 4, model_only=True)) == ""
    assert step_of(tmp_path / "checkpoint-3") == 3
    assert [one.name for one in checkpoints_of(tmp_path)] == ["checkpoint-4", "checkpoint-3"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("share", [0.0, 0.03, 0.5, 0.99])
def test_file_that_ends_early_is_found_by_name(tmp_path, name, share):
    path = put_checkpoint(tmp_path, 3)
    cut(path / name, share)
    assert fault_of(path) == f"{name} is cut off"


@pytest.mark.parametrize("name", ["model.safetensors", "trainer_state.json"])
def test_file_that_never_came_is_found(tmp_path, name):
    path = put_checkpoint(tmp_path, 3)
    (path / name).unlink()
    assert fault_of(path) in ("it holds no weights", "trainer_state.json is missing")


def test_missing_and_torn_shards_are_found(tmp_path):
    path = put_checkpoint(tmp_path, 3)
    (path / "model.safetensors").rename(path / "model-00001-of-00002.safetensors")
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert fault_of(path) == "model-00002-of-00002.safetensors is missing"
    cut(path / "model.safetensors.index.json")
    assert fault_of(path) == "model.safetensors.index.json is cut off"


def test_last_is_the_newest_whole_one_and_the_torn_ones_are_named(tmp_path, caplog):
    for step in (2, 10, 11, 12):
        put_checkpoint(tmp_path, step)
    (tmp_path / "checkpoint-11" / "trainer_state.json").unlink()
    cut(tmp_path / "checkpoint-12" / "model.safetensors")
    (tmp_path / "checkpoint-13").write_text("no folder")
    assert last_checkpoint(tmp_path) == tmp_path / "checkpoint-10"
    text = caplog.text
    assert "checkpoint-12 is torn: model.safetensors is cut off. The last whole checkpoint is" in text
    assert "checkpoint-11 is torn: trainer_state.json is missing" in text
    assert {checkpoint_to_resume(word, tmp_path) for word in (True, "true", "last", "LAST")} == {
        str(tmp_path / "checkpoint-10")
    }


def test_torn_checkpoint_is_refused_by_name_with_the_whole_one(tmp_path):
    put_checkpoint(tmp_path, 2)
    cut(put_checkpoint(tmp_path, 3) / "optimizer.pt")
    with pytest.raises(
        ConfigurationError, match=r"checkpoint-3 is torn .*optimizer\.pt is cut off\. `last` means .*-2"
    ):
        checkpoint_to_resume(str(tmp_path / "checkpoint-3"), tmp_path)


def test_no_whole_checkpoint_is_no_checkpoint(tmp_path):
    assert last_checkpoint(tmp_path / "none") is None and last_checkpoint(tmp_path) is None
    cut(put_checkpoint(tmp_path, 3) / "trainer_state.json")
    assert last_checkpoint(tmp_path) is None
    with pytest.raises(ConfigurationError, match="no checkpoint in"):
        checkpoint_to_resume("last", tmp_path)


def test_model_without_its_optimizer_cannot_be_resumed(tmp_path):
    put_checkpoint(tmp_path, 2)
    only = put_checkpoint(tmp_path, 3, model_only=True)
    for value in ("last", str(only)):
        with pytest.raises(ConfigurationError, match=r"save_only_model.*Resume from .*checkpoint-2"):
            checkpoint_to_resume(value, tmp_path)


def test_nothing_is_resumed_unless_asked_for(tmp_path):
    put_checkpoint(tmp_path, 2)
    assert [checkpoint_to_resume(value, tmp_path) for value in (None, False, "false", "none")] == [None] * 4
