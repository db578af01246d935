"""The simulator's own plan before each turn of a played episode, found by playing it again. An oracle."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from ..environments.base import TextEnvironment, call
from ..errors import ConfigurationError
from ..types import Trajectory


logger = logging.getLogger(__name__)


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
            if getattr(kind, "oracle_plan", TextEnvironment.oracle_plan) is TextEnvironment.oracle_plan:
                raise ConfigurationError(
                    f"`oracle_plan` shows the simulator's own plans, and `{kind.__name__}` knows none. Give the class "
                    "an `oracle_plan()`, or take another privileged context."
                )

    def __call__(self, trajectory: Trajectory) -> list[list[str] | None]:
        plans: list[list[str] | None] = [None] * len(trajectory.turns)
        if trajectory.seed is None:
            return plans
        environment = self._factories[trajectory.environment]()
        try:
            result: Any = call(environment, "reset", {**trajectory.task, "seed": trajectory.seed})
            for t, turn in enumerate(trajectory.turns):
                if result.observation != turn.observation:
                    break
                plans[t] = environment.oracle_plan()
                if t + 1 < len(trajectory.turns):
                    result = call(environment, "step", {"action": turn.action})
        except Exception as error:
            # What a world does wrong costs the turns that it cannot tell of, not the step.
            logger.warning("No plans for the rest of episode %s: %s: %s.", trajectory.uid, type(error).__name__, error)
        finally:
            environment.close()
        return plans
