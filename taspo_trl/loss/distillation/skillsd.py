"""SkillSD: a reverse KL to the policy that sees a skill text, estimated on the sampled tokens (2604.10674).

    loss_k = rho * (exp(-l) - 1 + l),   l = log pi_S - log pi_T,   rho = pi / pi_old

with gradient through l and rho. log rho is clamped to +-10 and l to +-20. 0 exactly, with gradient 0, where the
branches agree; rows with A = 0 are trained too; a turn without a block has no loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...credit.base import Needs, Teacher
from .base import Branch, Reduction, check_choice, check_share


if TYPE_CHECKING:
    import torch


_MAX_LOG_RATIO = 10.0
_MAX_GAP = 20.0


@dataclass(frozen=True)
class SkillSD:
    """The term of SkillSD beside E8.

    Args:
        weight (`float`, *optional*, defaults to `0.001`):
            Share of the term, as the published script sets it.
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

    weight: float = 0.001
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
        """The estimate of each token; see [`~taspo_trl.loss.distillation.base.DistillTerm`]."""
        gap = (student.logps - teacher.logps.detach()).clamp(-_MAX_GAP, _MAX_GAP)
        ratio = (student.logps - old_logps.detach()).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()
        return ratio * ((-gap).exp() - 1 + gap)
