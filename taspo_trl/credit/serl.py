"""SERL: environment feedback scales the tokens of the action, the reward keeps the direction (arXiv:2605.19447). Pure.

    w_k = clip(exp(s Delta_k), 1 - eps, 1 + eps),  s = sign(A)
    A~_k = A [(1 - lambda_n) + lambda_n w_k],      lambda_n = lambda max(0, 1 - n / zero_at)

on the action tokens between their tags, of turns that have a block; every other token keeps A. That is RLSD's formula
on fewer tokens. The mean over an action is not kept: `credit/action_mean_drift` reports how far it moves.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..types import Trajectory, Turn
from .base import Batch, Guarantees, Needs, Ragged, Teacher, Weighed, share_at, tilt, weigh_tokens
from .option_checks import check_choice, check_number, check_schedule, check_teacher


def inside_the_tags(turn: Turn) -> Sequence[bool]:
    """Action tokens without the tags, over R_it; M_it where the turn did not record them."""
    return turn.content_mask or turn.action_mask


@dataclass(frozen=True)
class SERL:
    """The weight rule of SERL.

    Args:
        share (`float`, *optional*, defaults to `0.5`):
            lambda, the part of A that the weights move.
        zero_at (`int`, *optional*, defaults to `50`):
            Updates until lambda_n is 0. 0 = constant, None = a third of the run.
        clip (`float`, *optional*, defaults to `0.2`):
            eps.
        inside_tags (`bool`, *optional*, defaults to `True`):
            Weigh only what stands between the action tags. False weighs the tags too (all of M_it).
        block (`str`, *optional*, defaults to `"serl_immediate"`):
            The feedback that the teacher sees: one of the `serl_*` blocks.
        teacher (`str`, *optional*, defaults to `"stale"`):
            Who plays the guided branch, see [`~taspo_trl.credit.base.Needs`]; by default a copy of the policy, taken
            every `teacher_every` updates.

    Raises:
        ConfigurationError: an option is outside its range.
    """

    share: float = 0.5
    zero_at: int | None = 50
    clip: float = 0.2
    inside_tags: bool = True
    block: str = "serl_immediate"
    teacher: Teacher = "stale"
    teacher_every: int = 10
    teacher_rate: float = 0.05

    def __post_init__(self) -> None:
        check_schedule(self.share, self.zero_at)
        check_number("clip", self.clip, "(0, 1)", "It is epsilon: weights lie in 1 ± clip and stay positive.")
        check_choice("inside_tags", self.inside_tags, (True, False), "False weighs the tags of an action too.")
        check_teacher(self.block, self.teacher, self.teacher_every, self.teacher_rate)

    @property
    def needs(self) -> Needs:
        return Needs((self.block,), "action", self.teacher, self.teacher_every, self.teacher_rate)

    @property
    def guarantees(self) -> Guarantees:
        reach = self.share * self.clip
        return Guarantees(bounds=(1.0 - reach, 1.0 + reach), per_trajectory=True)

    def reads_scores(self, batch: Batch) -> bool:
        """Whether lambda_n is not 0."""
        return share_at(batch, self.share, self.zero_at) != 0.0

    def __call__(self, batch: Batch, advantages: Ragged) -> Weighed:
        """A~_itk; a turn without block, without action or without a usable score keeps A_it."""
        weighed = weigh_tokens(
            batch,
            advantages,
            share_at(batch, self.share, self.zero_at),
            lambda t, turn_idx: self._shifts(batch, t, turn_idx),
            lambda shift, advantage: tilt(shift, advantage, self.clip),
        )
        drift = self._action_mean_drift(batch, advantages)
        return weighed if drift is None else replace(weighed, metrics={"credit/action_mean_drift": drift})

    def _shifts(self, batch: Batch, t: Trajectory, turn_idx: int) -> Sequence[float | None] | None:
        turn = t.turns[turn_idx]
        span = inside_the_tags(turn) if self.inside_tags else turn.action_mask
        return batch.span_shifts(t, turn_idx, self.block, span)

    def _action_mean_drift(self, batch: Batch, advantages: Ragged) -> float | None:
        """The median over actions of |mean w_k - 1|, before lambda: what the teacher would move at full strength."""
        drifts = []
        for t, row in zip(batch.trajectories, advantages, strict=True):
            for turn_idx, a in enumerate(row):
                shifts = self._shifts(batch, t, turn_idx) if a else None
                if shifts is not None:
                    weights = [tilt(d, a, self.clip) for d in shifts if d is not None]
                    drifts.append(abs(math.fsum(weights) / len(weights) - 1.0))
        return statistics.median(drifts) if drifts else None
