"""Token-level allocation, the ablation of TASPO: one weight for each action token instead of each turn.

Pure. E5 to E7 over the pool of all action tokens of a trajectory (docs/method.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .base import Batch, Guarantees, Needs, Ragged, Weighed, product
from .taspo import action_support, clipped, credit_weights, fallback_of, supports_of


def token_weights(
    shifts: Sequence[Sequence[float] | None],
    advantage: float,
    *,
    clip: float = 2.0,
    threshold: float = 0.0,
    temperature: float = 0.5,
    weight_range: float = 0.4,
    step_size: float | None = None,
) -> list[list[float] | None]:
    """Token-level allocation, the ablation: E5 to E7 over the pool of all action tokens of a trajectory.

    The support of a token is its own clipped shift. Mean one holds over the pool; since tokens of short and long turns
    then weigh alike, the coefficient-weighted mean over the trajectory is *not* preserved.

    Args:
        shifts (`Sequence[Sequence[float] | None]`):
            Delta_itk for each turn's action tokens; None, empty or non-finite = the turn is unscorable.
        advantage (`float`):
            A_i.
        clip, threshold, temperature, weight_range, step_size:
            As in [`action_support`] and [`credit_weights`].

    Returns:
        `list[list[float] | None]`: the weight of each action token, None for an unscorable turn. All ones with fewer
        than two tokens in the pool.
    """
    pool: list[float] = []
    for turn in shifts:
        if turn is not None and action_support(turn, clip, threshold) is not None:
            pool.extend(clipped(shift, clip, threshold) for shift in turn)
    flat = iter(credit_weights(pool, advantage, temperature, weight_range, step_size))
    return [
        [next(flat) for _ in turn] if turn is not None and action_support(turn, clip, threshold) is not None else None
        for turn in shifts
    ]


@dataclass(frozen=True)
class TokenWeights:
    """The weight rule: A~_itk = A_i w_itk on action tokens, A_i on all others.

    Args:
        clip, threshold, temperature, weight_range, step_size, block:
            As of [`~taspo_trl.credit.taspo.TurnWeights`].
    """

    clip: float = 2.0
    threshold: float = 0.0
    temperature: float = 0.5
    weight_range: float = 0.4
    step_size: float | None = None
    block: str = "aligned"

    @property
    def needs(self) -> Needs:
        return Needs(blocks=(self.block,), scope="action")

    @property
    def guarantees(self) -> Guarantees:
        return Guarantees(
            bounds=(1 - self.weight_range, 1 + self.weight_range), mean_one="action_tokens", per_trajectory=True
        )

    def __call__(self, batch: Batch, advantages: Ragged) -> Weighed:
        turn_weights, every, supports, fallbacks = [], [], [], []
        for t, outcome in zip(batch.trajectories, batch.outcome, strict=True):
            supported = supports_of(batch, t, self.block, self.clip, self.threshold)
            fallback = fallback_of(batch, t, outcome)
            allocated: list[list[float] | None] = [None] * len(t.turns)
            if not fallback:
                shifts = [
                    None if d is None else batch.action_shifts(t, turn_idx, self.block)
                    for turn_idx, d in enumerate(supported)
                ]
                if sum(len(turn) for turn in shifts if turn is not None) < 2:
                    fallback = "fewer_than_two_scorable_tokens"
                allocated = token_weights(
                    shifts,
                    outcome,
                    clip=self.clip,
                    threshold=self.threshold,
                    temperature=self.temperature,
                    weight_range=self.weight_range,
                    step_size=self.step_size,
                )
            spread = [_spread(turn.action_mask, one) for turn, one in zip(t.turns, allocated, strict=True)]
            every.append(spread)
            turn_weights.append([math.fsum(turn) / len(turn) if turn else 1.0 for turn in spread])
            supports.append(supported)
            fallbacks.append(fallback)
        return Weighed(product(advantages, every), turn_weights, supports, fallbacks, every)


def _spread(mask: Sequence[bool], weights: Sequence[float] | None) -> list[float]:
    """Weights of the action tokens laid over all reply tokens; tokens outside the action keep weight 1."""
    if weights is None:
        return [1.0] * len(mask)
    flat = iter(weights)
    return [next(flat) if is_action else 1.0 for is_action in mask]
