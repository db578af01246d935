"""Turns and trajectories with everything a test does not care about filled in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from taspo_trl.types import Block, Guidance, StopReason, Trajectory, TrajectoryGroup, Turn


def turn(prompt_ids: Sequence[int] = (1, 2, 3), reply_ids: Sequence[int] = (10, 11), **values: Any) -> Turn:
    """One answered request; by default all of its reply is the action, and guidance goes before the last prompt id."""
    defaults = {
        "reply_text": "<action>look</action>",
        "action": "look",
        "action_mask": (True,) * len(reply_ids),
        "observation": "You see a desk.",
        "next_observation": "Nothing happens.",
        "valid": True,
        "splice_index": max(0, len(prompt_ids) - 1),
    }
    return Turn(tuple(prompt_ids), tuple(reply_ids), **{**defaults, **values})


def trajectory(turns: Sequence[Turn] = (), uid: str = "t", **values: Any) -> Trajectory:
    """One finished episode, by default cut at the limit of turns without success."""
    defaults = {
        "task": {"task_id": "a"},
        "task_text": "Put a mug on the desk.",
        "family": "pick",
        "environment": None,
        "generation_idx": 0,
        "stop_reason": StopReason.MAX_TURNS,
        "success": False,
        "opening": ({"role": "user", "content": "Put a mug on the desk."},),
        "environment_reward": 0.0,
    }
    return Trajectory(uid=uid, turns=tuple(turns), **{**defaults, **values})


def group(*members: Trajectory, group_id: str = "g") -> TrajectoryGroup:
    return TrajectoryGroup(group_id, members)


def guided(
    uid: str = "t", ids: Sequence[int] = (5,), num_turns: int = 1, text: str = "", name: str = "aligned", **values: Any
) -> Guidance:
    """Guidance with one block for all turns, by default none if it has no ids."""
    return Guidance(uid, name, {name: Block.whole(ids, num_turns, text)} if ids else {}, **values)


def window_trajectory(rng: np.random.Generator, uid: str, num_turns: int, **values: Any) -> Trajectory:
    """A ragged episode whose turns are prompted afresh; some replies are empty, some action masks too."""
    turns = []
    for _ in range(num_turns):
        prompt = rng.integers(1, 50, size=rng.integers(3, 9)).tolist()
        reply_ids, mask = _reply(rng)
        turns.append(turn(prompt, reply_ids, action_mask=mask))
    return trajectory(turns, uid, **values)


def conversation_trajectory(rng: np.random.Generator, uid: str, num_turns: int, **values: Any) -> Trajectory:
    """A ragged episode whose context grows: each prompt is the previous prompt + reply + new text."""
    turns: list[Turn] = []
    prompt = rng.integers(1, 50, size=rng.integers(3, 9)).tolist()
    splice_index = len(prompt) - 1
    for _ in range(num_turns):
        reply_ids, mask = _reply(rng)
        turns.append(turn(prompt, reply_ids, action_mask=mask, splice_index=splice_index))
        prompt = [*prompt, *reply_ids, *rng.integers(1, 50, size=rng.integers(1, 4)).tolist()]
    return trajectory(turns, uid, **values)


def _reply(rng: np.random.Generator) -> tuple[list[int], tuple[bool, ...]]:
    length = int(rng.integers(0, 6))
    first = int(rng.integers(0, length + 1))
    return rng.integers(50, 99, size=length).tolist(), tuple(k >= first for k in range(length))
