"""What only the simulator knows of the turns of a played episode: plans, the progress they tell, true states."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from ..environments.base import TextEnvironment, attribute
from ..errors import ConfigurationError
from ..types import Trajectory
from .replay import ANSWER_SECONDS, states_told


class PlanOracle:
    """Trajectory -> for each turn the environment's `oracle_plan()` in the state before it.

    None from where the world does not answer as recorded, and for an episode without a seed. Each episode is played on
    an instance of its own, so that several threads may ask at once.

    Args:
        factories (`Mapping[str | None, Callable]`):
            Environment name -> callable that makes an instance, as a pool is given them.
        timeout (`float`, *optional*, defaults to `60.0`):
            Seconds for the plan of each state, see [`~taspo_trl.rollout.replay.states_told`].

    Raises:
        ConfigurationError: an environment knows no plans.
    """

    def __init__(self, factories: Mapping[str | None, Callable[[], Any]], timeout: float = ANSWER_SECONDS):
        self._factories, self._timeout = dict(factories), timeout
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
        told = states_told(trajectory, factory, lambda world: world.oracle_plan(), timeout=self._timeout)
        return told[: len(trajectory.turns)]


def knows_plans(environment: Any) -> bool:
    """Whether the class of an environment has an `oracle_plan()` of its own."""
    return _has_own(environment, "oracle_plan")


def progress_told(
    trajectory: Trajectory,
    factory: Callable[[], Any],
    *,
    timeout: float = ANSWER_SECONDS,
    is_strict: bool = False,
) -> list[float | None]:
    """By how much each action brought the goal nearer; None for a turn of which nothing exact is known.

    What the environment's answers told when the episode was played (`info["progress"]`): whoever wrote the world said
    there what progress is, records hold it, and it costs no replay. Where they told nothing in the whole episode, the
    actions that each turn saved of the environment's plan, found by playing the episode again. The two have other
    units, so that an episode has one of them alone.

    Args:
        trajectory (`Trajectory`):
            The episode.
        factory (`Callable`):
            Makes an instance of its environment.
        timeout (`float`, *optional*, defaults to `60.0`), is_strict (`bool`, *optional*, defaults to `False`):
            Of the replay, see [`~taspo_trl.rollout.replay.states_told`].

    Raises:
        ReplayError: with `is_strict` alone.
    """
    told = [turn.progress for turn in trajectory.turns]
    if any(one is not None for one in told):
        return told
    lengths = states_told(trajectory, factory, _plan_length, timeout=timeout, is_strict=is_strict)
    return [
        None if before is None or after is None else float(before - after)
        for before, after in itertools.pairwise(lengths)
    ]


def knows_states(environment: Any) -> bool:
    """Whether the class of an environment has a `world_state()` of its own."""
    return _has_own(environment, "world_state")


@dataclass(frozen=True, slots=True)
class UnknownState:
    """A state of which nothing is known, and that no other turn stands in."""

    uid: str
    turn_idx: int


class WorldStates:
    """A state key by the true state of the simulator, found by playing each episode again. An oracle.

    A state of which nothing is known is an [`UnknownState`].

    Args:
        factories (`Mapping[str | None, Callable]`):
            Environment name -> callable that makes an instance.
        most (`int`, *optional*, defaults to `4096`):
            Episodes that are remembered; the oldest are forgotten first.
        timeout (`float`, *optional*, defaults to `60.0`):
            Seconds for each state, see [`~taspo_trl.rollout.replay.states_told`].
    """

    def __init__(
        self,
        factories: Mapping[str | None, Callable[[], Any]],
        most: int = 4096,
        timeout: float = ANSWER_SECONDS,
    ):
        self._factories, self._most, self._timeout = dict(factories), most, timeout
        self._known: dict[tuple[str, ...], list[Hashable]] = {}

    def __call__(self, trajectory: Trajectory, turn_idx: int) -> Hashable:
        return self.of(trajectory)[turn_idx]

    def of(self, trajectory: Trajectory) -> list[Hashable]:
        """The states before each turn and after the last: T_i + 1 values."""
        episode = (trajectory.uid, *(turn.action for turn in trajectory.turns))
        known = self._known.get(episode)
        if known is None:
            factory = self._factories[trajectory.environment]
            told = states_told(
                trajectory, factory, lambda world: attribute(world, "world_state")(), timeout=self._timeout
            )
            known = [UnknownState(trajectory.uid, t) if one is None else one for t, one in enumerate(told)]
            while len(self._known) >= self._most:
                self._known.pop(next(iter(self._known)), None)  # another thread may have been faster
            self._known[episode] = known
        return known


def _plan_length(world: Any) -> int | None:
    plan = attribute(world, "oracle_plan")()
    return None if plan is None else len(plan)


def _has_own(environment: Any, name: str) -> bool:
    inherited = getattr(TextEnvironment, name)
    return getattr(type(environment), name, inherited) is not inherited
