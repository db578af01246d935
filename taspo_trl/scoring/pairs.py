"""Guided trajectories to rows that are scored in pairs, and their log-probabilities back to turns.

Pure. Only what can use a score is scored: trajectories with guidance, and of them the turns whose action can be
located and whose context can take the guidance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..rows import MIN_SPLICE_INDEX, Row, RowTurn
from ..types import Guidance, Trajectory, TurnScore
from .paired import PairedLogps, PairedRow


@dataclass(frozen=True)
class PairPlan:
    """What to score of a batch."""

    pairs: tuple[PairedRow, ...]
    turns: tuple[tuple[tuple[str, int], ...], ...]
    """For each pair the (trajectory uid, turn index) of the turns whose action tokens it holds, in order."""
    unscorable: Mapping[tuple[str, int], str]
    """(trajectory uid, turn index) -> why that turn of a guided trajectory is not scored."""


def plan_pairs(
    rows: Sequence[Row],
    trajectories: Mapping[str, Trajectory],
    guidance: Mapping[str, Guidance],
    window: int | None = None,
) -> PairPlan:
    """The paired rows of all guided trajectories.

    Args:
        rows (`Sequence[Row]`):
            Rows of the batch.
        trajectories (`Mapping[str, Trajectory]`), guidance (`Mapping[str, Guidance]`):
            By trajectory uid. Trajectories without guidance are passed over.
        window (`int`, *optional*):
            Positions of the model.
    """
    pairs, turns = [], []
    unscorable: dict[tuple[str, int], str] = {}
    for row in rows:
        one = guidance.get(row.traj_uid)
        if not one:
            continue
        trajectory = trajectories[row.traj_uid]
        positions: list[int] = []
        members: list[tuple[str, int]] = []
        for turn in row.turns:
            reason = unscorable_reason(trajectory, turn, row, len(one.block_ids), window)
            if reason:
                unscorable[row.traj_uid, turn.turn_idx] = reason
                continue
            mask = trajectory.turns[turn.turn_idx].action_mask
            positions.extend(turn.start + k for k, is_action in enumerate(mask) if is_action)
            members.append((row.traj_uid, turn.turn_idx))
        if members and row.splice_index is not None:
            # Nothing behind the last wanted token can change it.
            pairs.append(PairedRow(row.ids[: positions[-1] + 1], row.splice_index, one.block_ids, tuple(positions)))
            turns.append(tuple(members))
    return PairPlan(tuple(pairs), tuple(turns), unscorable)


def unscorable_reason(
    trajectory: Trajectory, turn: RowTurn, row: Row, num_block_tokens: int, window: int | None
) -> str:
    """Why a turn cannot be scored; empty when it can.

    A turn is scorable when its action mask is not empty, its row's context can take the guidance, and context, block
    and reply fit the model together: nothing is ever cut.
    """
    if not any(trajectory.turns[turn.turn_idx].action_mask):
        return "empty_mask"
    if row.splice_index is None or row.splice_index < MIN_SPLICE_INDEX:
        return "no_splice_index"
    if window is not None and turn.start + turn.length + num_block_tokens > window:
        return "over_window"
    return ""


def turn_scores(
    plan: PairPlan, logps: Sequence[PairedLogps], trajectories: Mapping[str, Trajectory]
) -> dict[tuple[str, int], TurnScore]:
    """(trajectory uid, turn index) -> score, for every turn of `plan`.

    A turn with a log-probability that is not finite keeps its numbers and is marked `non_finite`.
    """
    scores = {key: TurnScore(unscorable=reason) for key, reason in plan.unscorable.items()}
    for members, scored in zip(plan.turns, logps, strict=True):
        offset = 0
        for uid, turn_idx in members:
            size = sum(trajectories[uid].turns[turn_idx].action_mask)
            plain, guided = scored.plain[offset : offset + size], scored.guided[offset : offset + size]
            offset += size
            is_finite = all(math.isfinite(value) for value in (*plain, *guided))
            scores[uid, turn_idx] = TurnScore(plain, guided, unscorable="" if is_finite else "non_finite")
    return scores


def scores_of(trajectory: Trajectory, scores: Mapping[tuple[str, int], TurnScore]) -> list[TurnScore]:
    """The scores of a trajectory's turns in order; a turn without reply tokens has none."""
    return [
        scores.get((trajectory.uid, turn_idx), TurnScore(unscorable="no_reply"))
        for turn_idx in range(len(trajectory.turns))
    ]
