"""Where the gradient of a distillation term points on a turn, beside the direction that the turn was worth.

A form over the whole vocabulary has no coefficient on sampled tokens, so that its turns have no credit. Its gradient
can be compared all the same: with g = gradient of the sum of log pi(y_k) over the turn's tokens, Q its true advantage,

    cosine = < -gradient of the method's loss on the turn's tokens, Q g > / (their norms)

A method that gives all tokens of a turn one credit C has sign(C Q) exactly. The loss is policy_share * (-A_i log pi) +
share * token_loss, summed over the tokens: both parts count a token alike, as where all turns are equally long.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..credit.base import sign
from ..errors import InvariantError
from ..loss.distillation.base import Branch, DistillTerm
from ..rows import insert_block
from ..scoring.distributions import tail_of
from ..types import Trajectory, Turn


@dataclass(frozen=True)
class TurnToCompare:
    """A turn with what is known of it.

    Args:
        trajectory (`Trajectory`), turn_idx (`int`):
            With its prompt ids.
        outcome (`float`):
            A_i.
        value (`float`):
            Q: what it was worth; its sign counts.
        blocks (`Mapping[str, tuple[int, ...]]`):
            Name -> what the teacher sees, by the names that the terms are given.
    """

    trajectory: Trajectory
    turn_idx: int
    outcome: float
    value: float
    blocks: Mapping[str, tuple[int, ...]]

    @property
    def turn(self) -> Turn:
        return self.trajectory.turns[self.turn_idx]


@dataclass(frozen=True)
class ComparedTerm:
    """A method's loss.

    Args:
        term (`DistillTerm`):
            At its first update.
        block (`str`, *optional*):
            Name in [`TurnToCompare.blocks`] of what its teacher sees; None = nothing more than the policy.
        teacher (`PreTrainedModel`, *optional*):
            Another model; None = the policy itself, which every copy of it is before the first update.
    """

    term: DistillTerm
    block: str | None = None
    teacher: Any = None


def turn_cosines(
    model: Any, turns: Sequence[TurnToCompare], terms: Mapping[str, ComparedTerm]
) -> list[dict[str, float]]:
    """For each turn and method the cosine of its gradient with the true direction.

    Args:
        model ([`~transformers.PreTrainedModel`]):
            The policy, as it sampled the turns at temperature 1; left as it is.
        turns (`Sequence[TurnToCompare]`):
            With values other than 0.
        terms (`Mapping[str, ComparedTerm]`):
            Name -> loss.

    Returns:
        `list[dict[str, float]]`: name -> cosine in [-1, 1], and `"grpo"`, which is sign(A_i Q). 0 where a loss has no
        gradient. A term whose block a turn does not have is left out there.
    """
    parameters = [one for one in model.parameters() if one.requires_grad]
    return [_cosines(model, parameters, turn, terms) for turn in turns]


def _cosines(
    model: Any, parameters: Sequence[torch.Tensor], one: TurnToCompare, terms: Mapping[str, ComparedTerm]
) -> dict[str, float]:
    logits = _reply_logits(model, one.turn, ())
    student = _logps(logits, one.turn)
    up = _gradient(student.sum(), parameters)
    found = {"grpo": sign(one.outcome * one.value)}
    for name, compared in terms.items():
        term = compared.term
        if compared.block is not None and compared.block not in one.blocks:
            continue
        block = () if compared.block is None else one.blocks[compared.block]
        with torch.no_grad():
            seen = _reply_logits(compared.teacher or model, one.turn, block)
        ours, theirs = _branches(logits, seen, one.turn, term)
        advantages = torch.full_like(student, one.outcome)
        loss = term.token_loss(ours, theirs.detach(), student.detach(), advantages).sum()
        down = _gradient(loss, parameters)
        towards = [term.policy_share(0) * one.outcome * u - term.share(0) * d for u, d in zip(up, down, strict=True)]
        found[name] = sign(one.value) * _cosine(towards, up)
    return found


def _reply_logits(model: Any, turn: Turn, block: Sequence[int]) -> torch.Tensor:
    """(|R|, V) logits of the reply's positions, with a block spliced into the prompt."""
    prompt = turn.prompt_ids
    if block:
        if turn.splice_index is None:
            raise InvariantError("A turn whose prompt has no place for a block is compared under one.")
        prompt = insert_block(prompt, turn.splice_index, tuple(block))
    ids = torch.tensor([[*prompt, *turn.reply_ids]], device=next(model.parameters()).device)
    return model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float()


def _logps(logits: torch.Tensor, turn: Turn) -> torch.Tensor:
    targets = torch.tensor(turn.reply_ids, device=logits.device)
    return logits.log_softmax(-1).gather(-1, targets[:, None])[:, 0]


def _branches(ours: torch.Tensor, theirs: torch.Tensor, turn: Turn, term: DistillTerm) -> tuple[Branch, Branch]:
    """Both branches with what the term's needs ask for."""
    needs = term.needs
    student, teacher = Branch(_logps(ours, turn)), Branch(_logps(theirs, turn))
    if not needs.vocabulary:
        return student, teacher
    width = min(ours.shape[-1], theirs.shape[-1])
    all_logps = [(one[:, :width] / needs.temperature).log_softmax(-1) for one in (ours, theirs)]
    if needs.vocabulary < 0:
        first, second = (
            Branch(b.logps, all_logps=logps) for b, logps in zip((student, teacher), all_logps, strict=True)
        )
        return first, second
    leading = all_logps[0 if needs.top_of == "student" else 1].detach()
    ids = leading.topk(min(needs.vocabulary, width), dim=-1).indices
    first, second = (
        Branch(b.logps, ids, logps.gather(-1, ids), tail_of(logps, ids))
        for b, logps in zip((student, teacher), all_logps, strict=True)
    )
    return first, second


def _gradient(value: torch.Tensor, parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    found = torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]


def _cosine(first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]) -> float:
    product = math.fsum(_dots(first, second))
    norms = math.sqrt(math.fsum(_dots(first, first)) * math.fsum(_dots(second, second)))
    return max(-1.0, min(1.0, product / norms)) if norms > 0 else 0.0


def _dots(first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]) -> Iterator[float]:
    for a, b in zip(first, second, strict=True):
        yield float((a.double() * b.double()).sum())
