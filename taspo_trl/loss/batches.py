"""Rows with everything their loss needs, and the tensors of one micro-batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..rows import Row, token_coefficient
from ..scoring.layout import lay_out
from ..scoring.whole import TokenScores
from ..types import FinishReason, Trajectory


@dataclass(frozen=True, slots=True)
class LossRow:
    """A row with one value for each of its N loss tokens, in order of position."""

    ids: tuple[int, ...]
    positions: tuple[int, ...]
    """Indices into `ids` of the sampled tokens."""
    coefficients: tuple[float, ...]
    """c_itk, times N_row / n_k."""
    advantages: tuple[float, ...]
    """A~_itk."""
    old_logps: tuple[float, ...] | None = None
    """None when the update is on-policy: the ratio is then 1 and its gradient that of the log-probability."""
    ref_logps: tuple[float, ...] | None = None
    importance_ratios: tuple[float, ...] | None = None
    """pi_old / pi_engine, truncated or masked; None without the correction."""
    distill_coefficients: tuple[float, ...] | None = None
    """m_k of the distillation term; None without one."""
    teacher: TokenScores | None = None
    """What the teacher's branch says of the loss tokens; None where no turn of the row has a score."""


_TEACHER = "teacher."

EMPTY_ROW = LossRow(ids=(0, 0), positions=(1,), coefficients=(0.0,), advantages=(0.0,))
"""A row that contributes nothing: keeps processes in step."""


def loss_row(
    row: Row, trajectory: Trajectory, *, num_trajectories: int, factor: float, mask_truncated: bool = False
) -> LossRow:
    """The loss tokens of a row: every sampled token of its turns. Advantages are still 0.

    Args:
        row (`Row`), trajectory (`Trajectory`):
            What was played.
        num_trajectories (`int`):
            B, over the global batch.
        factor (`float`):
            N_row / n_k of the row's optimizer step.
        mask_truncated (`bool`, *optional*, defaults to `False`):
            TRL's `mask_truncated_completions`: replies cut at their token limit carry no loss, but count in T_i.
    """
    positions: list[int] = []
    coefficients: list[float] = []
    for turn in row.turns:
        is_cut = trajectory.turns[turn.turn_idx].finish_reason is FinishReason.LENGTH
        coefficient = factor * token_coefficient(num_trajectories, len(trajectory.turns), turn.length)
        positions.extend(range(turn.start, turn.start + turn.length))
        coefficients.extend([0.0 if mask_truncated and is_cut else coefficient] * turn.length)
    return LossRow(row.ids, tuple(positions), tuple(coefficients), (0.0,) * len(positions))


def with_credit(loss_row: LossRow, row: Row, advantages: Sequence[Sequence[float]]) -> LossRow:
    """The row with A~_itk on every sampled token.

    Args:
        loss_row (`LossRow`), row (`Row`):
            One row.
        advantages (`Sequence[Sequence[float]]`):
            A~_itk of its trajectory, `[turn][reply token]`.
    """
    return replace(loss_row, advantages=tuple(a for turn in row.turns for a in advantages[turn.turn_idx]))


def with_logps(
    row: LossRow,
    old_logps: Sequence[float] | None = None,
    ref_logps: Sequence[float] | None = None,
    importance_ratios: Sequence[float] | None = None,
) -> LossRow:
    """The row with log-probabilities of its loss tokens."""
    values: dict[str, Any] = {"old_logps": old_logps, "ref_logps": ref_logps, "importance_ratios": importance_ratios}
    given: dict[str, Any] = {name: tuple(value) for name, value in values.items() if value is not None}
    return replace(row, **given)


def collate(
    rows: Sequence[LossRow],
    *,
    pad_token_id: int = 0,
    pad_to_multiple_of: int | None = None,
    padding_free: bool = False,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> dict[str, torch.Tensor]:
    """The tensors of a micro-batch.

    Returns:
        `dict[str, torch.Tensor]`: the inputs of [`~taspo_trl.scoring.layout.Layout`]; and over the N loss tokens of
        all rows: `positions` (flat index of the position that predicts the token), `rows` (index of its row),
        `targets`, `coefficients`, `advantages` and, where the rows have them, `old_logps`, `ref_logps`,
        `importance_ratios`, `distill_coefficients`.
    """
    layout = lay_out(
        [row.ids for row in rows],
        padding_free=padding_free,
        pad_token_id=pad_token_id,
        pad_to_multiple_of=pad_to_multiple_of,
    )
    flat = [start + p - 1 for start, row in zip(layout.starts, rows, strict=True) for p in row.positions]
    batch = {
        **layout.inputs,
        "positions": torch.tensor(flat, dtype=torch.long),
        "rows": torch.tensor([k for k, row in enumerate(rows) for _ in row.positions], dtype=torch.long),
        "targets": torch.tensor([row.ids[p] for row in rows for p in row.positions], dtype=torch.long),
    }
    for name in ("coefficients", "advantages", "old_logps", "ref_logps", "importance_ratios", "distill_coefficients"):
        columns = [getattr(row, name) for row in rows]
        if all(column is not None for column in columns):
            batch[name] = torch.tensor([value for column in columns for value in column], dtype=dtype)
    return {name: tensor.to(device) for name, tensor in batch.items()}


def logps_of(values: torch.Tensor, rows: Sequence[LossRow]) -> list[tuple[float, ...]]:
    """A flat (N,) tensor over a micro-batch's loss tokens, split by row."""
    flat = iter(values.double().tolist())
    return [tuple(next(flat) for _ in row.positions) for row in rows]


def to_state(row: LossRow) -> Mapping[str, torch.Tensor | None]:
    """A tensor for each field, for a checkpoint that loads fast and without running code."""
    dtypes = {"ids": torch.long, "positions": torch.long}
    values = {name: getattr(row, name) for name in LossRow.__slots__ if name != "teacher"}
    state = {
        name: None if value is None else torch.tensor(value, dtype=dtypes.get(name, torch.float64))
        for name, value in values.items()
    }
    if row.teacher is not None:
        state |= {f"{_TEACHER}{name}": column for name, column in row.teacher.columns().items()}
    return state


def from_state(state: Mapping[str, torch.Tensor | None]) -> LossRow:
    """The inverse of [`to_state`]."""
    columns: dict[str, Any] = {
        name.removeprefix(_TEACHER): value for name, value in state.items() if name.startswith(_TEACHER)
    }
    values: dict[str, Any] = {
        name: tuple(value.tolist()) if value is not None else None
        for name, value in state.items()
        if not name.startswith(_TEACHER)
    }
    return LossRow(**values, teacher=TokenScores(**columns) if columns else None)
