"""SDAR: sampled tokens are pushed up, more where the teacher agrees (2605.15155).

    loss_k = sg(g_k) * (log pi_T - log pi_S)_k,   g_k = sigmoid(beta * Delta_k)

Gate and teacher carry no gradient, so the gradient is -g_k * grad log pi_S: never against the sampled token, and no
reverse KL. With the same reduction and exactly on-policy data it is that of A~ = A + share * g. Rows with A = 0 are
trained too; success and failure are reinforced alike. A turn without a block has no loss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...credit.base import Needs, Teacher
from .base import Branch, Reduction, check_choice, check_share


if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class SDAR:
    """The gated term.

    Args:
        slope (`float`, *optional*, defaults to `5.0`):
            beta of the gate; 0 = 1/2 everywhere, whatever the teacher says.
        weight (`float`, *optional*, defaults to `0.01`):
            Share of the term (published script; the function's own default is 0.1).
        policy (`float`, *optional*, defaults to `1.0`):
            Share of E8's surrogate.
        block (`str`, *optional*, defaults to `"generic_skill"`):
            What the teacher sees and the student does not.
        teacher (`str`, *optional*, defaults to `"rollout"`), teacher_every (`int`, *optional*, defaults to `10`), \
        teacher_rate (`float`, *optional*, defaults to `0.05`):
            See [`~taspo_trl.credit.base.Needs`].
        reduction (`str`, *optional*, defaults to `"token_mean"`):
            See [`~taspo_trl.loss.distillation.base.DistillTerm`].
    """

    slope: float = 5.0
    weight: float = 0.01
    policy: float = 1.0
    block: str = "generic_skill"
    teacher: Teacher = "rollout"
    teacher_every: int = 10
    teacher_rate: float = 0.05
    reduction: Reduction = "token_mean"

    def __post_init__(self) -> None:
        check_share("weight", self.weight)
        check_share("policy", self.policy)
        check_choice("reduction", self.reduction, ("nested", "token_mean"))
        if not (math.isfinite(self.slope) and self.slope >= 0):
            raise ValueError(f"`slope` must be at least 0, got {self.slope!r}: agreement may not push down.")

    @property
    def needs(self) -> Needs:
        return Needs(
            blocks=(self.block,),
            scope="reply",
            teacher=self.teacher,
            teacher_every=self.teacher_every,
            teacher_rate=self.teacher_rate,
            flat_groups=True,
        )

    def policy_share(self, step: int) -> float:
        return self.policy

    def share(self, step: int) -> float:
        return self.weight

    def token_loss(
        self, student: Branch, teacher: Branch, old_logps: torch.Tensor, advantages: torch.Tensor
    ) -> torch.Tensor:
        """The gated difference; see [`~taspo_trl.loss.distillation.base.DistillTerm`]."""
        shift = teacher.logps.detach() - student.logps
        gate = (self.slope * shift.detach()).sigmoid()
        return gate * shift


def opsd_sdar(weight: float = 0.01, slope: float = 5.0, **options) -> SDAR:
    """SDAR's term without the policy gradient: what agent papers most likely call OPSD [inferred].

    The published run adds KL 0.01 and entropy 0.001, which stay the user's `beta` and `entropy_coef`.
    """
    return SDAR(slope=slope, weight=weight, policy=0.0, **options)


def grpo_opsd_sdar(weight: float = 0.01, **options) -> SDAR:
    """SDAR with slope 0, called GRPO+OPSD in its repository: every sampled token is pushed up by share / 2.

    The teacher has no influence on the gradient. On exactly on-policy samples with constant coefficients the gradient
    has mean zero; with 1 / |R| it favours short replies.
    """
    return SDAR(slope=0.0, weight=weight, **options)
