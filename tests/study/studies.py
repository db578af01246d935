"""A small plan, and files as runs would leave them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.study.plan import Plan, Run


VALUES: dict[str, Any] = {
    "training": {"tasks_per_update": 2, "num_generations": 4},
    "evaluation": {"tasks": 4, "greedy_tasks": 3, "checkpoint_tasks": 4, "batch_size": 8},
    "settings": {
        "short": {"preset": "small", "turns": 12, "noise_share": 0.1, "updates": 4, "seconds": 100},
        "long": {"preset": "small", "turns": 24, "noise_share": 0.1, "updates": 4, "seconds": 200},
    },
    "methods": {
        "grpo": {"method": "grpo"},
        "oracle": {"method": "oracle"},
        "placebo": {"method": "placebo"},
        "taspo": {"method": "taspo"},
        "serl": {"method": "serl", "standin": "a rule"},
        "vanilla": {"method": "grpo", "updates": 0},
    },
    "ceiling": {
        "seeds": [100, 101, 102],
        "settings": ["short", "long"],
        "methods": ["grpo", "oracle", "placebo"],
        "checkpoints": [2],
        "measures": ["sampled", "area"],
        "rule": {
            "oracles": ["oracle"],
            "seeds": 10,
            "at_least": 3.0,
            "otherwise": {"setting": "short", "updates": 4, "primary": "sampled"},
        },
    },
    "tiers": {
        "setting": "chosen",
        "unreadable": [],
        "equivalence": 0.05,
        "ceiling": ["oracle"],
        "confirmatory": [["taspo", "grpo"], ["taspo", "serl"]],
        "tier1": {"seeds": [0, 1, 2], "methods": ["grpo", "taspo", "serl", "oracle"]},
        "tier2": {"seeds": [0, 1], "methods": ["vanilla"]},
        "tier3": {"seeds": [0, 1], "methods": []},
    },
    "credit_names": {},
    "orderings": [
        {"table": "T", "order": ["taspo", "serl", "grpo"]},
        {"table": "U", "order": [], "undecidable": "no models here"},
    ],
}


def plan(change: Callable[[dict[str, Any]], None] | None = None) -> Plan:
    values = copy.deepcopy(VALUES)
    if change is not None:
        change(values)
    return Plan(values)


def result(run: Run, sampled: int, area: float = 0.5) -> Mapping[str, Any]:
    """What a run leaves: `sampled` of 8 held-out tasks are solved, the same at its checkpoints."""
    outcome = "1" * sampled + "0" * (8 - sampled)

    def split(part: str) -> dict[str, Any]:
        return {"tasks": "t", "families": ["cool", "heat"], "family": "0101", "success": part, "turns": [3, 4, 5, 6]}

    plays = {"valid_seen": split(outcome[:4]), "valid_unseen": split(outcome[4:])}
    updates = run.configuration["updates"]
    names = [f"sampled@{one}" for one in (*run.configuration["checkpoints"], updates)]
    return {
        "policy": "p",
        "first_batch": f"b{run.seed}" if updates else None,
        "curves": {"success": [area] * updates},
        "evaluations": dict.fromkeys([*names, f"greedy@{updates}"], plays),
        "seconds": {"training": 1.0},
    }
