"""Run folders as training leaves them, for what reads them."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from collections.abc import Sequence
from pathlib import Path

from taspo_trl.evaluation import EvaluationResult, Play
from taspo_trl.records import METHOD_FILE, TrajectoryRecord, write_records
from taspo_trl.types import (
    Block,
    Credit,
    Evidence,
    Extraction,
    Guidance,
    Rejection,
    ReplyScore,
    Source,
    Statement,
    StopReason,
    Support,
)
from tests.builders import trajectory, turn


def episode(uid: str, actions: list[tuple[str, str]], start: str, success: bool, **values):
    """A trajectory whose turns are (action, answer); each answer is the next observation."""
    before = [start, *(answer for _, answer in actions)]
    turns = [
        turn(
            (1, 2, 3),
            (10, 11, 12),
            reply_text=f"I think.\n<action>{action}</action>",
            action=action,
            action_mask=(False, True, True),
            observation=before[k],
            next_observation=answer,
            valid=not answer.startswith("Nothing"),
        )
        for k, (action, answer) in enumerate(actions)
    ]
    end = StopReason.SOLVED if success else StopReason.MAX_TURNS
    return trajectory(
        turns,
        uid,
        success=success,
        stop_reason=end,
        reward=float(success),
        rewards={"success": float(success)},
        **values,
    )


def score(plain: Sequence[float], guided: Sequence[float]) -> ReplyScore:
    """Of a reply of [`episode`]: a thought, then two action tokens."""
    return ReplyScore((math.nan, *plain), {"aligned": (math.nan, *guided)})


def small_group(rollout: int = 0) -> list[TrajectoryRecord]:
    """Three attempts at one task: the first succeeds, the second is guided by it, the third died."""
    uids = [f"r{rollout}-g0-k{k}" for k in range(3)]
    start = "You see  a desk 1\nand a lamp 1."
    winner = episode(
        uids[0], [("go to desk 1", "On the desk 1 is a mug 1."), ("take mug 1", "You take mug 1.")], start, True
    )
    loser = episode(
        uids[1],
        [("go to lamp 1", "You are at lamp 1."), ("take mug 1", "Nothing happens."), ("go to desk 1", "A mug 1!")],
        start,
        False,
        generation_idx=1,
    )
    dead = trajectory(
        [], uids[2], generation_idx=2, stop_reason=StopReason.ENV_ERROR, error="RuntimeError: the game is gone"
    )
    source = Source(uids[0], 0, "a desk 1 and a lamp 1", "go to desk 1", "is a mug 1.")
    evidence = Evidence("E1", "progress", "The mug is on the desk.", (source,))
    rejected = Rejection("extraction", "quote_not_found", '{"statement": "Open the safe."}')
    extraction = Extraction((evidence, Evidence("E2", "constraint", "Not used.", (source,))), (rejected,))
    guidance = Guidance(
        uids[1],
        "aligned",
        {"aligned": Block.whole((7, 8, 9), 3, "- Go to the desk.")},
        (
            Statement(
                "Go to the desk.",
                ("E1",),
                (
                    Support(0, "task", "Put a mug"),
                    Support(2, "pre", "Nothing happens."),
                    Support(0, "action", "go to lamp 1"),
                ),
            ),
        ),
        extraction.evidence,
        (Rejection("alignment", "evidence_id_not_allowed", "E9"),),
    )
    scores = (
        score((-1.0, -0.5), (-2.5, -0.5)),
        score((-0.25, -0.5), (-0.5, -1.0)),
        score((-2.0, -1.0), (-0.5, -0.75)),
    )
    credits = [
        Credit(uids[0], 0.7, (1.0, 1.0), (None, None), (), "no_other_success"),
        Credit(uids[1], -0.7, (1.125, 1.0, 0.875), (-0.75, -0.375, 0.875), scores),
        Credit(uids[2], 0.0, (), (), (), "infrastructure"),
    ]
    given = [
        Guidance(uids[0], "aligned", abstain_reason="no_other_success"),
        guidance,
        Guidance(uids[2], "aligned", abstain_reason="infrastructure"),
    ]
    return [
        TrajectoryRecord(one, f"r{rollout}-g0", rollout, rollout, extraction, guidance, credit)
        for one, guidance, credit in zip((winner, loser, dead), given, credits, strict=True)
    ]


METHOD = {
    "kind": "method",
    "version": 1,
    "name": "taspo",
    "line": "turn weights",
    "papers": [{"reference": "A paper, arXiv:2608.31077", "address": "https://arxiv.org/abs/2608.31077"}],
    "equations": "w = 1",
    "contexts": ["aligned"],
    "teacher": "rollout",
    "num_steps": 2,
    "advantage": {"rule": "OutcomeAdvantage", "options": {}},
    "weight": {
        "rule": "TurnWeights",
        "options": {"clip": 2.0, "threshold": 0.0, "temperature": 0.5, "weight_range": 0.4, "step_size": None,
                    "block": "aligned"},
    },
    "distill": None,
}  # fmt: skip
"""What training leaves beside the records of [`small_group`]."""


def write_method(folder: Path, facts: dict = METHOD) -> None:
    """Into a folder of records."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / METHOD_FILE).write_text(json.dumps(facts))


def write_small_run(folder: Path) -> Path:
    """Two rollout batches, a log, two evaluations and the method."""
    write_method(folder / "_trajectories")
    for rollout in range(2):
        write_records(folder / "_trajectories" / f"rollout_{rollout:06d}.jsonl", small_group(rollout))
    history = [
        {"step": step, "success": step / 10, "reward": step / 5, "kl": 1e-5 * step, "guidance/coverage": 0.5,
         "credit/weight_std": 0.1, "time/rollout": 2.0, "time/update": 1.0, "step_time": 3.0, "learning_rate": 1e-6}
        for step in range(1, 9)
    ]  # fmt: skip
    state = {"global_step": 8, "log_history": [*history, {"step": 8, "eval_success": 0.5}]}
    (folder / "checkpoint-8").mkdir(parents=True)
    (folder / "checkpoint-8" / "trainer_state.json").write_text(json.dumps(state))
    for step, solved in ((0, 2), (8, 6)):
        plays = tuple(
            Play(f"t{k}", "pick" if k % 2 else "heat", 0, k < solved, float(k < solved), 5, 20, StopReason.SOLVED)
            for k in range(8)
        )
        EvaluationResult(plays, {"global_step": step}).save(folder / "_evaluations" / f"eval_{step:06d}.json")
    return folder


def write_large_run(folder: Path, num_trajectories: int = 5000, group_size: int = 8, per_rollout: int = 125) -> Path:
    """A run of many trajectories of 4 to 20 turns, as `per_rollout` groups of `group_size` in each file."""
    write_method(folder / "_trajectories")
    rng = random.Random(0)
    things = [
        f"{name} {k}" for name in ("desk", "lamp", "mug", "shelf", "fridge", "drawer", "sink") for k in range(1, 9)
    ]
    records: list[TrajectoryRecord] = []
    rollout = 0
    for group in range(num_trajectories // group_size):
        if group and group % per_rollout == 0:
            write_records(folder / "_trajectories" / f"rollout_{rollout:06d}.jsonl", records)
            records, rollout = [], rollout + 1
        records.extend(_large_group(rng, things, rollout, group % per_rollout, group_size))
    write_records(folder / "_trajectories" / f"rollout_{rollout:06d}.jsonl", records)
    return folder


def _large_group(rng, things, rollout, group, group_size):
    name = f"r{rollout}-g{group}"
    task = f"Put a clean {rng.choice(things)} on {rng.choice(things)}."
    evidence = tuple(
        Evidence(f"E{k}", "progress", f"Go to {rng.choice(things)}.", (Source(f"{name}-k0", k, "You", "look", "see"),))
        for k in range(4)
    )
    for k in range(group_size):
        actions = [
            (
                f"{rng.choice(('take', 'open', 'go to'))} {rng.choice(things)}",
                "You see " + ", ".join(rng.sample(things, 6)),
            )
            for _ in range(rng.randint(4, 20))
        ]
        one = episode(
            f"{name}-k{k}", actions, "You see a room.", rng.random() < 0.4, generation_idx=k, task_text=task,
            family=rng.choice(("pick", "clean", "heat")),
        )  # fmt: skip
        statements = tuple(Statement(item.statement, (item.evidence_id,), ()) for item in evidence)
        given = Guidance(
            one.uid, "aligned", {"aligned": Block.whole((1, 2, 3), len(actions), "- Go.")}, statements, evidence
        )
        scores = tuple(score((rng.gauss(-1, 1), -0.1), (rng.gauss(-1, 1), -0.1)) for _ in actions)
        weights = tuple(1 + rng.uniform(-0.2, 0.2) for _ in actions)
        supports = tuple(rng.gauss(0, 0.5) for _ in actions)
        credit = Credit(one.uid, rng.choice((-0.7, 1.2)), weights, supports, scores)
        yield TrajectoryRecord(one, name, rollout, rollout, Extraction(evidence), given, credit)


def without_guidance(record: TrajectoryRecord) -> TrajectoryRecord:
    """The record that a batch leaves when the run dies before its guidance is there."""
    return dataclasses.replace(record, extraction=None, guidance=None, credit=None)
