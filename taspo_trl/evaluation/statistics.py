"""How sure a number is: intervals of rates and of means over families. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Rate:
    """A share of successes with its 95 % interval."""

    num_successes: int
    num_plays: int
    low: float
    high: float

    @property
    def value(self) -> float:
        return self.num_successes / self.num_plays if self.num_plays else math.nan


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval; NaN where there is none."""

    value: float
    low: float
    high: float

    def to_json(self) -> list[float | None]:
        """[value, low, high]; what is not a number becomes None."""
        return [one if math.isfinite(one) else None for one in (self.value, self.low, self.high)]

    def __str__(self) -> str:
        return "-" if math.isnan(self.value) else f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def wilson_rate(outcomes: Sequence[bool], confidence: float = 0.95) -> Rate:
    """A success rate with its Wilson score interval."""
    from scipy.stats import binomtest

    if not outcomes:
        return Rate(0, 0, math.nan, math.nan)
    interval = binomtest(sum(outcomes), len(outcomes)).proportion_ci(confidence, method="wilson")
    return Rate(sum(outcomes), len(outcomes), float(interval.low), float(interval.high))


def bootstrap_macro(
    strata: Sequence[Sequence[float]], confidence: float = 0.95, num_resamples: int = 2000, seed: int = 0
) -> tuple[float, float, float]:
    """(macro mean, low, high): the mean of the strata's means, resampling within each stratum."""
    import numpy as np

    strata = [stratum for stratum in strata if len(stratum)]
    if not strata:
        return math.nan, math.nan, math.nan
    rng = np.random.default_rng(seed)
    value = float(np.mean([np.mean(stratum) for stratum in strata]))
    means = np.zeros(num_resamples)
    for stratum in strata:
        data = np.asarray(stratum, dtype=np.float64)
        means += data[rng.integers(0, len(data), (num_resamples, len(data)))].mean(axis=1)
    low, high = np.quantile(means / len(strata), [(1 - confidence) / 2, (1 + confidence) / 2])
    return value, float(low), float(high)


def mean(values: Sequence[float]) -> float:
    """The mean; NaN of nothing."""
    return math.fsum(values) / len(values) if values else math.nan
