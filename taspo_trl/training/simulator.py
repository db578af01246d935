"""What a method asks of the simulator itself, found out once for a rollout batch and known on every process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..credit.base import Batch
from ..environments.answers import finite_number
from ..environments.base import call
from ..environments.workers import EnvironmentPool
from ..errors import ConfigurationError
from ..methods import Recipe, recipe_for
from ..rollout.groups import Collector
from ..rollout.plans import knows_plans, progress_told
from ..rollout.tasks import plan_groups
from ..types import Trajectory


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
        return self.recipe.needs.progress

    def told(self, batch: Batch, collector: Collector) -> Batch:
        """The batch with what the method needs. Each process replays a share of the episodes.

        Args:
            batch (`Batch`):
                As it was played.
            collector (`Collector`):
                Who played it.
        """
        if self.recipe.needs.progress:
            batch = replace(batch, progress=_progress(batch, collector))
        return batch


def _progress(batch: Batch, collector: Collector) -> dict[tuple[str, int], float]:
    factories = collector.pool.factories
    mine = _share(batch, collector)
    found = [(t.uid, k, one) for t in mine for k, one in enumerate(progress_told(t, factories[t.environment]))]
    return {(uid, k): one for uid, k, one in collector.gather(found) if one is not None}


def _share(batch: Batch, collector: Collector) -> list[Trajectory]:
    """The usable trajectories that this process finds out about."""
    usable = [t for t in batch.trajectories if t.is_usable]
    return usable[collector.process_index :: collector.num_processes]


def check_simulator(args: Any, pool: EnvironmentPool, rows: Iterable[Mapping[str, Any]]) -> None:
    """Refuse a method that asks for what an environment cannot tell.

    Args:
        args ([`~taspo_trl.TASPOConfig`]):
            Names the method.
        pool (`EnvironmentPool`):
            The environments.
        rows (`Iterable[Mapping[str, Any]]`):
            The tasks; one of an environment without plans is begun, to see whether it tells progress.

    Raises:
        ConfigurationError: it does not.
    """
    recipe = recipe_for(args)
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
