"""TurnSight: a turn weighs by how much likelier its own near future would have made it (arXiv:2608.04007). Pure.

    delta^D_t = mean over R_it of Delta_k, where the teacher sees the turns t..t+D-1, for each horizon D
    v = the sign that most delta^D_t have (0 counts as +); delta_t = the largest |delta^D_t| with that sign
    z_t = (delta_t - mean) / (std + 1e-6) over the token shifts of the horizons chosen in the group, population std
    w_t = 1 + gain tanh(s z_t),  s = sign(A);  A~ = A [(1 - lambda) + lambda w_t]

The block shows the very action that is scored. With the frozen initial policy as the teacher, the drift of the policy
is part of every Delta. A constant added to all Delta has no effect unless it changes a majority.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import ConfigurationError
from ..types import Trajectory
from .base import (
    Batch,
    Guarantees,
    Needs,
    Ragged,
    Teacher,
    Weighed,
    by_group,
    mean_and_std,
    mean_shift,
    sign,
    weigh_turns,
    why_unchanged,
)
from .option_checks import check_number, check_teacher


@dataclass(frozen=True)
class TurnSight:
    """The weight rule of TurnSight. A turn without a usable score of any horizon keeps A.

    Args:
        share (`float`, *optional*, defaults to `0.5`):
            lambda, the part of A that the weights move.
        gain (`float`, *optional*, defaults to `0.5`):
            The reach of a weight.
        horizons (`Sequence[int]`, *optional*, defaults to `(1, 2, 3)`):
            D: turns that each block shows. The blocks are named `own_future_<D>`.
        teacher (`str`, *optional*, defaults to `"frozen"`):
            Who plays the guided branches, see [`~taspo_trl.credit.base.Needs`].

    Raises:
        ConfigurationError: an option is outside its range.
    """

    share: float = 0.5
    gain: float = 0.5
    horizons: Sequence[int] = (1, 2, 3)
    teacher: Teacher = "frozen"
    teacher_every: int = 10
    teacher_rate: float = 0.05

    def __post_init__(self) -> None:
        check_number("share", self.share, "[0, 1]", "It is lambda, the part of A that the weights move.")
        check_number("gain", self.gain, "[0, 1)", "The paper takes 0.5; weights must stay positive.")
        if not self.horizons or not all(type(d) is int and d >= 1 for d in self.horizons):
            raise ConfigurationError(
                f"`horizons` must be numbers of turns from 1, got {self.horizons!r}. The paper takes (1, 2, 3)."
            )
        check_teacher("own_future", self.teacher, self.teacher_every, self.teacher_rate)

    @property
    def needs(self) -> Needs:
        blocks = tuple(f"own_future_{d}" for d in self.horizons)
        return Needs(blocks, "reply", self.teacher, self.teacher_every, self.teacher_rate)

    @property
    def guarantees(self) -> Guarantees:
        width = self.share * self.gain
        return Guarantees(bounds=(1.0 - width, 1.0 + width), identity_at_zero="group")

    def __call__(self, batch: Batch, advantages: Ragged) -> Weighed:
        """A~_itk, one weight for each turn."""
        weights, supports, fallbacks = [], [], []
        for group, rows in by_group(batch, advantages):
            seen = [[self._seen(batch, t, turn_idx) for turn_idx in range(len(t.turns))] for t in group.trajectories]
            gaps = [gap for turns in seen for _, chosen in turns for gap in chosen]
            mean, std = mean_and_std(gaps)
            for t, row, turns in zip(group.trajectories, rows, seen, strict=True):
                supports.append([d for d, _ in turns])
                z = [0.0 if d is None else (d - mean) / (std + 1e-6) for d, _ in turns]
                weights.append([self._weight(a, one) for a, one in zip(row, z, strict=True)])
                fallbacks.append(why_unchanged(t, row, any(d is not None for d, _ in turns), self.share))
        return weigh_turns(batch, advantages, weights, supports, fallbacks)

    def _weight(self, advantage: float, z: float) -> float:
        return 1.0 + self.share * self.gain * math.tanh(sign(advantage) * z)

    def _seen(self, batch: Batch, t: Trajectory, turn_idx: int) -> tuple[float | None, list[float]]:
        """delta_t with the token shifts of the horizon it came from; None without any."""
        scored = [batch.span_shifts(t, turn_idx, b) for b in self.needs.blocks] if t.is_usable else []
        deltas = [(d, shifts) for shifts in scored if shifts is not None and (d := mean_shift(shifts)) is not None]
        if not deltas:
            return None, []
        majority = 1.0 if 2 * sum(d >= 0 for d, _ in deltas) >= len(deltas) else -1.0
        delta, shifts = max(deltas, key=lambda one: majority * one[0])  # the largest |delta| that has this sign
        return delta, [gap for gap in shifts if gap is not None]
