"""What a method is made of: an advantage rule, a weight rule, a distillation term, and the contexts they need."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

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
from ..guidance.constructions import CONSTRUCTIONS, maker_of
from ..guidance.stage import Wanted
from ..loss.distillation.base import DistillTerm
from ..types import Credit, ReplyScore


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
        state_key (`str`, *optional*, defaults to `"observation"`):
            When two turns stand in the same state, see [`~taspo_trl.credit.states.state_key`].
        place (`str`, *optional*, defaults to `"splice"`):
            Where contexts of whole trajectories stand, see [`~taspo_trl.types.Block`].
        teacher_model (`str`, *optional*):
            Who plays the guided branch where `needs.teacher` is `"model"`: a model id, a folder, or a server's
            address.
    """

    name: str
    advantage: AdvantageRule = field(default_factory=OutcomeAdvantage)
    weight: WeightRule = field(default_factory=NoWeights)
    distill: DistillTerm | None = None
    state_key: str = "observation"
    place: Literal["splice", "start"] = "splice"
    teacher_model: str | None = None

    @property
    def rule_needs(self) -> Needs:
        """What the advantage and the weight rule ask for."""
        return combined(self.advantage.needs, self.weight.needs)

    @property
    def needs(self) -> Needs:
        """What all of its parts ask for."""
        parts = [self.advantage.needs, self.weight.needs]
        return combined(*parts, *([self.distill.needs] if self.distill is not None else []))

    def reads_scores(self, batch: Batch) -> bool:
        """Whether scores change any credit of a batch; where a schedule has ended, or not begun, they do not.

        Args:
            batch (`Batch`):
                Only its step and the run's length are looked at.
        """
        of_weight = self.weight.needs.scope != "none" and self._weighs(batch)
        return self.advantage.needs.scope != "none" or of_weight

    def reads_guidance(self, batch: Batch, updates: Iterable[int]) -> bool:
        """Whether any part looks at what guidance says about a batch: one whose schedule is at 0 does not.

        Args:
            batch (`Batch`):
                As in [`reads_scores`].
            updates (`Iterable[int]`):
                n of the updates that the batch feeds, for a distillation term.
        """
        if not self.needs.blocks:
            return True  # made because the user asked for it, and for no schedule's sake
        by_weight = bool(self.weight.needs.blocks) and self._weighs(batch)
        term = self.distill
        by_term = term is not None and bool(term.needs.blocks) and any(term.share(n) != 0 for n in updates)
        return bool(self.advantage.needs.blocks) or by_weight or by_term

    def _weighs(self, batch: Batch) -> bool:
        """Whether the weight rule's schedule is not at 0; a rule without a schedule always weighs."""
        asks = getattr(self.weight, "reads_scores", None)
        return asks is None or asks(batch)

    @property
    def contexts(self) -> tuple[str, ...]:
        """The privileged contexts that make the blocks of `needs`, by their names in `guidance`."""
        return tuple(dict.fromkeys(maker_of(block) for block in self.needs.blocks))

    @property
    def knows_world(self) -> bool:
        """Whether its states are the simulator's true ones, an oracle."""
        return self.state_key == "world"

    @property
    def asks_analyzer(self) -> bool:
        """Whether a context of it is made by the analyzer."""
        return any(CONSTRUCTIONS[name].asks for name in self.contexts if name in CONSTRUCTIONS)

    @property
    def asks_oracle(self) -> bool:
        """Whether a context of it is the simulator's own plan."""
        return any(CONSTRUCTIONS[name].is_oracle for name in self.contexts if name in CONSTRUCTIONS)

    @property
    def draws_on_successes(self) -> bool:
        """Whether a context of it needs a verified success."""
        return any(CONSTRUCTIONS[name].needs_success for name in self.contexts if name in CONSTRUCTIONS)

    @property
    def wanted(self) -> Wanted:
        """Which trajectories its contexts are made for."""
        needs, mean_one = self.needs, self.weight.guarantees.mean_one
        # Weights with mean one over the units of one block are 1 where there is a single unit.
        needs_two = mean_one in ("turns", "action_tokens") and len(self.weight.needs.blocks) == 1
        return Wanted(
            allocation="token" if mean_one == "action_tokens" else "action",
            scope="reply" if needs.scope == "reply" else "action",
            min_candidates=2 if needs_two else 1,
            flat_groups=needs.flat_groups,
        )

    def assign(self, batch: Batch) -> Assigned:
        """The credit of every trajectory of a scored batch, checked against what the weight rule promises.

        Raises:
            InvariantError: a promise is broken; a bug of the rule.
        """
        advantages = self.advantage(batch)
        weighed = self.weight(batch, advantages)
        check_guarantees(batch, advantages, weighed, self.weight.needs, self.weight.guarantees)
        report = getattr(self.advantage, "report", None)
        if report is not None:
            weighed = replace(weighed, metrics={**report(batch), **weighed.metrics})
        return Assigned(advantages, weighed, credits_of(batch, advantages, weighed, self.name))

    def weighed_part(
        self,
        batch: Batch,
        advantages: Ragged,
        uids: Collection[str],
        scores: Mapping[tuple[str, int], ReplyScore],
    ) -> dict[str, list[list[float]]]:
        """A~_itk of some trajectories, by a weight rule that is `per_trajectory`.

        Args:
            batch (`Batch`), advantages (`Ragged`):
                The whole batch, and A_it of it.
            uids (`Collection[str]`), scores (`Mapping`):
                Which trajectories, and the scores of their turns.
        """
        part = batch.part(uids, scores=scores)
        of = {t.uid: row for t, row in zip(batch.trajectories, advantages, strict=True)}
        weighed = self.weight(part, [of[t.uid] for t in part.trajectories])
        return {t.uid: row for t, row in zip(part.trajectories, weighed.advantages, strict=True)}


@dataclass(frozen=True)
class Assigned:
    """What a method made of a batch."""

    advantages: Ragged
    """A_it."""
    weighed: Weighed
    """A~_itk, with the rule's own metrics."""
    credits: Mapping[str, Credit]
    """By trajectory uid, as it is recorded."""
