"""OPID: shifts under a digest of the own episode are added to the advantage (arXiv:2606.26790). Pure.

    A~_k = A + w_e Delta^episode_k + w_s Delta^step_k

over all reply tokens R_it. By default a step skill replaces the episode skill of its turn. Nothing is cut or
normalised: a token can change its sign, and episodes of a flat group move too. The digest is the trajectory's own,
which TASPO forbids.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..types import Trajectory
from .base import Batch, Guarantees, Needs, Ragged, Teacher, Weighed
from .option_checks import check_choice, check_number, check_teacher


@dataclass(frozen=True)
class OPID:
    """The weight rule of OPID.

    Args:
        episode_weight (`float`, *optional*, defaults to `0.001`):
            w_e.
        step_weight (`float`, *optional*, defaults to `0.001`):
            w_s.
        additive (`bool`, *optional*, defaults to `False`):
            Add both shifts where a turn has both skills. False: the step skill takes the place of the episode skill.
        teacher (`str`, *optional*, defaults to `"rollout"`):
            Who plays the guided branches, see [`~taspo_trl.credit.base.Needs`].

    Raises:
        ConfigurationError: an option is outside its range.
    """

    episode_weight: float = 0.001
    step_weight: float = 0.001
    additive: bool = False
    teacher: Teacher = "rollout"
    teacher_every: int = 10
    teacher_rate: float = 0.05

    def __post_init__(self) -> None:
        remedy = "The published value is 0.001; 0 leaves the shift out."
        check_number("episode_weight", self.episode_weight, "[0, inf)", remedy)
        check_number("step_weight", self.step_weight, "[0, inf)", remedy)
        check_choice("additive", self.additive, (False, True), "False lets a step skill replace the episode skill.")
        check_teacher("episode", self.teacher, self.teacher_every, self.teacher_rate)

    @property
    def needs(self) -> Needs:
        return Needs(
            ("episode", "step"), "reply", self.teacher, self.teacher_every, self.teacher_rate, flat_groups=True
        )

    @property
    def guarantees(self) -> Guarantees:
        return Guarantees(keeps_sign=False, flat_is_zero=False, per_trajectory=True)

    def __call__(self, batch: Batch, advantages: Ragged) -> Weighed:
        """A~_itk; a turn without a usable skill keeps A_it, an unusable trajectory 0."""
        tokens, supports, fallbacks = [], [], []
        for t, row in zip(batch.trajectories, advantages, strict=True):
            added = [self._added(batch, t, turn_idx) for turn_idx in range(len(t.turns))]
            tokens.append(
                [
                    [a] * len(turn.reply_ids) if one is None else [a + x for x in one]
                    for a, turn, one in zip(row, t.turns, added, strict=True)
                ]
            )
            supports.append([None if one is None else math.fsum(one) / len(one) for one in added])
            # A = 0 is no reason here: a flat group moves.
            scored = any(one is not None for one in added)
            fallbacks.append("" if scored else "no_scored_turn" if t.is_usable else "unusable")
        return Weighed(tokens, supports=supports, fallbacks=fallbacks)

    def _added(self, batch: Batch, t: Trajectory, turn_idx: int) -> list[float] | None:
        """What each token of a turn gets on top of A; None for a turn that keeps it."""
        if not t.is_usable:
            return None
        episode = batch.span_shifts(t, turn_idx, "episode")
        step = batch.span_shifts(t, turn_idx, "step")
        if step is not None and not self.additive:
            episode = None
        parts = [
            [weight * d for d in shifts if d is not None]
            for weight, shifts in ((self.episode_weight, episode), (self.step_weight, step))
            if shifts is not None
        ]
        return [math.fsum(one) for one in zip(*parts, strict=True)] if parts else None
