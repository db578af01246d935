"""GRSD: what a group's successes did and its failures did not scales whole turns (arXiv:2607.28076). Pure.

    delta_t = mean of Delta_k over R_it;  q_t = expm1(clip(s delta_t, -20, 20)),  s = sign(A)
    g_t = clip(q_t / mean of |q| over the group, -c, c);  A~ = A max(floor, 1 + gain g_t)

Only groups with both outcomes are weighed: their contrast is the block.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..types import TrajectoryGroup
from .base import (
    Batch,
    Guarantees,
    Needs,
    Ragged,
    Teacher,
    Weighed,
    by_group,
    cut,
    mean_shift,
    sign,
    weigh_turns,
    why_unchanged,
)
from .option_checks import check_number, check_teacher


@dataclass(frozen=True)
class GRSD:
    """The weight rule of GRSD.

    A turn without a usable score keeps A and stays out of the group's mean.

    Args:
        gain (`float`, *optional*, defaults to `0.5`):
            How far a relative shift of 1 moves the weight.
        clip (`float`, *optional*, defaults to `3.0`):
            c (the published launchers: 0.2).
        floor (`float`, *optional*, defaults to `0.1`):
            The least weight.
        block (`str`, *optional*, defaults to `"contrast"`):
            What the teacher sees.
        teacher (`str`, *optional*, defaults to `"rollout"`):
            Who plays the guided branch, see [`~taspo_trl.credit.base.Needs`].

    Raises:
        ConfigurationError: an option is outside its range.
    """

    gain: float = 0.5
    clip: float = 3.0
    floor: float = 0.1
    block: str = "contrast"
    teacher: Teacher = "rollout"
    teacher_every: int = 10
    teacher_rate: float = 0.05

    def __post_init__(self) -> None:
        check_number("gain", self.gain, "[0, inf)", "The paper takes 0.5; 0 is plain GRPO.")
        check_number("clip", self.clip, "(0, inf)", "The paper takes 3, its launchers 0.2.")
        check_number("floor", self.floor, "(0, 1]", "A weight must stay positive; the paper takes 0.1.")
        check_teacher(self.block, self.teacher, self.teacher_every, self.teacher_rate)

    @property
    def needs(self) -> Needs:
        return Needs((self.block,), "reply", self.teacher, self.teacher_every, self.teacher_rate)

    @property
    def guarantees(self) -> Guarantees:
        return Guarantees(bounds=(max(self.floor, 1.0 - self.gain * self.clip), 1.0 + self.gain * self.clip))

    def __call__(self, batch: Batch, advantages: Ragged) -> Weighed:
        """A~_itk, one weight for each turn."""
        weights, supports, fallbacks = [], [], []
        for group, rows in by_group(batch, advantages):
            mixed = _has_both_outcomes(group)
            deltas = [
                [mean_shift(batch.span_shifts(t, u, self.block)) if t.is_usable else None for u in range(len(t.turns))]
                for t in group.trajectories
            ]
            q = [
                [None if d is None else math.expm1(cut(sign(a) * d, -20.0, 20.0)) for a, d in zip(*pair, strict=True)]
                for pair in zip(rows, deltas, strict=True)
            ]
            sizes = [abs(one) for row in q for one in row if one is not None]
            scale = math.fsum(sizes) / len(sizes) if mixed and sizes else 0.0
            for t, row, of_turns, moved in zip(group.trajectories, rows, deltas, q, strict=True):
                weights.append([self._weight(one, scale) for one in moved])
                supports.append(of_turns)
                scored = any(d is not None for d in of_turns)
                fallbacks.append(why_unchanged(t, row, scored) or ("" if mixed else "one_outcome"))
        return weigh_turns(batch, advantages, weights, supports, fallbacks)

    def _weight(self, q: float | None, scale: float) -> float:
        if q is None or scale == 0:
            return 1.0
        return max(self.floor, 1.0 + self.gain * cut(q / scale, -self.clip, self.clip))


def _has_both_outcomes(group: TrajectoryGroup) -> bool:
    return len({t.success for t in group.trajectories if t.is_usable}) == 2
