"""What reaches the Hub: a card that holds, weights that load without this package, and no episode or key."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import transformers.utils.hub
import yaml
from datasets import Dataset
from huggingface_hub import HfApi, ModelCard

from taspo_trl.environments import ResetResult, StepResult, TextEnvironment
from taspo_trl.errors import ConfigurationError
from taspo_trl.hub import ignored_patterns
from tests import tiny
from tests.hub_server import TOKEN, USER, HubServer, card_faults


REPO = f"{USER}/agent"
SEEN = "CANARY-OBSERVATION"
KEPT_HERE = ("_trajectories", "_evaluations", "_view.html", "completions", "_taspo_rows", "answers.db")


class Counter(TextEnvironment):
    """Solved by the members of a group that say so."""

    max_turns = 2

    def reset(self, *, seed, task, **row):
        return ResetResult(f"{SEEN}. You can: look, inventory", {"task": f"Task {task}", "family": task[0]})

    def step(self, action):
        is_end = action in ("look", "inventory")
        return StepResult(f"{SEEN} after {action}.", 0.0, is_end, False, {"success": action == "inventory"})


def tasks(split, size=6):
    names = [f"{'ab'[k % 2]}{k}" for k in range(size)]
    return Dataset.from_dict({"task": names, "task_id": names, "split": [split] * size})


def reply(uid, turn):
    return "<action>go to</action>" if turn == 0 else f"<action>{('look', 'inventory')[int(uid[-1]) % 2]}</action>"


@pytest.fixture
def hub(monkeypatch):
    """The stand-in, as the Hub of this process."""
    with HubServer() as server:
        api = HfApi(endpoint=server.url, token=TOKEN, library_name="transformers")
        monkeypatch.setattr(transformers.utils.hub, "_hf_api", api)
        yield server
        assert not server.unknown


def trainer(folder, **values):
    """Everything a run can leave in its folder, with rollout batches partly used at every other checkpoint."""
    defaults = {
        "train_dataset": tasks("train"),
        "eval_dataset": tasks("held_out"),
        "environment_factory": Counter,
        "policy": tiny.ScriptedPolicy(reply),
        "max_steps": 3,
        "per_device_train_batch_size": 4,
        "steps_per_generation": 2,
        "save_strategy": "steps",
        "save_steps": 1,
        "log_completions": True,
        "num_completions_to_print": 0,
        "eval_strategy": "steps",
        "eval_steps": 3,
        "hub_model_id": REPO,
        "hub_token": TOKEN,
        "hub_always_push": True,
    }
    made = tiny.trainer(folder, **{**defaults, **values})
    (Path(folder) / "_view.html").write_text(SEEN)
    return made


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
    made = trainer(tmp_path / "out", push_to_hub=True, hub_strategy=strategy, hub_push_trajectories=asked)
    made.train()
    repository = hub.repositories[REPO]
    assert len(repository.commits) == num_pushes
    made.push_to_hub()
    assert repository.private
    assert len(repository.commits) == num_pushes + 1
    names = set(repository.files)
    assert {"README.md", "model.safetensors", "config.json", "tokenizer.json", "training_args.bin"} <= names
    assert {name.split("/")[0] for name in names if "checkpoint" in name} == folders
    here = {name for name in names if any(part in name for part in KEPT_HERE)}
    if not asked:
        assert not here
    else:
        assert {name.split("/")[0] for name in here} == {
            "_trajectories", "_evaluations", "_view.html", "completions", "checkpoint-1", "checkpoint-3",
        }  # fmt: skip
    for name in names:
        if name.endswith("README.md"):
            assert not card_faults(repository.files[name].decode())
    assert not [body for body in hub.received if TOKEN.encode() in body]
    assert any(SEEN.encode() in body for body in hub.received) == asked
