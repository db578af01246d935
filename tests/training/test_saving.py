"""A checkpoint is in its place or it is not; the one before it stays until then."""

import errno
import os
import shutil
import types

import pytest
import torch

from taspo_trl.checkpoints import last_checkpoint
from taspo_trl.errors import CheckpointError
from taspo_trl.training import saving
from taspo_trl.training.saving import CheckpointWriter, mend, model_draft, put_in_place, rotate
from tests.checkpoints import put_checkpoint


def writer(**values):
    accelerator = types.SimpleNamespace(
        is_main_process=True,
        is_local_main_process=True,
        num_processes=1,
        device="cpu",
        wait_for_everyone=lambda: None,
        reduce=lambda value, reduction: value,
    )
    return CheckpointWriter(types.SimpleNamespace(should_save=True, save_total_limit=None, **values), accelerator)


class State(types.SimpleNamespace):
    def save_to_json(self, path):
        with open(path, "w") as file:
            file.write(f'{{"global_step": {self.global_step}, "best": "{self.best_model_checkpoint}"}}')


def state(step, best=None):
    return State(global_step=step, best_global_step=best, best_model_checkpoint=None)


def write(folder, made, step, **values):
    with made.writing(str(folder), state(step, **values), torch.nn.Linear(2, 2)):
        put_checkpoint(folder / "_saving", step)


def test_checkpoint_has_its_name_only_when_it_is_whole(tmp_path):
    made = writer()
    with made.writing(str(tmp_path), state(3), torch.nn.Linear(2, 2)) as place:
        assert made.folder(str(tmp_path)) == str(tmp_path / "_saving")
        put_checkpoint(tmp_path / "_saving", 3)
        assert not place.exists()
    assert place == tmp_path / "checkpoint-3" == last_checkpoint(tmp_path)
    assert made.folder(str(tmp_path)) == str(tmp_path)
    assert os.listdir(tmp_path) == ["checkpoint-3"]


def test_all_is_flushed_before_the_rename(tmp_path, monkeypatch):
    order = []
    monkeypatch.setattr(saving, "flush_folder", lambda folder: order.append("flush"))
    rename = os.rename
    monkeypatch.setattr(saving.os, "rename", lambda *names: (order.append("rename"), rename(*names))[1])
    write(tmp_path, writer(), 3)
    assert order == ["flush", "rename"]


def test_best_checkpoint_is_named_by_its_place(tmp_path):
    made = writer()
    write(tmp_path, made, 3, best=3)
    assert f'"best": "{tmp_path}/checkpoint-3"' in (tmp_path / "checkpoint-3" / "trainer_state.json").read_text()
    write(tmp_path, made, 4, best=3)
    assert f'"best": "{tmp_path}/checkpoint-3"' in (tmp_path / "checkpoint-4" / "trainer_state.json").read_text()
    write(tmp_path, made, 5, best=2)
    assert '"best": "None"' in (tmp_path / "checkpoint-5" / "trainer_state.json").read_text(), "it was never saved"


DISK = {
    "system": OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
    "torch": RuntimeError(
        "[enforce fail at inline_container.cc:858] . PytorchStreamWriter failed writing file data/1"
    ),
    "safetensors": type("SafetensorError", (Exception,), {})(
        "Error while serializing: I/O error: No space (os error 28)"
    ),
}


@pytest.mark.parametrize("kind", DISK)
def test_full_disk_is_one_line_with_path_and_remedy_and_the_last_good_one_stays(tmp_path, kind):
    made = writer()
    write(tmp_path, made, 3)
    with (
        pytest.raises(CheckpointError) as caught,
        made.writing(str(tmp_path), state(4), torch.nn.Linear(2, 2)),
    ):
        (tmp_path / "_saving" / "checkpoint-4").mkdir(parents=True)
        raise DISK[kind]
    text = str(caught.value)
    assert "\n" not in text and f"checkpoint-4 could not be written to {tmp_path}" in text
    assert "MiB are free" in text and "`save_total_limit`" in text
    assert f"The last good checkpoint is {tmp_path}/checkpoint-3" in text
    assert os.listdir(tmp_path) == ["checkpoint-3"], "room for what the run still has to write"
    assert not made.is_open


def test_other_errors_stay_what_they_are(tmp_path):
    made = writer()
    with pytest.raises(RuntimeError, match="a bug"), made.writing(str(tmp_path), state(4), torch.nn.Linear(2, 2)):
        raise RuntimeError("a bug")
    assert not made.is_open


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_never_saved(tmp_path, value):
    made, model = writer(), torch.nn.Linear(2, 2)
    write(tmp_path, made, 3)
    model.weight.data[1, 1] = value
    with (
        pytest.raises(CheckpointError, match=r"checkpoint-4 is not saved.*last good checkpoint is .*checkpoint-3"),
        made.writing(str(tmp_path), state(4), model),
    ):
        raise AssertionError("nothing is written")
    assert os.listdir(tmp_path) == ["checkpoint-3"]


def test_leavings_of_a_kill_go_and_a_replaced_checkpoint_comes_back(tmp_path):
    put_checkpoint(tmp_path / "_saving", 4)
    put_checkpoint(tmp_path / "_saving" / "replaced", 3)
    mend(tmp_path)
    assert os.listdir(tmp_path) == ["checkpoint-3"] and last_checkpoint(tmp_path)
    put_checkpoint(tmp_path / "_saving" / "replaced", 3)
    (tmp_path / "checkpoint-3" / "mark").write_text("the new one")
    mend(tmp_path)
    assert os.listdir(tmp_path) == ["checkpoint-3"] and (tmp_path / "checkpoint-3" / "mark").exists()


def test_checkpoint_of_the_same_step_is_replaced_and_never_lost(tmp_path, monkeypatch):
    put_checkpoint(tmp_path, 3)
    draft = put_checkpoint(tmp_path / "_saving", 3)
    (draft / "mark").write_text("new")
    rename = os.rename

    def killed(source, target):
        if source == draft:
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(saving.os, "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        put_in_place(draft, tmp_path / "checkpoint-3")
    monkeypatch.setattr(saving.os, "rename", rename)
    copy = shutil.copytree(tmp_path, tmp_path.with_name("copy"))
    mend(copy)
    assert last_checkpoint(copy) == copy / "checkpoint-3" and not (copy / "checkpoint-3" / "mark").exists()
    put_in_place(draft, tmp_path / "checkpoint-3")
    assert (tmp_path / "checkpoint-3" / "mark").exists() and os.listdir(tmp_path) == ["checkpoint-3"]


@pytest.mark.parametrize(
    ("limit", "best", "left"),
    [(None, None, "1234"), (2, None, "34"), (1, None, "4"), (2, 1, "14"), (1, 2, "24"), (3, 1, "134")],
)
def test_limit_keeps_the_newest_and_the_best(tmp_path, limit, best, left):
    for step in (1, 2, 3, 4):
        path = put_checkpoint(tmp_path, step)
        os.utime(path, (1000 + 10 * step,) * 2)
    rotate(str(tmp_path), limit, str(tmp_path / f"checkpoint-{best}") if best else None)
    assert "".join(sorted(one.removeprefix("checkpoint-") for one in os.listdir(tmp_path))) == left


def test_model_replaces_the_old_one_file_by_file_and_its_configuration_last(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text("old")
    (tmp_path / "model-00001-of-00002.safetensors").write_text("old")
    (tmp_path / "model.safetensors.index.json").write_text("old")
    (tmp_path / "README.md").write_text("mine")
    order = []
    replace = os.replace
    monkeypatch.setattr(saving.os, "replace", lambda a, b: (order.append(b.name), replace(a, b))[1])
    with model_draft(str(tmp_path), True) as draft:
        for name in ("config.json", "model.safetensors"):
            with open(os.path.join(draft, name), "w") as file:
                file.write("new")
        os.makedirs(os.path.join(draft, "ref"))
        open(os.path.join(draft, "ref", "adapter_config.json"), "w").close()
    assert order[-1] == "config.json" and len(order) == 3
    assert sorted(os.listdir(tmp_path)) == ["README.md", "config.json", "model.safetensors", "ref"]
    assert (tmp_path / "config.json").read_text() == "new"


def test_model_that_does_not_fit_leaves_the_old_one(tmp_path):
    (tmp_path / "config.json").write_text("old")
    with pytest.raises(CheckpointError, match="No space left"), model_draft(str(tmp_path), True) as draft:
        with open(os.path.join(draft, "config.json"), "w") as file:
            file.write("half")
        raise DISK["system"]
    assert (tmp_path / "config.json").read_text() == "old"
