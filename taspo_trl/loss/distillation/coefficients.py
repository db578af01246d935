"""How much each distilled token counts in its optimizer step: m_k of the distillation term.

Pure. Every process computes the same numbers from the rows of the global batch, so that a term's loss is the same sum
over any partition into micro-batches and processes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ...rows import Row, token_coefficient
from .base import Reduction


def distill_coefficients(
    rows: Sequence[Row],
    steps: Sequence[int],
    scored: Collection[tuple[str, int]],
    *,
    reduction: Reduction,
    share: float = 1.0,
    masked: Collection[tuple[str, int]] = (),
) -> list[tuple[float, ...]]:
    """m_k of every sampled token of every row; 0 for turns without a teacher's score.

    `"nested"`: c_itk = 1 / (B * T_i * |R_it|), where B counts the trajectories that have a scored turn and T_i their
    scored turns, times N / n_s of the row's optimizer step (rows with a scored turn, in all and in the step).
    `"token_mean"`: 1 / N, with the N distilled tokens of the row's optimizer step.

    Args:
        rows (`Sequence[Row]`), steps (`Sequence[int]`):
            The rows of the global batch, and the optimizer step into which each was dealt.
        scored (`Collection[tuple[str, int]]`):
            (trajectory uid, turn index) of the turns that have a teacher's score.
        reduction (`str`):
            `"nested"` or `"token_mean"`.
        share (`float`, *optional*, defaults to `1.0`):
            This batch's share of an optimizer step, when several rollout batches feed one step.
        masked (`Collection[tuple[str, int]]`, *optional*):
            Turns that lose their loss but keep their place in T_i, as with `mask_truncated_completions`; for
            `"token_mean"` their tokens do not count.

    Returns:
        `list[tuple[float, ...]]`: for each row one value for each sampled token, turn by turn.
    """
    turns_of: dict[str, int] = {}
    tokens_in: dict[int, int] = {}
    rows_in: dict[int, int] = {}
    for row, step in zip(rows, steps, strict=True):
        members = [turn for turn in row.turns if (row.traj_uid, turn.turn_idx) in scored]
        if not members:
            continue
        rows_in[step] = rows_in.get(step, 0) + 1
        turns_of[row.traj_uid] = turns_of.get(row.traj_uid, 0) + len(members)
        counted = [turn.length for turn in members if (row.traj_uid, turn.turn_idx) not in masked]
        tokens_in[step] = tokens_in.get(step, 0) + sum(counted)

    def coefficient(row: Row, step: int, turn_idx: int, length: int) -> float:
        place = (row.traj_uid, turn_idx)
        if place not in scored or place in masked:
            return 0.0
        if reduction == "token_mean":
            return share / tokens_in[step]
        factor = sum(rows_in.values()) / rows_in[step]
        return share * factor * token_coefficient(len(turns_of), turns_of[row.traj_uid], length)

    return [
        tuple(coefficient(row, step, turn.turn_idx, turn.length) for turn in row.turns for _ in range(turn.length))
        for row, step in zip(rows, steps, strict=True)
    ]
