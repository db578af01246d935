"""What only the simulator knows of the turns of a played episode: its own plans, and the progress they tell."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

from ..environments.base import TextEnvironment, attribute
from ..errors import ConfigurationError
from ..types import Trajectory
from .replay import states_told


class PlanOracle:
    """Trajectory -> for each turn the environment's `oracle_plan()` in the state before it.

    None from where the world does not answer as recorded, and for an episode without a seed. Each episode is played on
    an instance of its own, so that several threads may ask at once.

    Args:
        factories (`Mapping[str | None, Callable]`):
            Environment name -> callable that makes an instance, as a pool is given them.

    Raises:
        ConfigurationError: an environment knows no plans.
    """

    def __init__(self, factories: Mapping[str | None, Callable[[], Any]]):
        self._factories = dict(factories)
        for factory in self._factories.values():
            environment = factory()
            kind = type(environment)
            environment.close()
            if not knows_plans(environment):
                raise ConfigurationError(
                    f"`oracle_plan` shows the simulator's own plans, and `{kind.__name__}` knows none. Give the class "
                    "an `oracle_plan()`, or take another privileged context."
                )

    def __call__(self, trajectory: Trajectory) -> list[list[str] | None]:
        factory = self._factories[trajectory.environment]
        return states_told(trajectory, factory, lambda world: world.oracle_plan())[: len(trajectory.turns)]


def knows_plans(environment: Any) -> bool:
    """Whether the class of an environment has an `oracle_plan()` of its own."""
    own = getattr(type(environment), "oracle_plan", TextEnvironment.oracle_plan)
    return own is not TextEnvironment.oracle_plan


def progress_told(trajectory: Trajectory, factory: Callable[[], Any]) -> list[float | None]:
    """By how much each action brought the goal nearer; None for a turn of which nothing exact is known.

    What the environment's answers told when the episode was played (`info["progress"]`). Where they told nothing, the
    actions that each turn saved of the environment's plan, found by playing the episode again.

    Args:
        trajectory (`Trajectory`):
            The episode.
        factory (`Callable`):
            Makes an instance of its environment.
    """
    told = [turn.progress for turn in trajectory.turns]
    if any(one is not None for one in told):
        return told
    lengths = states_told(trajectory, factory, _plan_length)
    return [
        None if before is None or after is None else float(before - after)
        for before, after in itertools.pairwise(lengths)
    ]


def _plan_length(world: Any) -> int | None:
    plan = attribute(world, "oracle_plan")()
    return None if plan is None else len(plan)
