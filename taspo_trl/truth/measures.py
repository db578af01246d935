"""How near the credit of turns comes to what they were worth: ranks inside trajectories, signs, dose, intervals.

Pure. Everything is compared inside trajectories: credit is only moved between the turns of one. Each measure is made
of sums over groups, so that a bootstrap over groups costs one product of matrices; methods that are measured on the
same groups share their draws, and so their differences are paired.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..evaluation.statistics import Estimate


_EQUAL = 1e-9


@dataclass(frozen=True)
class Labelled:
    """One trajectory's turns.

    Args:
        group (`str`):
            What the bootstrap draws.
        credit (`Sequence[float]`):
            C_t: the mean of A~ over the reply tokens of turn t.
        labels (`Sequence[float]`):
            What turn t was worth.
        weights (`Sequence[float]`, *optional*):
            C_t / A_i, for the dose; empty where A_i = 0.
    """

    group: str
    credit: Sequence[float]
    labels: Sequence[float]
    weights: Sequence[float] = ()


@dataclass(frozen=True)
class Agreement:
    """What [`agreement`] finds, each with its interval."""

    auc: Estimate
    """Share of the pairs (a turn above the threshold, another one of the same trajectory) whose first has more credit;
    ties count half. Constant credit has exactly 0.5."""
    rank_correlation: Estimate
    """Of credit and labels, by their ranks inside the trajectory (Spearman). NaN for constant credit."""
    sign: Estimate
    """Share of the turns with credit and label other than 0 in which they have the same sign."""
    dose: Estimate
    """Root mean square of weight - 1: how far the method moves away from the outcome's own credit."""
    num_turns: int
    num_trajectories: int
    num_groups: int

    def to_json(self) -> dict[str, Any]:
        """Plain data; what is not a number becomes None."""
        data: dict[str, Any] = {
            "turns": self.num_turns,
            "trajectories": self.num_trajectories,
            "groups": self.num_groups,
        }
        for name in MEASURES:
            data[name] = getattr(self, name).to_json()
        return data


MEASURES = ("auc", "rank_correlation", "sign", "dose")


def agreement(
    trajectories: Sequence[Labelled], threshold: float = 0.0, num_resamples: int = 2000, seed: int = 0
) -> Agreement:
    """How well credit agrees with labels.

    Args:
        trajectories (`Sequence[Labelled]`):
            Trajectories of several groups.
        threshold (`float`, *optional*, defaults to `0.0`):
            Turns with a label above it are the ones that should have more credit.
        num_resamples (`int`, *optional*, defaults to `2000`), seed (`int`, *optional*, defaults to `0`):
            Of the bootstrap over groups.
    """
    sums, groups = _sums(trajectories, threshold)
    draws = _draws(len(groups), num_resamples, seed)
    auc, rank_correlation, sign, dose = (_estimate(sums, name, draws) for name in MEASURES)
    num_turns = sum(len(one.labels) for one in trajectories)
    return Agreement(auc, rank_correlation, sign, dose, num_turns, len(trajectories), len(groups))


def difference(
    first: Sequence[Labelled],
    second: Sequence[Labelled],
    threshold: float = 0.0,
    num_resamples: int = 2000,
    seed: int = 0,
) -> dict[str, Estimate]:
    """Measure -> its value for `first` minus that for `second`, paired: both hold the same groups.

    Args:
        first (`Sequence[Labelled]`), second (`Sequence[Labelled]`):
            Two methods on the same trajectories.
        threshold, num_resamples, seed:
            As in [`agreement`].
    """
    (one, groups), (other, others) = _sums(first, threshold), _sums(second, threshold)
    if groups != others:
        raise ValueError("a paired difference needs the same groups on both sides.")
    draws = _draws(len(groups), num_resamples, seed)
    found = {}
    for name in MEASURES:
        value = float(_value(one.sum(axis=0), name) - _value(other.sum(axis=0), name))
        drawn = _value(draws @ one, name) - _value(draws @ other, name)
        found[name] = _interval(value, drawn)
    return found


def reliability(trajectories: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float:
    """How much of the labels' variance inside trajectories is no noise: the correlation of two halves, stepped up to
    the whole (Spearman-Brown). NaN without variance; its square root is what credit without a fault would correlate.

    Args:
        trajectories (`Sequence[tuple[Sequence[float], Sequence[float]]]`):
            The labels of each trajectory's turns from either half of the continuations.
    """
    xy = xx = yy = 0.0
    for first, second in trajectories:
        x, y = _centred(np.asarray(first, dtype=float)), _centred(np.asarray(second, dtype=float))
        xy, xx, yy = xy + float(x @ y), xx + float(x @ x), yy + float(y @ y)
    if xx <= 0 or yy <= 0:
        return math.nan
    halves = xy / math.sqrt(xx * yy)
    return 2 * halves / (1 + halves) if halves > -1 else math.nan


# ---- sums over groups ----------------------------------------------------------------------------------------------

_COLUMNS = ("wins", "pairs", "xy", "xx", "yy", "same", "signed", "squares", "weights")


def _sums(trajectories: Sequence[Labelled], threshold: float) -> tuple[np.ndarray, list[str]]:
    """(groups, columns) and the groups' names."""
    groups = sorted({one.group for one in trajectories})
    place = {name: k for k, name in enumerate(groups)}
    sums = np.zeros((len(groups), len(_COLUMNS)))
    for one in trajectories:
        sums[place[one.group]] += _sums_of(one, threshold)
    return sums, groups


def _sums_of(one: Labelled, threshold: float) -> np.ndarray:
    credit, labels = np.asarray(one.credit, dtype=float), np.asarray(one.labels, dtype=float)
    weights = np.asarray(one.weights, dtype=float)
    gap = credit[labels > threshold][:, None] - credit[labels <= threshold][None, :]
    gap = np.where(np.abs(gap) <= _EQUAL, 0.0, gap)
    wins = float((gap > 0).sum() + 0.5 * (gap == 0).sum())
    x, y = _centred(ranks(credit)), _centred(ranks(labels))
    is_signed = (np.abs(credit) > _EQUAL) & (np.abs(labels) > _EQUAL)
    same = float((np.sign(credit) == np.sign(labels))[is_signed].sum())
    dose = float(((weights - 1) ** 2).sum())
    return np.array([wins, gap.size, x @ y, x @ x, y @ y, same, is_signed.sum(), dose, weights.size], dtype=float)


def ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 0, ties sharing their mean; values that differ by rounding alone are ties."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    starts = np.flatnonzero(np.concatenate([[True], np.diff(ordered) > _EQUAL])) if len(values) else np.zeros(0, int)
    found = np.empty(len(values))
    for start, stop in zip(starts, [*starts[1:], len(values)], strict=True):
        found[order[start:stop]] = (start + stop - 1) / 2
    return found


def _centred(values: np.ndarray) -> np.ndarray:
    return values - values.mean() if len(values) else values


def _value(sums: np.ndarray, name: str) -> Any:
    """A measure of each row of sums."""
    column = {one: sums[..., k] for k, one in enumerate(_COLUMNS)}
    with np.errstate(invalid="ignore", divide="ignore"):
        if name == "auc":
            return column["wins"] / column["pairs"]
        if name == "sign":
            return column["same"] / column["signed"]
        if name == "dose":
            return np.sqrt(column["squares"] / column["weights"])
        return column["xy"] / np.sqrt(column["xx"] * column["yy"])


def _draws(num_groups: int, num_resamples: int, seed: int) -> np.ndarray:
    """(resamples, groups): how often each group was drawn."""
    if not num_groups:
        return np.zeros((num_resamples, 0))
    rng = np.random.default_rng(seed)
    return rng.multinomial(num_groups, np.full(num_groups, 1 / num_groups), num_resamples).astype(float)


def _estimate(sums: np.ndarray, name: str, draws: np.ndarray) -> Estimate:
    return _interval(float(_value(sums.sum(axis=0), name)), _value(draws @ sums, name))


def _interval(value: float, drawn: np.ndarray) -> Estimate:
    known = drawn[np.isfinite(drawn)]
    if not math.isfinite(value) or not len(known):
        return Estimate(value, math.nan, math.nan)
    low, high = np.quantile(known, [0.025, 0.975])
    return Estimate(value, float(low), float(high))
