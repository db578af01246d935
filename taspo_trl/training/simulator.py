"""What a method asks of the simulator itself, found out once for a rollout batch and known on every process."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..credit.base import Batch
from ..credit.states import state_key
from ..environments.answers import finite_number
from ..environments.base import call
from ..environments.workers import EnvironmentPool
from ..errors import ConfigurationError
from ..generation import SamplingSettings
from ..methods import Recipe
from ..rollout.groups import Collector
from ..rollout.plans import UnknownState, WorldStates, knows_plans, knows_states, progress_told
from ..rollout.rewards import reward_of
from ..rollout.tasks import plan_groups
from ..seeds import derive_seed
from ..truth.values import play_values
from ..types import Trajectory


TurnKey = tuple[str, int]
"""(trajectory uid, turn index), the index being T_i for the state after the last action."""


@dataclass(frozen=True)
class Simulator:
    """Tells a batch what its method may know of the world beside what the policy saw.

    Args:
        recipe (`Recipe`):
            The method.
    """

    recipe: Recipe

    @property
    def is_asked(self) -> bool:
        """Whether the method asks for anything."""
        needs = self.recipe.needs
        return needs.progress or needs.values > 0 or (needs.state_key and self.recipe.knows_world)

    def told(
        self, batch: Batch, collector: Collector, sampling: SamplingSettings, seed: int
    ) -> tuple[Batch, dict[str, float]]:
        """The batch with what the method needs, and metrics of it. Each process asks about a share of the episodes.

        Args:
            batch (`Batch`):
                As it was played.
            collector (`Collector`):
                Who played it.
            sampling (`SamplingSettings`), seed (`int`):
                How episodes are continued.

        Raises:
            ConfigurationError: episodes are to be continued, and none of an environment can be replayed.
        """
        needs, metrics = self.recipe.needs, dict[str, float]()
        if needs.progress:
            batch = replace(batch, progress=_progress(batch, collector))
        if needs.state_key and self.recipe.knows_world:
            states = _states(batch, collector)
            unknown = sum(isinstance(one, UnknownState) for one in states.values())
            metrics["simulator/unknown_states"] = unknown / max(1, len(states))
            batch = replace(batch, state_key=state_key("world", states))
        if needs.values:
            values, told = _values(batch, collector, needs.values, sampling, seed)
            metrics |= told
            batch = replace(batch, values=values)
        return batch, metrics


def _progress(batch: Batch, collector: Collector) -> dict[TurnKey, float]:
    factories, timeout = collector.pool.factories, collector.rollout.environment_timeout
    told = {t.uid: progress_told(t, factories[t.environment], timeout=timeout) for t in _share(batch, collector)}
    found = [(uid, k, one) for uid, row in told.items() for k, one in enumerate(row)]
    return {(uid, k): one for uid, k, one in collector.gather(found) if one is not None}


def _states(batch: Batch, collector: Collector) -> dict[TurnKey, Hashable]:
    """The true state before each turn and after the last."""
    told = WorldStates(collector.pool.factories, timeout=collector.rollout.environment_timeout)
    found = [(t.uid, k, one) for t in _share(batch, collector) for k, one in enumerate(told.of(t))]
    known = {(uid, k): one for uid, k, one in collector.gather(found)}
    # What broke off is not replayed, and no statistic sees it; but every turn has a state.
    every = [(t.uid, k) for t in batch.trajectories for k in range(len(t.turns) + 1)]
    return {place: known.get(place, UnknownState(*place)) for place in every}


def _values(
    batch: Batch, collector: Collector, num_continuations: int, sampling: SamplingSettings, seed: int
) -> tuple[dict[TurnKey, float], dict[str, float]]:
    """V of the states between the first turn and the end, and metrics of it."""
    mine = _share(batch, collector)
    # As many episodes at a time as the rollout has.
    in_flight = max(1, len(batch.trajectories) // collector.num_processes // num_continuations)
    with collector.generating():
        found = play_values(
            mine,
            engine=collector.engine,
            pool=collector.pool,
            renderer=collector.renderer,
            rollout=collector.rollout,
            sampling=sampling,
            num_continuations=num_continuations,
            seed=derive_seed(seed, collector.process_index),
            value_of=lambda t: reward_of(t, collector.rewards),
            first_turn=1,
            is_strict=False,
            states_in_flight=in_flight,
        )
    lost = dict(collector.gather(list(found.lost.items())))
    for name, probe in collector.pool.probes.items():
        played = [t.uid for t in batch.trajectories if t.is_usable and t.environment == name]
        if played and all(uid in lost for uid in played):
            raise ConfigurationError(
                f"`value='continuations'` plays episodes on from their states, and `{type(probe).__name__}` does not "
                f"come back to any: {lost[played[0]]} Take value='siblings'."
            )
    means = dict(collector.gather(list(found.means().items())))
    return means, {
        "simulator/continued_replies": float(sum(collector.gather([found.num_replies]))),
        "simulator/dropped_continuations": float(sum(collector.gather([sum(map(len, found.dropped.values()))]))),
        "simulator/lost_share": len(lost) / max(1, sum(t.is_usable for t in batch.trajectories)),
    }


def _share(batch: Batch, collector: Collector) -> list[Trajectory]:
    """The usable trajectories that this process finds out about."""
    usable = [t for t in batch.trajectories if t.is_usable]
    return usable[collector.process_index :: collector.num_processes]


def check_simulator(
    recipe: Recipe, pool: EnvironmentPool, rows: Iterable[Mapping[str, Any]], has_reward_functions: bool = False
) -> None:
    """Refuse a method that asks for what an environment cannot tell.

    Args:
        recipe (`Recipe`):
            The method.
        pool (`EnvironmentPool`):
            The environments.
        rows (`Iterable[Mapping[str, Any]]`):
            The tasks; one of an environment without plans is begun, to see whether it tells progress.
        has_reward_functions (`bool`, *optional*, defaults to `False`):
            Whether rewards need more than the episode itself.

    Raises:
        ConfigurationError: it does not.
    """
    if recipe.needs.values and has_reward_functions:
        raise ConfigurationError(
            f"`method={recipe.name!r}` with value='continuations' rates every continuation by itself, and "
            "`reward_funcs` are called with whole groups of a task. Leave the functions out, or take value='siblings'."
        )
    if recipe.needs.state_key and recipe.knows_world:
        ignorant = next((probe for probe in pool.probes.values() if not knows_states(probe)), None)
        if ignorant is not None:
            raise ConfigurationError(
                f"`state_key='world'` is the simulator's true state, and `{type(ignorant).__name__}` has no "
                "`world_state()` that tells it. Give the class one, or take 'observation_actions'."
            )
    if not recipe.needs.progress:
        return
    for name, probe in pool.probes.items():
        if not knows_plans(probe) and not _tells_progress(name, pool.factories[name], rows):
            kind = type(probe).__name__
            raise ConfigurationError(
                f"`method={recipe.name!r}` weighs turns by the simulator's own progress, and `{kind}` knows none: it "
                "has no `oracle_plan()`, and the `info` of its `reset` holds no number `progress`. Give the class one "
                "of the two, or take another method."
            )


def _tells_progress(name: str | None, factory: Callable[[], Any], rows: Iterable[Mapping[str, Any]]) -> bool:
    row = next((row for row in rows if name is None or row.get("environment") == name), None)
    if row is None:
        return False
    (spec,) = plan_groups([row], 1, 0, 0, "", is_routed=name is not None)
    environment = factory()
    try:
        result = call(environment, "reset", {**spec.row, "seed": spec.seed})
    except Exception as error:
        raise ConfigurationError(
            f"`{type(environment).__name__}` was begun with the first task, to see whether it tells progress, and "
            f"failed: {type(error).__name__}: {error}"
        ) from error
    else:
        return finite_number(result.info.get("progress")) is not None
    finally:
        environment.close()
