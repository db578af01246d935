"""Trajectories written down by hand, for the stages behind the rollout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from taspo_trl.types import StopReason, Trajectory, TrajectoryGroup, Turn


def make_turn(
    action: str = "go to desk 1",
    pre: str = "You are in the middle of a room.",
    post: str = "You arrive at desk 1. On it you see a mug 1.",
    *,
    valid: bool = True,
    mask: Sequence[bool] = (True, True, False),
    splice_index: int | None = 5,
) -> Turn:
    return Turn(
        prompt_ids=tuple(range(8)),
        reply_ids=tuple(range(len(mask))),
        reply_text=f"<action>{action}</action>",
        action=action,
        action_mask=tuple(mask),
        observation=pre,
        next_observation=post,
        valid=valid,
        splice_index=splice_index,
    )


def make_trajectory(
    idx: int,
    *turns: Turn,
    success: bool = False,
    reward: float | None = None,
    stop_reason: StopReason | None = None,
    task: str = "Put a mug on desk 1.",
    group_id: str = "g0",
    **fields: Any,
) -> Trajectory:
    """A trajectory `<group>-k<idx>`; without `turns` it has two, without `reward` it has that of its success."""
    return Trajectory(
        uid=f"{group_id}-k{idx}",
        task={"task_id": "t"},
        task_text=task,
        family=fields.pop("family", "pick"),
        environment=None,
        generation_idx=idx,
        turns=turns or (make_turn(), make_turn("take mug 1 from desk 1", post="You take mug 1.")),
        stop_reason=stop_reason or (StopReason.SOLVED if success else StopReason.FAILED),
        success=success,
        opening=({"role": "user", "content": task},),
        environment_reward=float(success),
        reward=float(success) if reward is None else reward,
        **fields,
    )


def make_group(*trajectories: Trajectory, group_id: str = "g0") -> TrajectoryGroup:
    return TrajectoryGroup(group_id, trajectories)


def outcomes(*rewards: float, group_id: str = "g0") -> TrajectoryGroup:
    """A group with these 0/1 outcomes."""
    members = [make_trajectory(k, success=reward == 1, group_id=group_id) for k, reward in enumerate(rewards)]
    return TrajectoryGroup(group_id, tuple(members))
