"""HCAPO: the policy scores its successful actions again, knowing how the episode ended; likelier ones earn more."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..types import Trajectory
from .base import Batch, Needs, Ragged, normalised, returns
from .option_checks import check_choice, check_number


_BLOCK = "outcome"
_SHARPENING = 5.0  # the paper's temperature; as a divisor of log-probabilities it flattens
_LOW, _HIGH = 0.8, 1.2


@dataclass(frozen=True)
class HCAPO:
    """A_it = A_i + omega * (Q_it - mu) / sigma with Q_it = rho_it gamma^(T_i - t) r_i.

    p_it = exp(mean over k in M_it of log pi_T(y_k given P, h) / 5), where P is the final observation of the success
    itself; rho_it = clip(p_it / mean_u p_iu, 0.8, 1.2). Failures are not scored: rho = 1, so that with r = 0 all of
    their turns get one value. mu and sigma (sample standard deviation + 1e-4) go over all turns of the group; returns
    that differ by at most 1e-8 give 0. In a success a negative second term becomes 0. Nothing is compared with the
    likelihood without hindsight. A group of successes moves up, one of failures with r = 0 stays at 0.

    Args:
        omega (`float`, *optional*, defaults to `1.0`):
            omega, not negative.
        gamma (`float`, *optional*, defaults to `0.95`):
            gamma, in [0, 1].
        smoothing (`bool`, *optional*, defaults to `False`):
            Q_it <- (Q_it + Q_i,t+1) / 2 before the statistics, the last turn excepted, from unsmoothed values.

    Raises:
        ConfigurationError: a value outside its range.
    """

    omega: float = 1.0
    gamma: float = 0.95
    smoothing: bool = False

    def __post_init__(self) -> None:
        check_number("omega", self.omega, "[0, inf)", "0 leaves A_i alone.")
        check_number("gamma", self.gamma, "[0, 1]", "1 = no discount.")
        check_choice("smoothing", self.smoothing, (True, False), "True averages with the next turn.")

    @property
    def needs(self) -> Needs:
        return Needs(blocks=(_BLOCK,), scope="action", flat_groups=True, final_scores=True)

    def __call__(self, batch: Batch) -> Ragged:
        values = [[a] * len(t.turns) for t, a in zip(batch.trajectories, batch.outcome, strict=True)]
        for members in batch.usable:
            places = [(i, t) for i in members for t in range(len(values[i]))]
            worth = {i: self._worth(batch, batch.trajectories[i]) for i in members}
            relative = normalised([worth[i][t] for i, t in places], "sample", epsilon=1e-4)
            for (i, t), term in zip(places, relative, strict=True):
                # Do no harm: hindsight never takes from a success.
                values[i][t] += self.omega * (max(0.0, term) if batch.trajectories[i].success else term)
        return values

    def _worth(self, batch: Batch, trajectory: Trajectory) -> list[float]:
        """Q_it of each turn."""
        means = [
            _hindsight(batch, trajectory, t) if trajectory.success else None for t in range(len(trajectory.turns))
        ]
        worth = [
            rho * gain for rho, gain in zip(_likelihood_ratios(means), returns(trajectory, self.gamma), strict=True)
        ]
        if self.smoothing:
            worth = [(now + following) / 2 for now, following in itertools.pairwise(worth)] + worth[-1:]
        return worth


def _hindsight(batch: Batch, trajectory: Trajectory, turn_idx: int) -> float | None:
    """mean over M_it of log pi_T; None for a turn without a usable score."""
    score = batch.scores.get((trajectory.uid, turn_idx))
    guided = None if score is None or score.unscorable else score.guided.get(_BLOCK)
    if guided is None:
        return None
    logps = [logp for logp, is_action in zip(guided, trajectory.turns[turn_idx].action_mask, strict=True) if is_action]
    if not logps or not all(math.isfinite(logp) for logp in logps):
        return None
    return math.fsum(logps) / len(logps)


def _likelihood_ratios(means: Sequence[float | None]) -> list[float]:
    """rho_it; 1 for turns without a score, which the mean leaves out."""
    known = [mean for mean in means if mean is not None]
    top = max(known, default=0.0)  # the ratio does not change, and nothing underflows
    average = math.fsum(math.exp((mean - top) / _SHARPENING) for mean in known) / max(1, len(known))
    return [
        1.0 if mean is None else min(_HIGH, max(_LOW, math.exp((mean - top) / _SHARPENING) / average))
        for mean in means
    ]
