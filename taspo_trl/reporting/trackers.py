"""Trackers that raise, hang or answer nonsense cost a run their own entries, never the run."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

import trl.trainer.grpo_trainer as trl_module
from transformers import TrainerCallback, TrainerControl
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

from ..environments.answers import worded
from ..redaction import redacted


logger = logging.getLogger(__name__)

_NAME_OF = {kind: name for name, kind in INTEGRATION_TO_CALLBACK.items()}
_EVENTS = tuple(name for name in vars(TrainerCallback) if name.startswith("on_"))
_TABLES = ("wandb", "trackio")
"""Modules through which TRL itself sends its table of completions."""
_SHOWN_CHARS = 300
_REPEAT_SECONDS = 5.0


class TookTooLongError(BaseException):
    """A call was interrupted. No `Exception`: a library that swallows those would go on waiting."""


class Trackers:
    """Calls trackers for a run.

    Every call is made in the thread that asks for it, since trackers keep their run in variables of the thread.

    Args:
        timeout (`float`):
            Seconds that one call may take, and that failing calls of a tracker may take together; a tracker beyond
            them gets nothing more. Only the main thread can interrupt a call, and Windows cannot.
    """

    def __init__(self, timeout: float):
        self._timeout = timeout
        self._seconds_lost: dict[str, float] = {}
        self._told: set[str] = set()
        self._given_up: set[str] = set()

    def guard(self, callbacks: Iterable[TrainerCallback]) -> None:
        """Let the trackers among a Trainer's callbacks be called through [`call`]; others stay as they are."""
        for callback in callbacks:
            name = _NAME_OF.get(type(callback))
            if name is not None and not hasattr(callback, "_taspo_guarded"):
                for event in _EVENTS:
                    setattr(callback, event, self._event(name, getattr(callback, event)))
                vars(callback)["_taspo_guarded"] = True

    def call(self, name: str, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """What `function` returns; None where it failed, which is said once for each tracker.

        Args:
            name (`str`):
                The tracker, as in `report_to`.
            function (`Callable`), *arguments, **options:
                The call.
        """
        if name in self._given_up:
            return None
        started = time.monotonic()
        try:
            with at_most(self._timeout):
                return function(*arguments, **options)
        except TookTooLongError:
            self._give_up(name, f"did not answer within {self._timeout:g} s (`tracker_timeout`)")
        except Exception as error:
            self._note(name, error, time.monotonic() - started)
        return None

    @contextlib.contextmanager
    def tables(self, report_to: Iterable[str]) -> Iterator[None]:
        """Inside, TRL's `log` reaches the trackers through [`call`] too.

        It has no seam for that: the modules' names in its own are replaced while it runs.

        Args:
            report_to (`Iterable[str]`):
                The trackers of the run.
        """
        kept = {name: getattr(trl_module, name) for name in _TABLES if name in report_to and hasattr(trl_module, name)}
        for name, module in kept.items():
            setattr(trl_module, name, _GuardedModule(self, name, module))
        try:
            yield
        finally:
            for name, module in kept.items():
                setattr(trl_module, name, module)

    def _event(self, name: str, method: Callable[..., Any]) -> Callable[..., TrainerControl | None]:
        def guarded(*arguments: Any, **options: Any) -> TrainerControl | None:
            answer = self.call(name, method, *arguments, **options)
            return answer if isinstance(answer, TrainerControl) else None

        return guarded

    def _note(self, name: str, error: Exception, seconds: float) -> None:
        self._seconds_lost[name] = self._seconds_lost.get(name, 0.0) + seconds
        what = redacted(" ".join(worded(error).split()))[:_SHOWN_CHARS]
        if self._seconds_lost[name] > self._timeout:
            self._give_up(name, f"failed for {self._timeout:g} s together (`tracker_timeout`), last with {what}")
        elif name not in self._told:
            self._told.add(name)
            logger.warning(
                "The tracker %s failed: %s. The run goes on, and its next entries are tried again; this is said once.",
                name,
                what,
            )

    def _give_up(self, name: str, why: str) -> None:
        self._given_up.add(name)
        logger.warning(
            "The tracker %s %s: it gets nothing more of this run, which goes on. Every number that is logged also "
            "stands in `trainer_state.json`, which `taspo view` shows.",
            name,
            why,
        )


class _GuardedModule:
    """A tracker's module whose functions and classes are called through [`Trackers.call`]."""

    def __init__(self, trackers: Trackers, name: str, module: Any):
        self._trackers, self._name, self._module = trackers, name, module

    def __getattr__(self, attribute: str) -> Any:
        found = getattr(self._module, attribute)
        if not callable(found):
            return found
        return lambda *arguments, **options: self._trackers.call(self._name, found, *arguments, **options)


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Interrupt what runs inside after `seconds`, from the main thread only; elsewhere it takes its time.

    Raises:
        TookTooLongError: it took longer.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return
    is_open = True

    def interrupt(number: int, frame: FrameType | None) -> None:
        if is_open:
            raise TookTooLongError

    started = time.monotonic()
    handler = signal.signal(signal.SIGALRM, interrupt)
    delay, interval = signal.setitimer(signal.ITIMER_REAL, seconds, _REPEAT_SECONDS)
    try:
        yield
    finally:
        is_open = False
        if delay:  # somebody else's alarm goes on
            delay = max(delay - (time.monotonic() - started), 1e-3)
        signal.setitimer(signal.ITIMER_REAL, delay, interval)
        signal.signal(signal.SIGALRM, handler if handler is not None else signal.SIG_DFL)
