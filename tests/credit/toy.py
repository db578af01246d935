"""The toy batch T0: one group of four episodes whose states, returns and advantages can be worked out by hand.

    a: s0 -A1-> s1 -B1-> solved (r = 1)              c: s0 -A1-> s1 -B2-> y (r = 0)
    b: s0 -A2-> s2 -C1-> x (r = 0)                   d: s0 -A2-> s2 -C2-> s1 -B1-> solved (r = 1)

With gamma = 0.95 the returns are a (.95, 1), b (0, 0), c (0, 0), d (.9025, .95, 1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from taspo_trl.credit.base import Batch
from taspo_trl.rollout.advantages import group_advantages
from taspo_trl.types import ReplyScore, StopReason, Trajectory, TrajectoryGroup, Turn


GAMMA = 0.95
PATHS = {
    "a": ("s0", "A1", "s1", "B1", "solved"),
    "b": ("s0", "A2", "s2", "C1", "x"),
    "c": ("s0", "A1", "s1", "B2", "y"),
    "d": ("s0", "A2", "s2", "C2", "s1", "B1", "solved"),
}
"""State, action, state, ..., state."""
MASK = (False, True, True, False)
"""A reply: a tag, two tokens of action, an end token."""
HIGH, LOW = 0.865875, -0.865875
"""A_i of a success and of a failure of T0."""


def play(
    uid: str,
    path: Sequence[str],
    reward: float = 0.0,
    *,
    masks: Sequence[Sequence[bool]] | None = None,
    usable: bool = True,
    **fields: Any,
) -> Trajectory:
    """An episode along a path of states and actions; success is a positive reward, unless it is given."""
    num_turns = len(path) // 2
    masks = [MASK] * num_turns if masks is None else masks
    turns = tuple(
        Turn(
            prompt_ids=(1, 2, 3),
            reply_ids=tuple(range(10, 10 + len(mask))),
            reply_text=f"<action>{path[2 * t + 1]}</action>",
            action=path[2 * t + 1],
            action_mask=tuple(mask),
            observation=path[2 * t],
            next_observation=path[2 * t + 2],
            valid=True,
            splice_index=2,
        )
        for t, mask in zip(range(num_turns), masks, strict=True)
    )
    success = fields.pop("success", usable and reward > 0)
    stop = StopReason.SOLVED if success else StopReason.FAILED
    defaults: dict[str, Any] = {
        "task": {"task_id": "toy"},
        "task_text": "Put a mug on the desk.",
        "family": "toy",
        "environment": None,
        "generation_idx": 0,
        "opening": (),
        "environment_reward": reward,
    }
    return Trajectory(
        uid=uid,
        turns=turns,
        stop_reason=stop if usable else StopReason.ENV_ERROR,
        success=success,
        reward=reward,
        **{**defaults, **fields},
    )


def group(*members: Trajectory, group_id: str = "g") -> TrajectoryGroup:
    return TrajectoryGroup(group_id, members)


def t0() -> TrajectoryGroup:
    """The group of T0: a, b, c, d."""
    return group(*(play(uid, path, float(path[-1] == "solved")) for uid, path in PATHS.items()))


def observation(trajectory: Trajectory, turn_idx: int) -> str:
    """The state of a toy turn: its observation, after the last action the answer."""
    turns = trajectory.turns
    return turns[turn_idx].observation if turn_idx < len(turns) else turns[-1].next_observation


def batch(*groups: TrajectoryGroup, **fields: Any) -> Batch:
    """Groups (by default T0) with their A_i, and `observation` as the state."""
    groups = groups or (t0(),)
    rewards = [[t.reward if t.is_usable else None for t in one.trajectories] for one in groups]
    outcome = tuple(a for row in group_advantages(rewards)[0] for a in row)
    return Batch(groups, fields.pop("outcome", outcome), **{"state_key": observation, **fields})


def score(turn: Turn, scope: str = "action", plain: float = -1.0, **shifts: Sequence[float]) -> ReplyScore:
    """The score of one turn: each block's shifts over the tokens in scope, NaN elsewhere."""
    inside = [scope == "reply" or is_action for is_action in turn.action_mask]
    return ReplyScore(
        plain=tuple(plain if one else float("nan") for one in inside),
        guided={block: _laid([plain + shift for shift in values], inside) for block, values in shifts.items()},
    )


def scores_of(
    member: Trajectory, shifts: Sequence[Mapping[str, Sequence[float]] | None], scope: str = "action"
) -> dict[tuple[str, int], ReplyScore]:
    """The scores of a trajectory from each turn's shifts by block; None = the turn was not scored."""
    return {
        (member.uid, t): score(turn, scope, **one)
        for t, (turn, one) in enumerate(zip(member.turns, shifts, strict=True))
        if one is not None
    }


def near(rows: Sequence[Sequence[float]], tolerance: float = 1e-6) -> list[Any]:
    """The ragged rows, to be compared within a tolerance."""
    return [pytest.approx(list(row), abs=tolerance) for row in rows]


def _laid(values: Sequence[float], inside: Sequence[bool]) -> tuple[float, ...]:
    flat = iter(values)
    return tuple(next(flat) if one else float("nan") for one in inside)
