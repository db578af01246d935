"""A recorded episode played again from its row, seed and actions, so that its world can be asked about each state."""

from __future__ import annotations

import contextlib
import itertools
import logging
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from ..environments.answers import worded
from ..environments.base import ResetResult, StepResult, call
from ..errors import ReplayError
from ..types import Trajectory


logger = logging.getLogger(__name__)
Told = TypeVar("Told")
ANSWER_SECONDS = 60.0
"""How long a world that is asked about a state has for it: `environment_timeout` of the rollout."""


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
    trajectory: Trajectory,
    factory: Callable[[], Any],
    ask: Callable[[Any], Told | None],
    *,
    timeout: float = ANSWER_SECONDS,
    is_strict: bool = False,
) -> list[Told | None]:
    """What a world says of the state before each turn and after the last: T_i + 1 values.

    None from where the world does not answer as recorded, or not in time. The episode is played on an instance of its
    own in a thread of its own, so that several threads may ask at once, and none waits for a world that hangs.

    Args:
        trajectory (`Trajectory`):
            The episode.
        factory (`Callable`):
            Makes an instance of its environment.
        ask (`Callable`):
            The instance, in the state that is asked about -> what is told.
        timeout (`float`, *optional*, defaults to `60.0`):
            Seconds for each state, as the rollout's answers have. A call that hangs is given up with its thread.
        is_strict (`bool`, *optional*, defaults to `False`):
            Whether a world that does not answer as recorded raises. Else what it cannot tell of is None.

    Raises:
        ReplayError: with `is_strict` alone.
    """
    told: list[Told | None] = [None] * (len(trajectory.turns) + 1)
    if trajectory.seed is None and not is_strict:
        return told
    answers: queue.SimpleQueue[Told | BaseException | _Over | None] = queue.SimpleQueue()
    is_given_up = threading.Event()

    def play() -> None:
        try:
            with contextlib.closing(factory()) as environment:
                for _ in replay(trajectory, environment):
                    if is_given_up.is_set():
                        return
                    answers.put(ask(environment))
        except BaseException as error:  # what came of the call, told to whoever waits for it
            answers.put(error)
        else:
            answers.put(_Over())

    threading.Thread(target=play, name="taspo-replay", daemon=True).start()
    error: Exception | None = None
    for t in itertools.count():
        try:
            answer = answers.get(timeout=timeout)
        except queue.Empty:
            is_given_up.set()
            error = ReplayError(
                f"Episode {trajectory.uid} cannot be replayed: no answer for the state before turn {t} within "
                f"{timeout:g} s."
            )
            break
        if isinstance(answer, _Over):
            break
        if isinstance(answer, Exception):
            error = answer
            break
        if isinstance(answer, BaseException):  # meant for the program
            raise answer
        told[t] = answer
    if error is None:
        return told
    if is_strict:
        if isinstance(error, ReplayError):
            raise error
        raise ReplayError(f"Episode {trajectory.uid} cannot be replayed: {worded(error)}") from error
    # What a world does wrong costs the turns that it cannot tell of, not the step.
    logger.warning("Nothing is told of the rest of episode %s: %s", trajectory.uid, worded(error))
    return told


class _Over:
    """The world has told of every state."""


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
