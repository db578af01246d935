"""Whether the analyzer still works: when to say loudly that it does not, and when to stop asking.

Pure bookkeeping. Failures that another try may mend are only counted. Refusals that come back unchanged pause the
calls, with a probe after each pause: a run must not send hundreds of identical requests that are refused.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from .failures import TRANSIENT


_SUSTAINED = 8
"""Failed calls in a row that are no longer bad luck."""
_FIRST_PAUSE = 60.0
_MAX_PAUSE = 3600.0


class Health:
    """Counts the calls of one analyzer."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._lock = threading.Lock()
        self._num_failed = 0
        self._num_refused = 0
        self._is_warned = False
        self._pause = _FIRST_PAUSE
        self._paused_until = float("-inf")
        self.has_answered = False
        """Whether a call ever succeeded."""

    def may_call(self) -> bool:
        """False during a pause. At its end one call goes through as a probe, and the others wait for its result."""
        with self._lock:
            if self._num_refused < _SUSTAINED:
                return True
            now = self._clock()
            if now < self._paused_until:
                return False
            self._paused_until = now + self._pause
            return True

    def succeeded(self) -> None:
        with self._lock:
            self.has_answered = True
            self._num_failed = self._num_refused = 0
            self._is_warned = False
            self._pause = _FIRST_PAUSE

    def failed(self, kind: str) -> str:
        """Count a failed call; gives a warning when it is time for one, else an empty string."""
        with self._lock:
            self._num_failed += 1
            self._num_refused = 0 if kind in TRANSIENT else self._num_refused + 1
            if self._num_refused >= _SUSTAINED:
                self._pause = _FIRST_PAUSE if self._num_refused == _SUSTAINED else min(_MAX_PAUSE, 2 * self._pause)
                self._paused_until = self._clock() + self._pause
            if self._num_failed < _SUSTAINED or self._is_warned:
                return ""
            self._is_warned = True
            end = "No more calls are made but a probe now and then." if self._num_refused >= _SUSTAINED else ""
            return (
                f"THE ANALYZER HAS FAILED {self._num_failed} TIMES IN A ROW ({kind}): the affected trajectories "
                f"train with plain GRPO weights. {end}".strip()
            )
