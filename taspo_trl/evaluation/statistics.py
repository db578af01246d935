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


def macro_rate(strata: Sequence[Sequence[bool]], confidence: float = 0.95) -> tuple[float, float, float]:
    """(macro mean, low, high): the mean of the strata's success rates, with an interval that is never a point.

    The strata's Wilson intervals are combined by the distances of their ends from the rates (MOVER; Zou and Donner,
    2008): a stratum of successes only, or of failures only, is as uncertain as its size says. Resampling it would draw
    the same outcome for ever.

        low = mean(p_i) - sqrt(sum((p_i - l_i)^2)) / k

    Args:
        strata (`Sequence[Sequence[bool]]`):
            The outcomes of each stratum; empty ones do not count.
        confidence (`float`, *optional*, defaults to `0.95`):
            Of the interval.
    """
    rates = [wilson_rate(stratum, confidence) for stratum in strata if len(stratum)]
    if not rates:
        return math.nan, math.nan, math.nan
    value = mean([one.value for one in rates])
    below = math.sqrt(math.fsum((one.value - one.low) ** 2 for one in rates)) / len(rates)
    above = math.sqrt(math.fsum((one.high - one.value) ** 2 for one in rates)) / len(rates)
    return value, max(0.0, value - below), min(1.0, value + above)


def mean(values: Sequence[float]) -> float:
    """The mean; NaN of nothing."""
    return math.fsum(values) / len(values) if values else math.nan
