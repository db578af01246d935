"""AgentOPSD: a running belief in success is updated by each turn's evidence (arXiv:2608.05987). Pure.

    e_t = sum of Delta_k over R_it;  c_t = gamma c_(t-1) + e_t;  B_t = sigmoid(logit B_0 + c_t)
    q_t = B_t - B_(t-1);  z_t = (q_t - mean q) / (std q + 1e-6) over the trajectory, population std
    m_t = clip(1 + b s z_t, 1 - b, 1 + b);  A~ = A [(1 - lambda) + lambda m_t]

B_0 is the success rate of the group's usable trajectories. The released code differs: gamma 1, B_0 from rewards of
0 or 10.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .base import (
    Batch,
    Guarantees,
    Needs,
    Ragged,
    Teacher,
    Weighed,
    by_group,
    cut,
    mean_and_std,
    share_at,
    sign,
    weigh_turns,
    why_unchanged,
)
from .option_checks import check_number, check_schedule, check_teacher


@dataclass(frozen=True)
class AgentOPSD:
    """The weight rule of AgentOPSD.

    With two scored turns z is close to ±1 whatever the size of the evidence. A turn without a usable score keeps A and
    leaves the belief where it was.

    Args:
        share (`float`, *optional*, defaults to `0.5`):
            lambda, the part of A that the weights move.
        zero_at (`int`, *optional*, defaults to `0`):
            Updates until lambda_n is 0. 0 = constant, as published; None = a third of the run.
        reach (`float`, *optional*, defaults to `0.2`):
            b.
        gamma (`float`, *optional*, defaults to `0.95`):
            How much of the earlier evidence stays.
        block (`str`, *optional*, defaults to `"random_success"`):
            What the teacher sees.
        teacher (`str`, *optional*, defaults to `"rollout"`):
            Who plays the guided branch, see [`~taspo_trl.credit.base.Needs`].

    Raises:
        ConfigurationError: an option is outside its range.
    """

    share: float = 0.5
    zero_at: int | None = 0
    reach: float = 0.2
    gamma: float = 0.95
    block: str = "random_success"
    teacher: Teacher = "rollout"
    teacher_every: int = 10
    teacher_rate: float = 0.05

    def __post_init__(self) -> None:
        check_schedule(self.share, self.zero_at)
        check_number("reach", self.reach, "(0, 1)", "It is b: weights lie in 1 ± reach and stay positive.")
        check_number("gamma", self.gamma, "[0, 1]", "The paper takes 0.95, its code 1.")
        check_teacher(self.block, self.teacher, self.teacher_every, self.teacher_rate)

    @property
    def needs(self) -> Needs:
        return Needs((self.block,), "reply", self.teacher, self.teacher_every, self.teacher_rate)

    @property
    def guarantees(self) -> Guarantees:
        width = self.share * self.reach
        return Guarantees(bounds=(1.0 - width, 1.0 + width))

    def reads_scores(self, batch: Batch) -> bool:
        """Whether lambda_n is not 0."""
        return share_at(batch, self.share, self.zero_at) != 0.0

    def __call__(self, batch: Batch, advantages: Ragged) -> Weighed:
        """A~_itk, one weight for each turn."""
        share = share_at(batch, self.share, self.zero_at)
        weights, supports, fallbacks = [], [], []
        for group, rows in by_group(batch, advantages):
            usable = [t.success for t in group.trajectories if t.is_usable]
            prior = cut(sum(usable) / len(usable) if usable else 0.5, 1e-3, 1.0 - 1e-3)
            for t, row in zip(group.trajectories, rows, strict=True):
                gains = self._gains([batch.span_shifts(t, u, self.block) for u in range(len(t.turns))], prior)
                known = [q for q in gains if q is not None]
                mean, std = mean_and_std(known)
                z = [0.0 if q is None else (q - mean) / (std + 1e-6) for q in gains]
                b = self.reach
                moved = [cut(1.0 + b * sign(a) * one, 1.0 - b, 1.0 + b) for a, one in zip(row, z, strict=True)]
                weights.append([1.0 + share * (m - 1.0) for m in moved])
                supports.append(gains)
                few = "fewer_than_two_scorable_turns" if len(known) == 1 else ""
                fallbacks.append(why_unchanged(t, row, bool(known), share) or few)
        return weigh_turns(batch, advantages, weights, supports, fallbacks)

    def _gains(self, shifts: list[tuple[float | None, ...] | None], prior: float) -> list[float | None]:
        """q_t; None for a turn that was not scored."""
        logit = math.log(prior / (1.0 - prior))
        evidence, belief = 0.0, _belief(logit)  # not `prior`: without evidence q_t must be 0 to the last bit
        gains: list[float | None] = [None] * len(shifts)
        for turn_idx, of_turn in enumerate(shifts):
            if of_turn is not None:
                evidence = self.gamma * evidence + math.fsum(d for d in of_turn if d is not None)
                before, belief = belief, _belief(logit + evidence)
                gains[turn_idx] = belief - before
        return gains


def _belief(logit: float) -> float:
    return cut(1.0 / (1.0 + math.exp(cut(-logit, -700.0, 700.0))), 1e-6, 1.0 - 1e-6)
