"""SDPO: match an averaged teacher that sees a solution, on the student's likeliest tokens (2601.20802).

On each distilled token, times the ratio pi / pi_old (without gradient, at most 2):

    "buckets"   the divergence between both branches on the student's top k tokens and one bucket for all others;
                alpha 0 = KL(T || S), 1 = KL(S || T), between them the generalised Jensen-Shannon divergence
    "sampled"   sg(log S - log T) * log S of the sampled token

The top k are those of pi_old, taken when the batch is scored; the teacher's values are gathered at these ids, with its
own tail. A turn without a block has no loss.
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
class SDPO:
    """Self-distilled policy optimization.

    Args:
        form (`str`, *optional*, defaults to `"buckets"`):
            `"buckets"` or `"sampled"`.
        alpha (`float`, *optional*, defaults to `0.5`):
            Of the divergence (the published script with rich feedback: 1).
        top_k (`int`, *optional*, defaults to `100`):
            k; a smaller vocabulary is compared as a whole.
        ratio_cap (`float`, *optional*, defaults to `2.0`):
            Bound on pi / pi_old; None = no ratio.
        weight (`float`, *optional*, defaults to `1.0`), policy (`float`, *optional*, defaults to `0.0`):
            Shares of the term, of E8's surrogate.
        block (`str`, *optional*, defaults to `"sibling_or_feedback"`):
            What the teacher sees: a successful sibling, else the environment's feedback.
        teacher (`str`, *optional*, defaults to `"ema"`), teacher_every (`int`, *optional*, defaults to `10`), \
        teacher_rate (`float`, *optional*, defaults to `0.05`):
            See [`~taspo_trl.credit.base.Needs`].
        reduction (`str`, *optional*, defaults to `"token_mean"`):
            See [`~taspo_trl.loss.distillation.base.DistillTerm`].
    """

    form: Literal["buckets", "sampled"] = "buckets"
    alpha: float = 0.5
    top_k: int = 100
    ratio_cap: float | None = 2.0
    weight: float = 1.0
    policy: float = 0.0
    block: str = "sibling_or_feedback"
    teacher: Teacher = "ema"
    teacher_every: int = 10
    teacher_rate: float = 0.05
    reduction: Reduction = "token_mean"

    def __post_init__(self) -> None:
        check_choice("form", self.form, ("buckets", "sampled"))
        check_share("alpha", self.alpha, 1.0)
        check_share("weight", self.weight)
        check_share("policy", self.policy)
        check_choice("reduction", self.reduction, ("nested", "token_mean"))
        if self.top_k < 1:
            raise ValueError(f"`top_k` must be at least 1, got {self.top_k!r}.")
        if self.ratio_cap is not None and not self.ratio_cap >= 1:
            raise ValueError(f"`ratio_cap` must be at least 1, or None for no ratio, got {self.ratio_cap!r}.")

    @property
    def needs(self) -> Needs:
        return Needs(
            blocks=(self.block,),
            scope="reply",
            teacher=self.teacher,
            teacher_every=self.teacher_every,
            teacher_rate=self.teacher_rate,
            flat_groups=True,
            vocabulary=self.top_k if self.form == "buckets" else 0,
            top_of="student",
        )

    def policy_share(self, step: int) -> float:
        return self.policy

    def share(self, step: int) -> float:
        return self.weight

    def token_loss(
        self, student: Branch, teacher: Branch, old_logps: torch.Tensor, advantages: torch.Tensor
    ) -> torch.Tensor:
        """The divergence, or its sampled form; see [`~taspo_trl.loss.distillation.base.DistillTerm`]."""
        from .divergence import bounded_ratio, divergence  # loads torch, which no list of methods needs

        ratio = bounded_ratio(student.logps, old_logps, self.ratio_cap)
        if self.form == "sampled":
            return ratio * (student.logps - teacher.logps).detach() * student.logps
        ours, theirs = (_buckets(branch) for branch in (student, teacher))
        return ratio * divergence(ours, theirs, self.alpha)


def _buckets(branch: Branch) -> torch.Tensor:
    from .divergence import with_tail

    if branch.top_logps is None or branch.tail_logps is None:
        raise InvariantError("SDPO's divergence needs the top k and the tail of both branches.")
    return with_tail(branch.top_logps, branch.tail_logps)


def grpo_sdpo(mix: float = 0.5, **options) -> SDPO:
    """(1 - mix) * E8 + mix * SDPO; the mixing weight is TRL's form [inferred]."""
    check_share("mix", mix, 1.0)
    return SDPO(weight=mix, policy=1.0 - mix, **options)
