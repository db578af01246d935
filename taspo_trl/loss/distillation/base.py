"""The seam for distillation terms: a loss of their own on the distilled tokens, beside the policy's.

Pure tensor arithmetic; the policy's loss is E8 of docs/method.md. With m_k the coefficient of a distilled token, the
loss of an optimizer step is

    policy_share(n) * (clipped surrogate of E8) + share(n) * sum over k of m_k * token_loss_k

KL and entropy bonus of E8 stay as the user sets them. The N distilled tokens are reply tokens of turns that have a
teacher's score, from any rows, micro-batches and processes. No gradient ever flows through the teacher's branch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ...credit.base import Needs


if TYPE_CHECKING:
    import torch


Reduction = Literal["nested", "token_mean"]


@dataclass(frozen=True)
class Branch:
    """What one branch says at the positions of N tokens; the student's with gradient, the teacher's without.

    Args:
        logps (`torch.Tensor` of shape `(N,)`):
            log-probability of each sampled token, at the temperature at which it was sampled.
        top_ids (`torch.Tensor` of shape `(N, K)`, *optional*):
            The same ids in both branches, for a term that compares the top k.
        top_logps (`torch.Tensor` of shape `(N, K)`, *optional*):
            log-probabilities of `top_ids` over the whole vocabulary, at the term's temperature.
        tail_logps (`torch.Tensor` of shape `(N,)`, *optional*):
            log-probability of all other tokens together; minus infinity where there are none.
        all_logps (`torch.Tensor` of shape `(N, V)`, *optional*):
            The whole distribution, at the term's temperature, for a term that compares it.
    """

    logps: torch.Tensor
    top_ids: torch.Tensor | None = None
    top_logps: torch.Tensor | None = None
    tail_logps: torch.Tensor | None = None
    all_logps: torch.Tensor | None = None

    def at(self, which: Any) -> Branch:
        """The branch at some of its positions: a mask, indices or a slice."""
        return self._each(lambda value: value[which])

    def detach(self) -> Branch:
        """The branch without gradient."""
        return self._each(lambda value: value.detach())

    def _each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Branch:
        more = (self.top_ids, self.top_logps, self.tail_logps, self.all_logps)
        return Branch(change(self.logps), *(None if value is None else change(value) for value in more))


class DistillTerm(Protocol):
    """(c) What is learned from the teacher's branch, beside or instead of the outcome."""

    @property
    def needs(self) -> Needs: ...

    @property
    def reduction(self) -> Reduction:
        """`"nested"`: m_k = c_itk, with B and T_i counted over turns that have a teacher's score. `"token_mean"`:
        m_k = 1 / N, over the distilled tokens of the whole optimizer step on all processes."""

    def policy_share(self, step: int) -> float:
        """The factor of E8's surrogate after `step` completed updates."""

    def share(self, step: int) -> float:
        """The factor of the term's own loss."""

    def token_loss(
        self, student: Branch, teacher: Branch, old_logps: torch.Tensor, advantages: torch.Tensor
    ) -> torch.Tensor:
        """(N,) loss of each distilled token, with gradient through `student` alone.

        Args:
            student (`Branch`), teacher (`Branch`):
                Both branches, with what `needs.vocabulary` asks for.
            old_logps (`torch.Tensor` of shape `(N,)`):
                log pi_old of the sampled tokens.
            advantages (`torch.Tensor` of shape `(N,)`):
                A~_itk.
        """


def check_share(name: str, value: float, most: float | None = None) -> None:
    """Raise `ValueError` for a factor of a loss that is negative, not a number, or above `most`."""
    if not 0 <= value <= (float("inf") if most is None else most):
        upper = "" if most is None else f" and at most {most:g}"
        raise ValueError(f"`{name}` must be at least 0{upper}, got {value!r}.")


def check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Raise `ValueError` for a value that is none of `choices`."""
    if value not in choices:
        raise ValueError(f"`{name}` must be one of {', '.join(map(repr, choices))}, got {value!r}.")
