"""What else could have been done in the guided turns of a rollout batch, scored on all processes and counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..credit.base import Batch
from ..generation import SamplingSettings
from ..methods import Recipe
from ..rollout.groups import Collector
from ..rollout.others import sample_actions
from ..scoring.alternatives import AlternativeTurn, alternative_turns
from ..scoring.pairs import TurnKey
from ..seeds import derive_seed
from ..types import Alternatives, Guidance, Trajectory
from .passes import PolicyPasses


@dataclass(frozen=True)
class AlternativeScoring:
    """Fills [`~taspo_trl.credit.base.Batch.alternatives`].

    Args:
        recipe (`Recipe`):
            The method.
        passes (`PolicyPasses`):
            The forwards of the frozen policy.
        tokenizer:
            The policy's.
        model_window (`int`, *optional*):
            Positions of the model.
    """

    recipe: Recipe
    passes: PolicyPasses
    tokenizer: Any
    model_window: int | None = None

    def scored(
        self,
        batch: Batch,
        guidance: Mapping[str, Guidance],
        collector: Collector,
        sampling: SamplingSettings,
        seed: int,
    ) -> tuple[Mapping[TurnKey, Alternatives], dict[str, float]]:
        """The alternatives of the turns of guided trajectories with an advantage, and metrics of their cost.

        Args:
            batch (`Batch`):
                Played, with outcomes.
            guidance (`Mapping[str, Guidance]`):
                By trajectory uid.
            collector (`Collector`):
                Who played it, and samples further replies where a world lists no actions.
            sampling (`SamplingSettings`), seed (`int`):
                How further replies are sampled.
        """
        moving = [t for t in batch.trajectories if batch.outcome_of[t.uid] != 0]
        num_sampled = 0

        def sampled(turns: Sequence[tuple[Trajectory, int]]) -> Mapping[TurnKey, Any]:
            nonlocal num_sampled
            num_sampled = needs.samples * len(turns)
            return _sampled(turns, collector, needs.samples, sampling, seed)

        needs = self.recipe.rule_needs
        turns = alternative_turns(
            moving,
            guidance,
            self.tokenizer,
            blocks=needs.blocks,
            window=self.model_window,
            most=needs.alternatives,
            sampled=sampled if needs.samples else None,
        )
        found = self.passes.score_alternatives(turns)
        num_turns = sum(len(t.turns) for t in moving if guidance.get(t.uid))
        return found, _metrics(turns, num_turns, num_sampled)


def _sampled(
    turns: Sequence[tuple[Trajectory, int]],
    collector: Collector,
    num_samples: int,
    sampling: SamplingSettings,
    seed: int,
) -> Mapping[TurnKey, Any]:
    """Each process asks its engine for a share of the turns."""
    with collector.generating():
        collector.engine.begin(sampling, derive_seed(seed, collector.process_index))
        found = sample_actions(
            turns[collector.process_index :: collector.num_processes],
            engine=collector.engine,
            pool=collector.pool,
            renderer=collector.renderer,
            settings=collector.rollout,
            num_samples=num_samples,
        )
    return dict(collector.gather(list(found.items())))


def _metrics(turns: Sequence[AlternativeTurn], num_turns: int, num_sampled: int) -> dict[str, float]:
    return {
        "alternatives/turn_share": len(turns) / num_turns if num_turns else 0.0,
        "alternatives/actions": sum(len(one.actions) for one in turns) / len(turns) if turns else 0.0,
        "alternatives/sampled_replies": float(num_sampled),
        "alternatives/prefix_tokens": float(sum(one.num_prefix_tokens for one in turns)),
        "alternatives/action_tokens": float(sum(one.num_action_tokens for one in turns)),
    }
