"""One process of a distributed test: trains tiny models on scripted rollouts and leaves what it saw in files.

torchrun --nproc_per_node 2 -m tests.distributed.worker '[{"output": ..., "scenario": ...}]'
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

from taspo_trl.analyzer.extractive import ExtractiveAnalyzer
from taspo_trl.environments import ResetResult, StepResult, TextEnvironment
from tests import tiny
from tests.trainer.test_gradients import Ragged, ragged_reply, ragged_rows
from tests.trainer.test_survival import poison


def uneven_reply(uid: str, turn: int) -> str:
    """Even groups: 2 turns and mixed outcomes. Odd groups: 5 turns, all fail (EVL-2)."""
    group, member = (int(part[1:]) for part in uid.split("-")[-2:])
    if group % 2:
        return "<action>look</action>" if turn == 4 else "<action>go to fridge 1</action>"
    return "<action>inventory</action>" if turn == 1 and member % 2 else ragged_reply(uid, 9 if turn else 0)


class Uneven(TextEnvironment):
    """Episodes of 1 to 4 turns, whatever is done: processes ask their model a different number of times."""

    def reset(self, *, seed, task, **row):
        self.left = 1 + int(task[1:]) % 4
        return ResetResult("Now: You see mug 1.", {"task": "Task: Put a mug"})

    def step(self, action):
        self.left -= 1
        return StepResult("You see plate 1.", 0.0, self.left == 0, False, {"success": False})


class FailsOnRankOne(ExtractiveAnalyzer):
    def complete(self, request):
        from taspo_trl.analyzer.base import AnalyzerReply

        if os.environ.get("RANK") == "1":
            return AnalyzerReply(error="timeout")
        return super().complete(request)


def broken_on_rank_one(**kwargs):
    assert os.environ.get("RANK") != "1", "a bug on one rank"
    return [0.0] * len(kwargs["prompts"])


def gloo_threads() -> list[str]:
    """Names of the process group's own threads; Linux tells them."""
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    return [name for name in names if "gloo" in name]


def main() -> None:
    runs = json.loads(sys.argv[1])
    for options in runs[:-1]:
        made = run(options)
        made.model_wrapped = made.model  # no wrapper of a run that is over holds the group
        made.accelerator.free_memory()
    made = run(runs[-1])
    made.end()
    if not made.is_deepspeed_enabled:  # DeepSpeed keeps its groups for as long as the process lives
        assert not gloo_threads(), "they may abort the process while it exits"


def run(options):
    """One training; the trainer, closed."""
    output, scenario = Path(options["output"]), options.get("scenario", "ragged")
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    values = options.get("config", {})
    keywords = {}
    if scenario == "analyzer_fails_on_one_rank":
        keywords["analyzer"] = FailsOnRankOne()
    if scenario == "assertion_on_one_rank":
        keywords["reward_funcs"] = [broken_on_rank_one]
    policy = tiny.ScriptedPolicy(uneven_reply if scenario == "uneven" else ragged_reply)
    is_sampled = scenario == "sampled"  # the model itself plays
    episodes = options.get("episodes", 16)
    model = tiny.model(dtype=getattr(torch, options.get("dtype", "float64")), **options.get("model", {}))
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    made = tiny.trainer(
        output / "run",
        policy=None if is_sampled else policy,
        model=model,
        train_dataset=ragged_rows(8),
        eval_dataset=ragged_rows(5) if is_sampled else None,
        environment_factory=Uneven if is_sampled else Ragged,
        per_device_train_batch_size=episodes // world // options.get("steps_per_generation", 1),
        steps_per_generation=options.get("steps_per_generation", 1),
        max_steps=options.get("steps", 3),
        learning_rate=1e-2,
        micro_batch_tokens=256,
        **keywords,
        **values,
    )
    if scenario == "nan_on_rank_one" and rank == 1:
        poison(made, {2})
    made.train()
    if is_sampled:
        made.evaluate()
    log = [entry for entry in made.state.log_history if "loss" in entry]
    state = made.accelerator.get_state_dict(made.model_wrapped)
    torch.save(
        {
            "parameters": {name: value.detach().cpu() for name, value in state.items()} if state else None,
            "initial": initial,
            "log": log,
            "requests": len(policy.requests),
            "plays": len(made.last_evaluation.plays) if is_sampled else 0,
        },
        output / f"{world}-{rank}.pt",
    )
    made.close()
    return made


if __name__ == "__main__":
    main()
