"""StepOPSD: hindsight moves credit inside an action, then all steps get one mean (arXiv:2605.27140). Pure.

    w_k = clip(2 sigmoid(s Delta_k), 1 - alpha, 1 + alpha),  s = sign(A)
    v_k = (1 - lambda_n) + lambda_n w_k on the action, 1 elsewhere;  lambda_n = lambda max(0, 1 - n / zero_at)
    A~_k = A v_k clip(mean_u m_u / m_t, 1/2, 2) on the action of turn t,  m_t = mean of v_k over it

Where the last factor is not cut, every action ends at the same mean: what hindsight said *between* the steps is taken
back, and only its word inside a step stays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from .base import Batch, Guarantees, Needs, Ragged, Teacher, Weighed, cut, product, share_at, sign, weigh_tokens
from .option_checks import check_choice, check_number, check_schedule, check_teacher


_LEAST, _MOST = 0.5, 2.0
"""Bounds of a step's factor."""


@dataclass(frozen=True)
class StepOPSD:
    """The weight rule of StepOPSD.

    The published scripts run it with hindsight and normaliser off and lambda 0, which is GRPO; these defaults turn the
    method on. A turn without a usable score keeps A and stays out of the steps.

    Args:
        share (`float`, *optional*, defaults to `0.5`):
            lambda, the part of A that the weights move.
        zero_at (`int`, *optional*, defaults to `50`):
            Updates until lambda_n is 0. 0 = constant, None = a third of the run.
        clip (`float`, *optional*, defaults to `0.2`):
            alpha (one published run: 0.05).
        kernel (`str`, *optional*, defaults to `"sigmoid"`):
            `"sigmoid"`: 2 sigmoid(s Delta). `"exp"`: exp(s Delta).
        normalise (`bool`, *optional*, defaults to `True`):
            Whether the steps of a trajectory are brought to one mean.
        block (`str`, *optional*, defaults to `"first_success_failed_only"`):
            The hindsight: the first correct peer, shown to failures only.
        teacher (`str`, *optional*, defaults to `"stale"`):
            Who plays the guided branch, see [`~taspo_trl.credit.base.Needs`].

    Raises:
        ConfigurationError: an option is outside its range.
    """

    share: float = 0.5
    zero_at: int | None = 50
    clip: float = 0.2
    kernel: Literal["sigmoid", "exp"] = "sigmoid"
    normalise: bool = True
    block: str = "first_success_failed_only"
    teacher: Teacher = "stale"
    teacher_every: int = 10
    teacher_rate: float = 0.05

    def __post_init__(self) -> None:
        check_schedule(self.share, self.zero_at)
        check_number("clip", self.clip, "(0, 1)", "It is alpha: weights lie in 1 ± clip and stay positive.")
        check_choice("kernel", self.kernel, ("sigmoid", "exp"), "The paper takes the sigmoid.")
        check_choice("normalise", self.normalise, (True, False), "False leaves the steps their own means.")
        check_teacher(self.block, self.teacher, self.teacher_every, self.teacher_rate)

    @property
    def needs(self) -> Needs:
        return Needs((self.block,), "action", self.teacher, self.teacher_every, self.teacher_rate)

    @property
    def guarantees(self) -> Guarantees:
        low, high = 1.0 - self.share * self.clip, 1.0 + self.share * self.clip
        return Guarantees(bounds=(low * _LEAST, high * _MOST) if self.normalise else (low, high), per_trajectory=True)

    def reads_scores(self, batch: Batch) -> bool:
        """Whether lambda_n is not 0."""
        return share_at(batch, self.share, self.zero_at) != 0.0

    def __call__(self, batch: Batch, advantages: Ragged) -> Weighed:
        """A~_itk."""
        weighed = weigh_tokens(
            batch,
            advantages,
            share_at(batch, self.share, self.zero_at),
            lambda t, turn_idx: batch.span_shifts(t, turn_idx, self.block, t.turns[turn_idx].action_mask),
            self._weight,
        )
        if not self.normalise:
            return weighed
        weights = [
            _same_means(turns, [() if d is None else turn.action_mask for turn, d in zip(t.turns, row, strict=True)])
            for t, turns, row in zip(
                batch.trajectories, weighed.token_weights or (), weighed.supports or (), strict=True
            )
        ]
        return replace(weighed, advantages=product(advantages, weights), token_weights=weights)

    def _weight(self, shift: float, advantage: float) -> float:
        exponent = cut(sign(advantage) * shift, -20.0, 20.0)
        value = math.exp(exponent) if self.kernel == "exp" else 2.0 / (1.0 + math.exp(-exponent))
        return cut(value, 1.0 - self.clip, 1.0 + self.clip)


def _same_means(turns: Ragged, inside: Sequence[Sequence[bool]]) -> Ragged:
    """Scale the spans of a trajectory to the mean of their means; an empty mask leaves its turn out.

    The means are those of the weights: |A| stands in every published mean |A~| and falls out of their ratio.
    """
    spans = [[w for w, one in zip(turn, mask, strict=False) if one] for turn, mask in zip(turns, inside, strict=True)]
    means = [math.fsum(span) / len(span) for span in spans if span]
    target = math.fsum(means) / len(means) if means else 1.0
    factors = [cut(target / (math.fsum(span) / len(span)), _LEAST, _MOST) if span else 1.0 for span in spans]
    return [
        [w * factor if mask and mask[k] else w for k, w in enumerate(turn)]
        for turn, mask, factor in zip(turns, inside, factors, strict=True)
    ]
