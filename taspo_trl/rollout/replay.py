"""A recorded episode played again from its row, seed and actions, so that its world can be asked about each state."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from ..environments.base import ResetResult, StepResult, call
from ..errors import ReplayError
from ..types import Trajectory


logger = logging.getLogger(__name__)
Told = TypeVar("Told")


def replay(trajectory: Trajectory, environment: Any) -> Iterator[ResetResult | StepResult]:
    """The environment's answers before each turn and after the last; it stands in that state at each of them.

    Args:
        trajectory (`Trajectory`):
            With its seed.
        environment:
            An instance of its environment, in any state.

    Raises:
        ReplayError: the world does not answer as it did.
    """
    if trajectory.seed is None:
        raise ReplayError(f"Episode {trajectory.uid} was recorded without its seed, so it cannot be replayed.")
    result = _answer(trajectory, environment, "reset", {**trajectory.task, "seed": trajectory.seed})
    if not trajectory.turns:
        yield result
    for t, turn in enumerate(trajectory.turns):
        check_text(trajectory, t, turn.observation, result.observation)
        yield result
        if t == len(trajectory.turns) - 1 and trajectory.stop_reason.is_infrastructure:
            return
        result = _answer(trajectory, environment, "step", {"action": turn.action})
        check_text(trajectory, t + 1, turn.next_observation, result.observation)
    if trajectory.turns:
        yield result


def states_told(
    trajectory: Trajectory, factory: Callable[[], Any], ask: Callable[[Any], Told | None]
) -> list[Told | None]:
    """What a world says of the state before each turn and after the last: T_i + 1 values.

    None from where the world does not answer as recorded. The episode is played on an instance of its own, so that
    several threads may ask at once.

    Args:
        trajectory (`Trajectory`):
            The episode.
        factory (`Callable`):
            Makes an instance of its environment.
        ask (`Callable`):
            The instance, in the state that is asked about -> what is told.
    """
    told: list[Told | None] = [None] * (len(trajectory.turns) + 1)
    if trajectory.seed is None:
        return told
    try:
        with contextlib.closing(factory()) as environment:
            for t, _ in enumerate(replay(trajectory, environment)):
                told[t] = ask(environment)
    except Exception as error:
        # What a world does wrong costs the turns that it cannot tell of, not the step.
        logger.warning(
            "Nothing is told of the rest of episode %s: %s: %s", trajectory.uid, type(error).__name__, error
        )
    return told


def check_text(trajectory: Trajectory, state: int, recorded: str, replayed: str) -> None:
    """Refuse a world that answers with another text than the recorded one.

    Raises:
        ReplayError: it does.
    """
    if recorded != replayed:
        raise ReplayError(
            f"Episode {trajectory.uid} does not replay: before turn {state} the record says {recorded[:120]!r}, and "
            f"the same row, seed and actions now give {replayed[:120]!r}. Its turns cannot be labelled."
        )


def _answer(trajectory: Trajectory, environment: Any, method: str, arguments: dict[str, Any]) -> Any:
    try:
        return call(environment, method, arguments)
    except Exception as error:
        raise ReplayError(f"Episode {trajectory.uid} cannot be replayed: {type(error).__name__}: {error}") from error
