"""How sure a difference between two methods is, where the unit is a seed. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from taspo_trl.evaluation.statistics import Estimate


_MOST_PATTERNS = 20


def half_width(values: Sequence[float], seeds: int | None = None, confidence: float = 0.95) -> float:
    """Half of the t interval of a mean; NaN with fewer than two values.

    Args:
        values (`Sequence[float]`):
            One for each seed.
        seeds (`int`, *optional*):
            What so many seeds of this spread would give, in place of as many as there are.
        confidence (`float`, *optional*, defaults to `0.95`):
            Of the interval.
    """
    from scipy.stats import t

    if len(values) < 2:
        return math.nan
    count = seeds or len(values)
    return float(t.ppf((1 + confidence) / 2, count - 1) * np.std(values, ddof=1) / math.sqrt(count))


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> Estimate:
    """The mean with its t interval (n - 1 degrees of freedom)."""
    if not values:
        return Estimate(math.nan, math.nan, math.nan)
    value, half = math.fsum(values) / len(values), half_width(values, confidence=confidence)
    return Estimate(value, value - half, value + half)


def sign_flip_p(differences: Sequence[float]) -> float:
    """Exact two-sided sign-flip test: the share of all 2^n patterns of signs with a mean as far from 0.

    Raises:
        ValueError: more than 20 differences.
    """
    n = len(differences)
    if n > _MOST_PATTERNS:
        raise ValueError(f"{n} differences have {2**n} patterns of signs; at most {_MOST_PATTERNS} are enumerated.")
    if n == 0:
        return math.nan
    values = np.asarray(differences, dtype=np.float64)
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums + value, sums - value])
    # Patterns of equal sum differ by rounding.
    return float(np.mean(np.abs(sums) >= abs(values.sum()) - 1e-12 * max(1.0, float(np.abs(values).sum()))))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Adjusted p-values of Holm's step-down procedure: max over j <= i of min(1, (m - j + 1) p_(j))."""
    ordered = sorted(p_values, key=lambda name: p_values[name])
    adjusted, worst = {}, 0.0
    for rank, name in enumerate(ordered):
        worst = max(worst, min(1.0, (len(ordered) - rank) * p_values[name]))
        adjusted[name] = worst
    return {name: adjusted[name] for name in p_values}


def share(gains: Sequence[float], ceilings: Sequence[float], confidence: float = 0.95) -> Estimate:
    """mean(gains) / mean(ceilings) with Fieller's interval, paired by seed.

    All NaN where the ceiling is not above 0, and its limits where it cannot be told from 0: no share is known then.
    """
    from scipy.stats import t

    n = len(gains)
    if n != len(ceilings):
        raise ValueError(f"{n} gains and {len(ceilings)} ceilings are no pairs.")
    if n == 0 or math.fsum(ceilings) <= 0:
        return Estimate(math.nan, math.nan, math.nan)
    a, b = math.fsum(gains) / n, math.fsum(ceilings) / n
    if n < 2:
        return Estimate(a / b, math.nan, math.nan)
    cov = np.cov(gains, ceilings) / n
    quantile = float(t.ppf((1 + confidence) / 2, n - 1)) ** 2
    # All r with (a - r b)^2 <= t^2 var(a - r b).
    square, middle, rest = b * b - quantile * cov[1, 1], a * b - quantile * cov[0, 1], a * a - quantile * cov[0, 0]
    root = middle * middle - square * rest
    if square <= 0 or root < 0:
        return Estimate(a / b, math.nan, math.nan)
    return Estimate(a / b, (middle - math.sqrt(root)) / square, (middle + math.sqrt(root)) / square)


def is_equivalent(differences: Sequence[float], bound: float) -> bool:
    """Whether the 90 % interval lies inside plus or minus `bound`."""
    found = mean_interval(differences, 0.9)
    return bool(found.low > -bound and found.high < bound)


def seed_task_interval(
    differences: Sequence[Sequence[float]], confidence: float = 0.95, num_resamples: int = 2000, seed: int = 0
) -> Estimate:
    """The mean over seeds and tasks [S, N], seeds and tasks both drawn again: a check on the interval over seeds."""
    table = np.asarray(differences, dtype=np.float64)
    if table.ndim != 2 or not table.size:
        return Estimate(math.nan, math.nan, math.nan)
    rng = np.random.default_rng(seed)
    rows, columns = table.shape
    # The mean over drawn rows and columns, from counts.
    seeds = rng.multinomial(rows, [1 / rows] * rows, num_resamples) / rows
    tasks = rng.multinomial(columns, [1 / columns] * columns, num_resamples) / columns
    means = np.einsum("rs,sn,rn->r", seeds, table, tasks, optimize=True)
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Estimate(float(table.mean()), float(low), float(high))
