"""TASPO between the turns, FACTOR between the tokens of each action. Pure.

    A~_itk = L rho_itk A_i w_it on the L action tokens, A_i w_it on the others

with w from the `aligned` block (E4 to E7) and rho from `serl_immediate` (HTA). Both conserve: the w_it of a trajectory
have mean one, and the mean over each action, hence over each reply, stays A_i w_it. Nobody has published the pair.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from ..errors import InvariantError
from ..types import Trajectory
from .base import Batch, Guarantees, Needs, Ragged, Weighed, combined, product, why_unchanged
from .factor import HTA
from .option_checks import check_number, check_teacher
from .taspo import action_support, credit_weights


@dataclass(frozen=True)
class TASPOFactor:
    """The composition of the two weight rules.

    Args:
        clip, threshold, temperature, weight_range, step_size:
            TASPO's c, kappa, tau, eps_w and eta, see [`~taspo_trl.credit.credit_weights`].
        block (`str`, *optional*, defaults to `"aligned"`):
            What TASPO's teacher sees.
        share, zero_at, warmup, token_clip, token_temperature, token_block:
            HTA's `share`, `zero_at`, `warmup`, `clip`, `temperature` and `block`, see
            [`~taspo_trl.credit.factor.HTA`].

    Raises:
        ConfigurationError: an option is outside its range.
    """

    clip: float = 2.0
    threshold: float = 0.0
    temperature: float = 0.5
    weight_range: float = 0.4
    step_size: float | None = None
    block: str = "aligned"
    share: float = 0.7
    zero_at: int | None = 50
    warmup: int = 10
    token_clip: float = 3.0
    token_temperature: float = 1.0
    token_block: str = "serl_immediate"
    hta: HTA = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_number("clip", self.clip, "(0, inf)", "The paper takes 2.")
        check_number("threshold", self.threshold, "[0, inf)", "The paper takes 0; its Table C.3 0.05.")
        check_number("temperature", self.temperature, "(0, inf)", "The paper takes 0.5.")
        check_number("weight_range", self.weight_range, "[0, 1)", "Weights must stay positive; the paper takes 0.4.")
        if self.step_size is not None:
            check_number("step_size", self.step_size, "[0, inf)", "None takes half of `weight_range`.")
        check_teacher(self.block)
        check_number("token_clip", self.token_clip, "(0, inf)", "FACTOR takes 3.")
        check_number("token_temperature", self.token_temperature, "(0, inf)", "FACTOR takes 1.")
        hta = HTA(
            self.share, self.zero_at, self.warmup, self.token_clip, self.token_temperature, "turn", self.token_block
        )
        object.__setattr__(self, "hta", hta)

    @property
    def needs(self) -> Needs:
        return combined(Needs((self.block,), "action"), self.hta.needs)

    @property
    def guarantees(self) -> Guarantees:
        return Guarantees(mean_one="turns", per_trajectory=True)

    def __call__(self, batch: Batch, advantages: Ragged) -> Weighed:
        """A~_itk.

        Raises:
            InvariantError: the mean over a reply is not A_i w_it.
        """
        weights, supports, fallbacks = [], [], []
        for t, row, a in zip(batch.trajectories, advantages, batch.outcome, strict=True):
            of_turns = [self._support(batch, t, turn_idx) for turn_idx in range(len(t.turns))]
            weights.append(credit_weights(of_turns, a, self.temperature, self.weight_range, self.step_size))
            supports.append(of_turns)
            few = "" if sum(d is not None for d in of_turns) > 1 else "fewer_than_two_scorable_turns"
            fallbacks.append(why_unchanged(t, row, any(d is not None for d in of_turns)) or few)
        turns = [[a * w for a, w in zip(*pair, strict=True)] for pair in zip(advantages, weights, strict=True)]
        spread = self.hta(batch, turns)
        _check_means(batch, turns, spread)
        still = [outside if inside else "" for inside, outside in zip(spread.fallbacks or (), fallbacks, strict=True)]
        both = product(weights, spread.token_weights or [])
        return replace(spread, weights=weights, supports=supports, fallbacks=still, token_weights=both)

    def _support(self, batch: Batch, t: Trajectory, turn_idx: int) -> float | None:
        """d_it (E4)."""
        shifts = batch.action_shifts(t, turn_idx, self.block)
        return None if shifts is None else action_support(shifts, self.clip, self.threshold)


def _check_means(batch: Batch, turns: Ragged, spread: Weighed) -> None:
    for t, row, tokens in zip(batch.trajectories, turns, spread.advantages, strict=True):
        for value, turn in zip(row, tokens, strict=True):
            if turn and abs(math.fsum(turn) / len(turn) - value) > 1e-6 * max(1.0, abs(value)):
                raise InvariantError(
                    f"The tokens of trajectory {t.uid!r} do not keep their turn's credit {value!r}: their mean is "
                    f"{math.fsum(turn) / len(turn)!r}. This is a bug in taspo_trl; please report it with its record."
                )
