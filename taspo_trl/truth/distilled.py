"""The credit of a distillation term: its gradient's coefficient on the sampled tokens, beside the policy's own."""

from __future__ import annotations

import math

import torch

from ..credit.base import Batch, Weighed
from ..loss.distillation.base import Branch, DistillTerm
from ..types import ReplyScore


def distilled_credit(batch: Batch, weighed: Weighed, term: DistillTerm) -> dict[tuple[str, int], float]:
    """C_it = mean over R_it of policy_share * A~_itk - share * d token_loss_k / d log pi(y_k), before any update.

    On the policy that sampled the tokens the surrogate of E8 has the gradient A~ * d log pi, so that both parts are
    coefficients of the same gradient. A turn without a teacher's score has the policy's part alone.

    Args:
        batch ([`~taspo_trl.credit.base.Batch`]):
            With the scores of the term's block over whole replies.
        weighed ([`~taspo_trl.credit.base.Weighed`]):
            What the method's weight rule made of it.
        term ([`~taspo_trl.loss.distillation.base.DistillTerm`]):
            One that compares sampled tokens. A form over the vocabulary has no coefficient on them.
    """
    policy_share, share = term.policy_share(0), term.share(0)
    credit = {}
    for t, row in zip(batch.trajectories, weighed.advantages, strict=True):
        for turn_idx, tokens in enumerate(row):
            if not tokens:
                continue
            coefficients = [policy_share * a for a in tokens]
            branches = _branches(batch.scores.get((t.uid, turn_idx)), term)
            if branches is not None:
                student, teacher = branches
                advantages = torch.tensor(tokens, dtype=torch.float64)
                loss = term.token_loss(Branch(student), Branch(teacher), student.detach(), advantages)
                (slope,) = torch.autograd.grad(loss.sum(), student)
                coefficients = [one - share * g for one, g in zip(coefficients, slope.tolist(), strict=True)]
            credit[t.uid, turn_idx] = math.fsum(coefficients) / len(coefficients)
    return credit


def _branches(score: ReplyScore | None, term: DistillTerm) -> tuple[torch.Tensor, torch.Tensor] | None:
    if score is None or score.unscorable:
        return None
    guided = score.plain if term.needs.plain_only else score.guided.get(term.needs.blocks[0])
    if guided is None or not all(map(math.isfinite, (*score.plain, *guided))):
        return None
    plain = torch.tensor(score.plain, dtype=torch.float64, requires_grad=True)
    return plain, torch.tensor(guided, dtype=torch.float64)
