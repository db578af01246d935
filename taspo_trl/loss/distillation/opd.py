"""OPD: match another model along the student's own samples (TRL's GKD; on-policy distillation).

The teacher is a second, stronger model with the same tokenizer, and sees what the student sees: no privileged context.
The loss is that of [`~taspo_trl.loss.distillation.opsd.OPSD`] at temperature 1. Its sampled form is a policy gradient
with the advantage log pi_T - log pi_S on each token. A teacher that equals the student gives loss 0 and gradient 0
exactly. Trajectories of every outcome are trained.
"""

from __future__ import annotations

from typing import Literal

from ...credit.base import Teacher
from .base import Reduction
from .opsd import OPSD


def opd(
    form: Literal["jsd", "sampled"] = "jsd",
    beta: float = 0.5,
    top_k: int | None = None,
    temperature: float = 1.0,
    weight: float = 1.0,
    policy: float = 0.0,
    teacher: Teacher = "model",
    reduction: Reduction = "token_mean",
) -> OPSD:
    """On-policy distillation.

    Args:
        form (`str`, *optional*, defaults to `"jsd"`):
            `"jsd"` or `"sampled"`.
        beta (`float`, *optional*, defaults to `0.5`):
            0 = KL(T || S), 1 = KL(S || T), between them the generalised divergence (TRL's default 0.5).
        top_k (`int`, *optional*):
            Compare the teacher's k likeliest tokens, renormalised; None = the whole vocabulary. A served teacher tells
            its top k only.
        temperature (`float`, *optional*, defaults to `1.0`):
            Of the distributions compared.
        weight (`float`, *optional*, defaults to `1.0`), policy (`float`, *optional*, defaults to `0.0`):
            Shares of the term, of E8's surrogate.
        teacher (`str`, *optional*, defaults to `"model"`):
            Who is matched.
        reduction (`str`, *optional*, defaults to `"token_mean"`):
            See [`~taspo_trl.loss.distillation.base.DistillTerm`].
    """
    return OPSD(
        form=form,
        beta=beta,
        top_k=top_k,
        temperature=temperature,
        weight=weight,
        policy=policy,
        block=None,
        teacher=teacher,
        reduction=reduction,
    )
