"""OPSD: match the teacher's distribution along the student's own samples (2601.18734).

The teacher sees a privileged context. On each distilled token, at the term's temperature:

    "jsd"       beta * KL(T || M) + (1 - beta) * KL(S || M), M = (1 - beta) * S + beta * T, over the whole vocabulary,
                or over the teacher's top k, both branches renormalised there without a tail
    "sampled"   -sg(log T - log S) * log S of the sampled token, at the sampling temperature

Identical branches have loss 0 and gradient 0 exactly. A turn without a block has no loss; without any block in the
batch the step changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ...credit.base import Needs, Teacher
from ...errors import InvariantError
from .base import Branch, Reduction, check_choice, check_share


if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class OPSD:
    """On-policy self-distillation; [`~taspo_trl.loss.distillation.opd.opd`] uses the same loss with another model.

    Args:
        form (`str`, *optional*, defaults to `"jsd"`):
            `"jsd"` or `"sampled"`.
        beta (`float`, *optional*, defaults to `0.5`):
            Of the divergence: 0 = KL(T || S), 1 = KL(S || T).
        top_k (`int`, *optional*):
            Compare the teacher's k likeliest tokens; None = the whole vocabulary.
        temperature (`float`, *optional*, defaults to `1.1`):
            Of the distributions compared.
        weight (`float`, *optional*, defaults to `1.0`), policy (`float`, *optional*, defaults to `0.0`):
            Shares of the term, of E8's surrogate.
        block (`str`, *optional*, defaults to `"random_success"`):
            What the teacher sees (`"oracle_plan"` is closest to the paper's reference solution); None = nothing more.
        teacher (`str`, *optional*, defaults to `"frozen"`), teacher_every (`int`, *optional*, defaults to `10`), \
        teacher_rate (`float`, *optional*, defaults to `0.001`):
            See [`~taspo_trl.credit.base.Needs`]; 0.001 is the decay 0.999 of the runs with an average.
        reduction (`str`, *optional*, defaults to `"token_mean"`):
            See [`~taspo_trl.loss.distillation.base.DistillTerm`].
    """

    form: Literal["jsd", "sampled"] = "jsd"
    beta: float = 0.5
    top_k: int | None = None
    temperature: float = 1.1
    weight: float = 1.0
    policy: float = 0.0
    block: str | None = "random_success"
    teacher: Teacher = "frozen"
    teacher_every: int = 10
    teacher_rate: float = 0.001
    reduction: Reduction = "token_mean"

    def __post_init__(self) -> None:
        check_choice("form", self.form, ("jsd", "sampled"))
        check_share("beta", self.beta, 1.0)
        check_share("weight", self.weight)
        check_share("policy", self.policy)
        check_choice("reduction", self.reduction, ("nested", "token_mean"))
        if not self.temperature > 0:
            raise ValueError(f"`temperature` must be positive, got {self.temperature!r}.")
        if self.top_k is not None and self.top_k < 2:
            raise ValueError(f"`top_k` must be at least 2, got {self.top_k!r}: one token alone is always certain.")

    @property
    def needs(self) -> Needs:
        return Needs(
            blocks=() if self.block is None else (self.block,),
            scope="reply",
            teacher=self.teacher,
            teacher_every=self.teacher_every,
            teacher_rate=self.teacher_rate,
            plain_only=self.block is None,
            flat_groups=True,
            vocabulary=0 if self.form == "sampled" else self.top_k or -1,
            top_of="teacher",
            temperature=self.temperature if self.form == "jsd" else 1.0,
        )

    def policy_share(self, step: int) -> float:
        return self.policy

    def share(self, step: int) -> float:
        return self.weight

    def token_loss(
        self, student: Branch, teacher: Branch, old_logps: torch.Tensor, advantages: torch.Tensor
    ) -> torch.Tensor:
        """The divergence, or its sampled form; see [`~taspo_trl.loss.distillation.base.DistillTerm`]."""
        from .divergence import divergence, renormalised  # loads torch, which no list of methods needs

        if self.form == "sampled":
            return -(teacher.logps - student.logps).detach() * student.logps
        if student.all_logps is not None and teacher.all_logps is not None:
            return divergence(student.all_logps, teacher.all_logps, self.beta)
        if student.top_logps is None or teacher.top_logps is None:
            raise InvariantError("The divergence needs both distributions; neither the top k nor all were computed.")
        return divergence(renormalised(student.top_logps), renormalised(teacher.top_logps), self.beta)


def grpo_opsd(form: Literal["jsd", "sampled"] = "jsd", weight: float | None = None, **options) -> OPSD:
    """E8 + share * OPSD. The papers do not say the share: 0.1, and 0.01 for the sampled form, are ours."""
    return OPSD(
        form=form, weight=(0.1 if form == "jsd" else 0.01) if weight is None else weight, policy=1.0, **options
    )
