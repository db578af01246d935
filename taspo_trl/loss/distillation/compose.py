"""The distillation term's share of one micro-batch's loss, from the scores of its rows.

    teacher = teacher_columns(scores, sizes, head)
    distribution = update_distribution(term, teacher, coefficients, old_logps, advantages)
    output = selected_forward(model, inputs, distribution=distribution)
    loss = loss + distillation_loss(term, output, teacher, coefficients, step, old_logps, advantages)

A term that compares whole distributions is computed inside the forward, chunk by chunk; one that compares the sampled
token or the top k, after it. E8's surrogate gets its own share by scaling the advantages with `policy_share(step)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...errors import InvariantError
from ...rows import Row
from ...scoring.distributions import AtIds, Chunk, Distribution, Head
from ...scoring.whole import TokenScores, joined
from .base import Branch, DistillTerm


@dataclass(frozen=True)
class TeacherColumns:
    """What the teacher said of the N loss tokens of a micro-batch; anything finite where it has no score.

    Args:
        logps (`torch.Tensor` of shape `(N,)`):
            log pi_T of the sampled tokens.
        top_ids (`torch.Tensor` of shape `(N, K)`, *optional*), top_logps (`torch.Tensor` of shape `(N, K)`, \
        *optional*), tail_logps (`torch.Tensor` of shape `(N,)`, *optional*):
            For a term that compares the top k; the ids may be the student's or the teacher's.
        hidden (`torch.Tensor` of shape `(N, H_T)`, *optional*), head ([`~taspo_trl.scoring.distributions.Head`], \
        *optional*):
            For a term that compares whole distributions: they are made from these, a chunk at a time.
    """

    logps: torch.Tensor
    top_ids: torch.Tensor | None = None
    top_logps: torch.Tensor | None = None
    tail_logps: torch.Tensor | None = None
    hidden: torch.Tensor | None = None
    head: Head | None = None

    @property
    def branch(self) -> Branch:
        """Without the whole distributions."""
        return Branch(self.logps, self.top_ids, self.top_logps, self.tail_logps).detach()


def row_scores(row: Row, turns: Mapping[int, TokenScores]) -> TokenScores | None:
    """The teacher's scores of a row's sampled tokens, turn by turn; blank where a turn has none.

    Args:
        row (`Row`):
            With its turns.
        turns (`Mapping[int, TokenScores]`):
            Turn index -> scores of all of its reply tokens.

    Returns:
        `TokenScores` or `None`: None when no turn of the row has scores.
    """
    like = next((turns[turn.turn_idx] for turn in row.turns if turn.turn_idx in turns), None)
    if like is None:
        return None
    return joined([turns.get(turn.turn_idx) or like.blank(turn.length) for turn in row.turns])


def teacher_columns(
    scores: Sequence[TokenScores | None],
    sizes: Sequence[int],
    head: Head | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> TeacherColumns | None:
    """The columns of a micro-batch; None when no row has scores.

    Args:
        scores (`Sequence[TokenScores | None]`), sizes (`Sequence[int]`):
            Of each row: what [`row_scores`] gave, and the number of its sampled tokens.
        head ([`~taspo_trl.scoring.distributions.Head`], *optional*):
            The teacher's, for whole distributions.
        device (`torch.device`, *optional*, defaults to `"cpu"`), dtype (`torch.dtype`, *optional*, defaults to \
        `torch.float32`):
            Of the log-probabilities, as in [`~taspo_trl.loss.batches.collate`]. Hidden states keep theirs.
    """
    like = next((one for one in scores if one is not None), None)
    if like is None:
        return None
    whole = joined([like.blank(size) if one is None else one for one, size in zip(scores, sizes, strict=True)])
    moved = {name: one.to(device, dtype if name.endswith("logps") else None) for name, one in whole.columns().items()}
    logps = moved.pop("logps")
    return TeacherColumns(logps, **moved, head=head if "hidden" in moved else None)


def update_distribution(
    term: DistillTerm,
    teacher: TeacherColumns | None,
    coefficients: torch.Tensor,
    old_logps: torch.Tensor | None,
    advantages: torch.Tensor,
    *,
    student_size: int | None = None,
) -> Distribution | None:
    """What the update's forward has to compute of the student's distributions; None for the sampled token alone.

    Args:
        term (`DistillTerm`), teacher (`TeacherColumns`, *optional*):
            What is learned, and from what; None is for a micro-batch in which no token counts.
        coefficients (`torch.Tensor` of shape `(N,)`):
            m_k; the whole distributions of tokens with 0 are not compared.
        old_logps (`torch.Tensor` of shape `(N,)`, *optional*), advantages (`torch.Tensor` of shape `(N,)`):
            As in the policy's loss; None = the policy is pi_old.
        student_size (`int`, *optional*):
            V of the policy, where the teacher's head may be padded differently: only ids that both have are compared.
    """
    vocabulary, temperature = term.needs.vocabulary, term.needs.temperature
    if vocabulary == 0 or not (coefficients != 0).any():
        return None
    if teacher is None:
        raise InvariantError("Distilled tokens came without the teacher's scores.")
    if vocabulary > 0:
        if teacher.top_ids is None:
            raise InvariantError("A term that compares the top k got no ids from the teacher's scores.")
        return Distribution(AtIds(teacher.top_ids), temperature)
    if teacher.hidden is None or teacher.head is None:
        raise InvariantError("A term that compares whole distributions got no hidden states of the teacher.")
    hidden, head, plain = teacher.hidden, teacher.head, teacher.branch
    size = head.size if student_size is None else min(head.size, student_size)
    both = None if size == head.size and student_size in (None, size) else size

    def compare(chunk: Chunk) -> tuple[torch.Tensor, ...]:
        part = chunk.part
        kept = coefficients[part] != 0
        losses = chunk.logps * 0
        if kept.any():
            with torch.no_grad():
                theirs = head.log_probs(hidden[part][kept], temperature, both)
            student = Branch(chunk.logps[kept], all_logps=chunk.all_logps[kept])
            other = Branch(plain.logps[part][kept], all_logps=theirs.to(chunk.all_logps))
            old = student.logps.detach() if old_logps is None else old_logps[part][kept]
            losses = losses.masked_scatter(kept, term.token_loss(student, other, old, advantages[part][kept]))
        return (losses,)

    return Distribution(compare, temperature, both)


def distillation_loss(
    term: DistillTerm,
    output: Any,
    teacher: TeacherColumns | None,
    coefficients: torch.Tensor,
    step: int,
    old_logps: torch.Tensor | None,
    advantages: torch.Tensor,
) -> torch.Tensor:
    """share(n) * sum over k of m_k * token_loss_k, of one micro-batch.

    Args:
        term (`DistillTerm`), teacher (`TeacherColumns`), coefficients, old_logps, advantages:
            As in [`update_distribution`].
        output ([`~taspo_trl.scoring.projection.SelectedOutput`]):
            Of the forward with what [`update_distribution`] asked for.
        step (`int`):
            n, completed optimizer updates.

    Returns:
        `torch.Tensor`: a scalar, with a graph to the model also where no token counts: processes stay in step.
    """
    kept = coefficients != 0
    nothing = 0 * output.logps.sum()
    if not kept.any():
        return nothing
    if teacher is None:
        raise InvariantError("Distilled tokens came without the teacher's scores.")
    if term.needs.vocabulary == -1:
        losses = _only(output.reduced)[kept]
    else:
        student = Branch(output.logps)
        if term.needs.vocabulary > 0:
            top_logps, tail_logps = output.reduced
            student = Branch(output.logps, teacher.top_ids, top_logps, tail_logps)
        old = output.logps.detach() if old_logps is None else old_logps
        losses = term.token_loss(student.at(kept), teacher.branch.at(kept), old[kept], advantages[kept])
    return term.share(step) * (coefficients[kept] * losses).sum() + nothing


def _only(reduced: tuple[torch.Tensor, ...] | None) -> torch.Tensor:
    if reduced is None:
        raise InvariantError("The forward of a term that compares whole distributions computed no losses.")
    return reduced[0]
