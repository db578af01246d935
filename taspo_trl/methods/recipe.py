"""What a method is made of: an advantage rule, a weight rule, a distillation term, and the contexts they need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..credit.base import (
    AdvantageRule,
    Batch,
    Needs,
    NoWeights,
    OutcomeAdvantage,
    Ragged,
    Weighed,
    WeightRule,
    check_guarantees,
    combined,
    credits_of,
)
from ..loss.distillation.base import DistillTerm
from ..types import Credit


@dataclass(frozen=True)
class Recipe:
    """A method with its options set, ready for a trainer.

    Args:
        name (`str`):
            Its name in [`~taspo_trl.methods.METHODS`].
        advantage (`AdvantageRule`, *optional*), weight (`WeightRule`, *optional*):
            By default A_i on every sampled token: GRPO.
        distill (`DistillTerm`, *optional*):
            A loss beside or instead of the policy's.
        contexts (`tuple[str, ...]`, *optional*):
            Privileged contexts that give the blocks of `needs`, by their names in `guidance`.
    """

    name: str
    advantage: AdvantageRule = field(default_factory=OutcomeAdvantage)
    weight: WeightRule = field(default_factory=NoWeights)
    distill: DistillTerm | None = None
    contexts: tuple[str, ...] = ()
    teacher_model: str | None = None
    """Who plays the guided branch where `needs.teacher` is `"model"`: a model id, a folder, or a server's address."""

    @property
    def rule_needs(self) -> Needs:
        """What the advantage and the weight rule ask for."""
        return combined(self.advantage.needs, self.weight.needs)

    @property
    def needs(self) -> Needs:
        """What all of its parts ask for."""
        parts = [self.advantage.needs, self.weight.needs]
        return combined(*parts, *([self.distill.needs] if self.distill is not None else []))

    def assign(self, batch: Batch) -> Assigned:
        """The credit of every trajectory of a scored batch, checked against what the weight rule promises.

        Raises:
            InvariantError: a promise is broken; a bug of the rule.
        """
        advantages = self.advantage(batch)
        weighed = self.weight(batch, advantages)
        check_guarantees(batch, advantages, weighed, self.weight.needs, self.weight.guarantees)
        return Assigned(advantages, weighed, credits_of(batch, advantages, weighed, self.name))


@dataclass(frozen=True)
class Assigned:
    """What a method made of a batch."""

    advantages: Ragged
    """A_it."""
    weighed: Weighed
    """A~_itk, with the rule's own metrics."""
    credits: Mapping[str, Credit]
    """By trajectory uid, as it is recorded."""
