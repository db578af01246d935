"""Trains an adapter and a whole model and pushes both, as a user's script would; prints what a loader must find.

`python -m tests.hub_push FOLDER` wants `HF_ENDPOINT` and `HF_TOKEN`, which huggingface_hub reads when it is imported.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM

from taspo_trl.analyzer import LiteLLMAnalyzer
from taspo_trl.environments import ResetResult, StepResult, TextEnvironment
from tests import tiny
from tests.analyzer.endpoint import Endpoint


KEY = "sk-CANARY-7731"
SEEN = "CANARY-OBSERVATION"
PROBE = [[5, 6, 7, 8, 9]]


class Counter(TextEnvironment):
    """Solved by the members of a group that say so."""

    max_turns = 2

    @classmethod
    def dataset(cls, split: str = "train", **kwargs):
        return tasks(split).remove_columns("split")

    def reset(self, *, seed, task, **row):
        return ResetResult(f"{SEEN}. You can: look, inventory", {"task": f"Task {task}", "family": task[0]})

    def step(self, action):
        is_end = action in ("look", "inventory")
        return StepResult(f"{SEEN} after {action}.", 0.0, is_end, False, {"success": action == "inventory"})


def tasks(split: str, size: int = 6) -> Dataset:
    names = [f"{'ab'[k % 2]}{k}" for k in range(size)]
    return Dataset.from_dict({"task": names, "task_id": names, "split": [split] * size})


def reply(uid: str, turn: int) -> str:
    """Every second member of a group succeeds, in two turns."""
    return "<action>go to</action>" if turn == 0 else f"<action>{('look', 'inventory')[int(uid[-1]) % 2]}</action>"


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
        "hub_always_push": True,
    }
    made = tiny.trainer(folder, **{**defaults, **values})
    (Path(folder) / "_view.html").write_text(SEEN)
    return made


def logits(model) -> list[list[float]]:
    model.eval()
    with torch.no_grad():
        return model(input_ids=torch.tensor(PROBE)).logits[0].tolist()


def main(folder: Path) -> None:
    base = folder / "base"
    tiny.model().save_pretrained(base)
    found = {}
    with Endpoint() as endpoint:
        run = folder / "runs" / "adapter"
        adapter = trainer(
            run,
            model=AutoModelForCausalLM.from_pretrained(base),
            peft_config=LoraConfig(
                r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False
            ),
            analyzer=LiteLLMAnalyzer(
                "deepseek/deepseek-chat", api_key=KEY, api_base=endpoint.url, cache=run / "answers.db", run="r"
            ),
            push_to_hub=True,
            hub_strategy="all_checkpoints",
            hub_always_push=True,
            hub_model_id="adapter",
        )
        adapter.train()
        adapter.push_to_hub()
        found["adapter"] = logits(adapter.model)
        assert endpoint.received and not endpoint.errors
    whole = trainer(folder / "runs" / "whole", model=AutoModelForCausalLM.from_pretrained(base), max_steps=1)
    whole.train()
    whole.push_to_hub(license="apache-2.0")
    found["whole"] = logits(whole.model)
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
