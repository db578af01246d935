"""What reaches the Hub: a card that holds, weights that load without this package, and no episode or key."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import huggingface_hub._commit_api
import pytest
import torch
import transformers.trainer
import transformers.utils.hub
from huggingface_hub import HfApi, ModelCard
from peft import LoraConfig
from transformers import AutoModelForCausalLM
from trl import ModelConfig

from taspo_trl.cli.train import TaskArguments, make_trainer
from taspo_trl.files import replacing
from taspo_trl.reporting.hub import Pushes, ignored_patterns, selective_uploads
from tests import tiny
from tests.hub_push import KEY, PROBE, SEEN, reply, trainer
from tests.hub_server import TOKEN, USER, HubServer, card_faults


REPO = f"{USER}/agent"
ROOT = Path(__file__).resolve().parents[2]
KEPT_HERE = ("_trajectories", "_evaluations", "_view.html", "completions", "_taspo_rows", "answers.db")


@pytest.fixture
def hub(monkeypatch):
    """The stand-in, as the Hub of this process."""
    with HubServer() as server:
        api = HfApi(endpoint=server.url, token=TOKEN, library_name="transformers")
        monkeypatch.setattr(transformers.utils.hub, "_hf_api", api)
        yield server
        assert not server.unknown


@pytest.mark.parametrize(
    ("strategy", "asked", "folders", "num_pushes"),
    [
        ("end", False, set(), 0),
        ("every_save", False, set(), 3),
        ("checkpoint", False, {"last-checkpoint"}, 6),
        ("all_checkpoints", False, {"checkpoint-1", "checkpoint-2", "checkpoint-3"}, 6),
        ("all_checkpoints", True, {"checkpoint-1", "checkpoint-2", "checkpoint-3"}, 6),
    ],
)
def test_each_strategy_pushes_what_it_says_and_episodes_only_when_asked(
    hub, tmp_path, strategy, asked, folders, num_pushes
):
    made = trainer(
        tmp_path,
        push_to_hub=True,
        hub_model_id=REPO,
        hub_token=TOKEN,
        hub_strategy=strategy,
        hub_always_push=True,  # a push that finds the one before under way would be left out
        hub_push_trajectories=asked,
    )
    made.train()
    repository = hub.repositories[REPO]
    assert len(repository.commits) == num_pushes
    made.push_to_hub()
    assert len(repository.commits) == num_pushes + 1
    assert repository.private
    names = set(repository.files)
    assert {"README.md", "model.safetensors", "config.json", "tokenizer.json", "training_args.bin"} <= names
    assert {name.split("/")[0] for name in names if "checkpoint" in name} == folders
    assert {f"{folder}/taspo_state_0.pt" for folder in folders} <= names, "a run can be resumed from what is there"
    left = {name.split("/")[0] for name in names if any(part in name for part in KEPT_HERE)}
    everything = {"_trajectories", "_evaluations", "_view.html", "completions", "checkpoint-1", "checkpoint-3"}
    assert left == (everything if asked else set())
    assert any(SEEN.encode() in body for body in hub.received) == asked
    assert not [body for body in hub.received if TOKEN.encode() in body]
    for name in names:
        if name.endswith("README.md"):
            assert not card_faults(repository.files[name].decode())


@pytest.mark.parametrize(
    ("config", "call", "private"),
    [
        ({}, {}, True),
        ({"hub_private_repo": None}, {"private": None}, True),
        ({"hub_private_repo": False}, {}, False),
        ({}, {"private": False}, False),
    ],
)
def test_a_repository_is_private_unless_the_user_says_no(hub, tmp_path, config, call, private):
    trainer(tmp_path, hub_model_id=REPO, hub_token=TOKEN, **config).push_to_hub(**call)
    assert hub.repositories[REPO].private is private


def test_a_saved_adapter_has_our_card_and_no_path_to_its_base(tmp_path):
    # PEFT's `save_pretrained` writes a card of its own, or the base's folder into the one that is there.
    base = tmp_path / "alice" / "base"
    tiny.model().save_pretrained(base)
    lora = LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    made = trainer(tmp_path / "out", model=AutoModelForCausalLM.from_pretrained(base), peft_config=lora, max_steps=1)
    made.train()
    made.create_model_card()
    made.save_model()
    for folder in (tmp_path / "out", tmp_path / "out" / "checkpoint-1"):
        card = ModelCard.load(folder / "README.md")
        assert not card_faults(card.content)
        assert "alice" not in card.content
        assert (card.data.to_dict()["library_name"], card.data.base_model) == ("peft", None)
        assert "| Tuning | LoRA |" in card.content


def test_the_command_line_names_splits_that_the_data_does_not(tmp_path):
    tiny.model().save_pretrained(tmp_path / "base")
    tiny.tokenizer().save_pretrained(tmp_path / "base")
    made = make_trainer(
        TaskArguments("tests.hub_push:Counter", train_split="spring", eval_split="autumn"),
        tiny.config(tmp_path / "out"),
        ModelConfig(str(tmp_path / "base"), dtype="float32"),
    )
    tiny.use_policy(made, tiny.ScriptedPolicy(reply))
    made.train()
    made.evaluate()
    made.create_model_card()
    card = (tmp_path / "out" / "README.md").read_text()
    assert "| Trained on | `Counter`, split `spring`, 6 tasks |" in card
    assert "| `autumn` | 1 | 6 | 6 | 0 |" in card


@pytest.mark.parametrize(
    ("given", "asked", "expected"),
    [
        (["_*", "checkpoint-*"], False, ["_*", "checkpoint-*", "completions/*", "*.partial"]),
        ([], False, ["_*", "completions/*", "*.partial"]),
        (["_*", "checkpoint-*"], True, ["checkpoint-*", "*.partial"]),
        ([], True, ["*.partial"]),
    ],
)
def test_patterns_follow_what_was_asked(tmp_path, given, asked, expected):
    assert ignored_patterns(tmp_path, given, with_trajectories=asked) == expected


@pytest.mark.parametrize("asked", [False, True])
def test_the_cache_of_answers_never_goes_up(tmp_path, asked):
    for name, is_inside in (("a[1].db", True), ("sub/answers.db", True), ("../answers.db", False)):
        patterns = ignored_patterns(tmp_path, [], with_trajectories=asked, secret_files=[tmp_path / name])
        assert len(patterns) == (1 if asked else 3) + is_inside
    patterns = ignored_patterns(tmp_path, [], with_trajectories=True, secret_files=[tmp_path / "a[1].db"])
    assert patterns == ["*.partial", "a[[]1].db*"]


@pytest.mark.parametrize("asked", [False, True])
def test_a_file_that_is_being_written_does_not_end_a_push(hub, tmp_path, asked):
    # The run writes its card and state while the push before lists the folder: what it lists must still be there.
    folder = tmp_path / "run"
    (folder / "checkpoint-1").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    api = transformers.utils.hub._hf_api
    api.create_repo(REPO)
    listed = huggingface_hub._commit_api.CommitOperationAdd.__post_init__

    def finished_meanwhile(operation):
        for partial in folder.rglob("*.partial"):
            partial.unlink()
        listed(operation)

    with pytest.MonkeyPatch.context() as patch, replacing(folder / "config.json") as config:
        config.write("new")
        (folder / "checkpoint-1" / "trainer_state.json.partial").touch()
        patch.setattr(huggingface_hub._commit_api.CommitOperationAdd, "__post_init__", finished_meanwhile)
        pushes = Pushes(30.0)
        with selective_uploads(pushes, with_trajectories=asked):
            pushed = transformers.trainer.hf_api().upload_folder(
                repo_id=REPO, folder_path=str(folder), run_as_future=True
            )
        pushed.result(30)
        (folder / "config.json.partial").touch()  # `replacing` finds its own again
    assert hub.repositories[REPO].files == {"config.json": b"{}"}


LOADER = """
import sys
sys.modules["taspo_trl"] = None  # an import of it fails
import json, torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer
user, base, probe = sys.argv[1], sys.argv[2], torch.tensor(json.loads(sys.argv[3]))
adapter = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), f"{user}/adapter")
whole = AutoModelForCausalLM.from_pretrained(f"{user}/whole")
texts = [AutoTokenizer.from_pretrained(f"{user}/{name}").decode(probe[0]) for name in ("adapter", "whole")]
with torch.no_grad():
    values = {name: model.eval()(input_ids=probe).logits[0].tolist() for name, model in
              (("adapter", adapter), ("whole", whole))}
print(json.dumps(values | {"texts": texts}))
"""


@pytest.mark.slow
def test_a_push_from_a_script_loads_with_plain_transformers_and_peft(tmp_path):
    # SEC-2, end to end: a base in a folder, LoRA, data in memory, a key; then a full fine-tune.
    home = tmp_path / "alice"
    with HubServer(with_lfs=True) as hub:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")} | {
            "HF_ENDPOINT": hub.url,
            "HF_TOKEN": TOKEN,
            "HF_HOME": str(tmp_path / "cache"),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_XET": "1",  # the plain LFS protocol
            "OMP_NUM_THREADS": "1",
            "DEEPSEEK_API_KEY": KEY,
        }

        def run(*arguments: str) -> dict:
            done = subprocess.run(
                [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
            )
            assert done.returncode == 0, done.stderr[-3000:]
            return json.loads(done.stdout.splitlines()[-1])

        pushed = run("-m", "tests.hub_push", str(home))
        loaded = run("-c", LOADER, USER, str(home / "base"), json.dumps(PROBE))
        assert not hub.unknown
        received = list(hub.received)
        repositories = dict(hub.repositories)

    for name in ("adapter", "whole"):
        torch.testing.assert_close(torch.tensor(loaded[name]), torch.tensor(pushed[name]), rtol=0, atol=1e-6)
    assert loaded["texts"] == [tiny.tokenizer().decode(PROBE[0])] * 2
    assert repositories.keys() == {f"{USER}/adapter", f"{USER}/whole"}
    assert all(one.private for one in repositories.values())

    for secret in (KEY, TOKEN, SEEN):
        assert not [body for body in received if secret.encode() in body], "every byte that reached the server"
    for repository in repositories.values():
        assert not [name for name in repository.files if any(part in name for part in KEPT_HERE)]

    cards = {id.split("/")[1]: one.files["README.md"].decode() for id, one in repositories.items()}
    for card in cards.values():
        assert not card_faults(card)
        assert "alice" not in card and str(tmp_path) not in card
        assert {"trl", "taspo"} <= set(ModelCard(card).data.tags)
    adapter, whole = ModelCard(cards["adapter"]), ModelCard(cards["whole"])
    assert [card.data.to_dict()["library_name"] for card in (adapter, whole)] == ["peft", "transformers"]
    assert (adapter.data.license, whole.data.license) == (None, "apache-2.0")
    assert "base_model" not in adapter.data.to_dict() and "datasets" not in adapter.data.to_dict()
    (result,) = adapter.data.eval_results
    assert (result.dataset_split, result.metric_value) == ("held_out", 0.0)
    assert "| `held_out` | 3 | 6 | 6 | 0 | 0.0% | 0.0% to 39.0% |" in adapter.content
    assert "| Analyzer | `deepseek/deepseek-chat` |" in adapter.content
    assert "| Guidance coverage | 100.0% of" in adapter.content
    assert "Analyzer tokens" in adapter.content and "Analyzer cost" in adapter.content
    assert "| Tuning | full fine-tuning |" in whole.content
    assert "Analyzer cost" not in whole.content, "the embedded analyzer has no price"
