"""Correction for an engine that samples from slightly other probabilities than the trainer scores (TRL's options).

Pure. The engine runs the same weights with other kernels, another precision or merged adapters. The surrogate of each
token is multiplied by pi_old / pi_engine, truncated or masked; a token whose probability the engine could not report
keeps the ratio 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..generation.checks import ImportanceMode
from ..rows import Row
from ..types import Trajectory
from .batches import LossRow, with_logps


@dataclass(frozen=True, slots=True)
class ImportanceSettings:
    """TRL's `vllm_importance_sampling_*`.

    Args:
        mode (`str`):
            One ratio for each token or one for each sequence (here: each row); truncated to the bounds, or set to 0
            outside them.
        clip_min (`float`, *optional*), clip_max (`float`, *optional*):
            Bounds; None = none.
    """

    mode: ImportanceMode = "sequence_mask"
    clip_min: float | None = None
    clip_max: float | None = 3.0


def importance_settings(args: Any) -> ImportanceSettings | None:
    """What a [`~taspo_trl.TASPOConfig`] asks for; None = no correction."""
    if not args.use_vllm or not args.vllm_importance_sampling_correction:
        return None
    return ImportanceSettings(
        args.vllm_importance_sampling_mode,
        args.vllm_importance_sampling_clip_min,
        args.vllm_importance_sampling_clip_max,
    )


def importance_ratios(
    old_logps: Sequence[float],
    sampling_logps: Sequence[float | None],
    settings: ImportanceSettings,
    counts: Sequence[bool] | None = None,
) -> tuple[float, ...]:
    """The factor of each token of one row.

    Args:
        old_logps (`Sequence[float]`):
            log pi_old of the sampled tokens, as the trainer scores them.
        sampling_logps (`Sequence[float | None]`):
            The same as the engine reports them; None or non-finite = unknown.
        settings (`ImportanceSettings`):
            Level, constraint, bounds.
        counts (`Sequence[bool]`, *optional*):
            Which tokens carry loss; the others do not enter a sequence's ratio. None = all.

    Returns:
        `tuple[float, ...]`: with a sequence mode the same value for all tokens.
    """
    differences = log_differences(old_logps, sampling_logps)
    if counts is not None:
        differences = [one if is_real else None for one, is_real in zip(differences, counts, strict=True)]
    known = [0.0 if one is None else one for one in differences]
    if settings.mode.startswith("sequence"):
        return (_bounded(_exp(math.fsum(known)), settings),) * len(known)
    return tuple(_bounded(_exp(one), settings) for one in known)


def log_differences(old_logps: Sequence[float], sampling_logps: Sequence[float | None]) -> list[float | None]:
    """log pi_old - log pi_engine of each token; None where either is unknown."""
    return [
        old - sampled if sampled is not None and math.isfinite(sampled) and math.isfinite(old) else None
        for old, sampled in zip(old_logps, sampling_logps, strict=True)
    ]


def _bounded(ratio: float, settings: ImportanceSettings) -> float:
    low = -math.inf if settings.clip_min is None else settings.clip_min
    high = math.inf if settings.clip_max is None else settings.clip_max
    if settings.mode.endswith("truncate"):
        return min(max(ratio, low), high)
    return ratio if low <= ratio <= high else 0.0


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


# ---- rows -----------------------------------------------------------------------------------------------------------


def corrected_rows(
    loss_rows: Mapping[int, LossRow],
    rows: Sequence[Row],
    trajectories: Mapping[str, Trajectory],
    settings: ImportanceSettings,
) -> dict[int, LossRow]:
    """The rows with their ratios.

    Args:
        loss_rows (`Mapping[int, LossRow]`):
            Row index -> row with log pi_old.
        rows (`Sequence[Row]`), trajectories (`Mapping[str, Trajectory]`):
            What the indices stand for; trajectories by uid.
        settings (`ImportanceSettings`):
            As in [`importance_ratios`].
    """
    corrected = {}
    for k, row in loss_rows.items():
        ratios = importance_ratios(
            _old_logps(row), sampling_logps(rows[k], trajectories), settings, [c != 0 for c in row.coefficients]
        )
        corrected[k] = with_logps(row, importance_ratios=ratios)
    return corrected


def sampling_logps(row: Row, trajectories: Mapping[str, Trajectory]) -> list[float | None]:
    """What the engine reported for each sampled token of a row."""
    values: list[float | None] = []
    for turn in row.turns:
        reported = trajectories[row.traj_uid].turns[turn.turn_idx].sampling_logps
        values.extend([None] * turn.length if reported is None else reported)
    return values


def _old_logps(row: LossRow) -> tuple[float, ...]:
    if row.old_logps is None:
        raise ValueError("The correction needs log pi_old of every row.")
    return row.old_logps


# ---- metrics --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CorrectionSums:
    """What one process's rows contribute to the metrics."""

    differences: tuple[float, int, float]
    """Sum, number and maximum of |log pi_old - log pi_engine| over the known tokens that carry loss."""
    ratios: tuple[float, int, float, float]
    """Sum, number, minimum and maximum of the ratios: of tokens, or of rows with a sequence mode."""
    num_tokens: int
    """Tokens that carry loss."""


def correction_sums(
    loss_rows: Mapping[int, LossRow],
    rows: Sequence[Row],
    trajectories: Mapping[str, Trajectory],
    settings: ImportanceSettings,
) -> CorrectionSums:
    """Sums over the rows of one process; arguments as in [`corrected_rows`], whose result `loss_rows` is."""
    gaps: list[float] = []
    ratios: list[float] = []
    num_tokens = 0
    for k, row in loss_rows.items():
        is_real = [coefficient != 0 for coefficient in row.coefficients]
        differences = log_differences(_old_logps(row), sampling_logps(rows[k], trajectories))
        gaps += [abs(one) for one, real in zip(differences, is_real, strict=True) if real and one is not None]
        real_ratios = [one for one, real in zip(row.importance_ratios or (), is_real, strict=True) if real]
        ratios += real_ratios[:1] if settings.mode.startswith("sequence") else real_ratios
        num_tokens += sum(is_real)
    return CorrectionSums(
        (math.fsum(gaps), len(gaps), max(gaps, default=0.0)),
        (math.fsum(ratios), len(ratios), min(ratios, default=math.inf), max(ratios, default=-math.inf)),
        num_tokens,
    )


def correction_metrics(parts: Sequence[CorrectionSums]) -> dict[str, float]:
    """TRL's `sampling/*` over all processes, and the share of tokens without a reported probability."""
    gap_count = sum(part.differences[1] for part in parts)
    ratio_count = sum(part.ratios[1] for part in parts)
    num_tokens = sum(part.num_tokens for part in parts)
    if not ratio_count:
        return {}
    metrics = {
        "sampling/importance_sampling_ratio/min": min(part.ratios[2] for part in parts),
        "sampling/importance_sampling_ratio/mean": math.fsum(part.ratios[0] for part in parts) / ratio_count,
        "sampling/importance_sampling_ratio/max": max(part.ratios[3] for part in parts),
        "sampling/missing_logp_share": 1 - gap_count / num_tokens,
    }
    if gap_count:
        metrics["sampling/sampling_logp_difference/mean"] = (
            math.fsum(part.differences[0] for part in parts) / gap_count
        )
        metrics["sampling/sampling_logp_difference/max"] = max(part.differences[2] for part in parts)
    return metrics
