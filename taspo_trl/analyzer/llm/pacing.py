"""When the next request may go out: limits per minute, waits that were asked for, and pauses after failures.

Per process: several processes share neither limits nor waits.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable

from .failures import TRANSIENT


_WINDOW_SECONDS = 60.0
_FIRST_BACKOFF = 1.0
_MAX_BACKOFF = 30.0
_SUSTAINED = 8
"""Refusals in a row after which nothing is asked for now."""
_SUSTAINED_TRANSIENT = 4
"""The same for calls that failed, each with all its attempts, in a way that another try may mend."""
_FIRST_PAUSE = 60.0
_MAX_PAUSE = 3600.0
_MAX_TRANSIENT_PAUSE = 600.0  # a server that comes back is used again within a few steps


class Pace:
    """Lets requests through one by one as the limits allow.

    Args:
        requests_per_minute (`int`, *optional*), tokens_per_minute (`int`, *optional*):
            Limits over any 60 seconds; None = unlimited.
        clock (`Callable`, *optional*):
            Seconds; for tests.
    """

    def __init__(
        self,
        requests_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._max_requests = requests_per_minute
        self._max_tokens = tokens_per_minute
        self._clock = clock
        self._lock = threading.Lock()
        self._sent: deque[list[float]] = deque()  # [time, tokens] of the last minute
        self._hold_until = float("-inf")

    def wait_turn(self, tokens: int, closed: threading.Event) -> Ticket | None:
        """Block until a request of about `tokens` tokens may go out; None when `closed` is set first."""
        while not closed.is_set():
            with self._lock:
                seconds = self._seconds_to_turn(tokens)
                if seconds <= 0:
                    entry = [self._clock(), float(tokens)]
                    self._sent.append(entry)
                    return Ticket(entry)
            closed.wait(min(seconds, _WINDOW_SECONDS))
        return None

    def hold(self, seconds: float) -> None:
        """Send nothing for `seconds`: the server asked for it, and it means every worker."""
        with self._lock:
            self._hold_until = max(self._hold_until, self._clock() + seconds)

    def _seconds_to_turn(self, tokens: int) -> float:
        now = self._clock()
        while self._sent and self._sent[0][0] <= now - _WINDOW_SECONDS:
            self._sent.popleft()
        waits = [self._hold_until - now]
        if self._max_requests is not None and len(self._sent) >= self._max_requests:
            waits.append(self._sent[len(self._sent) - self._max_requests][0] + _WINDOW_SECONDS - now)
        if self._max_tokens is not None:
            # A request larger than the limit goes out alone: waiting would never let it through.
            excess = sum(count for _, count in self._sent) + tokens - self._max_tokens
            for sent_at, count in self._sent:
                if excess <= 0:
                    break
                waits.append(sent_at + _WINDOW_SECONDS - now)
                excess -= count
        return max(waits)


class Ticket:
    """One request that was let through."""

    def __init__(self, entry: list[float]):
        self._entry = entry

    def used(self, tokens: int) -> None:
        """Replace the estimate by what the server counted."""
        self._entry[1] = float(tokens)


def backoff_seconds(attempt: int, rng: random.Random) -> float:
    """The wait after the `attempt`-th failed attempt (from 1): doubling, with half of it left to chance.

    Workers that failed together must not come back together.
    """
    return min(_MAX_BACKOFF, _FIRST_BACKOFF * 2 ** (attempt - 1)) * rng.uniform(0.5, 1.0)


class Health:
    """Whether the analyzer still works: when to say loudly that it does not, and when to stop asking.

    An endpoint that hangs must not take half an hour of every step, and a run must not send hundreds of identical
    requests that are refused: several failures in a row pause the calls, with one probe after each pause.

    Args:
        probe_seconds (`float`, *optional*, defaults to `0.0`):
            How long a probe may take; no other goes out meanwhile.
        clock (`Callable`, *optional*):
            Seconds; for tests.
    """

    def __init__(self, probe_seconds: float = 0.0, clock: Callable[[], float] = time.monotonic):
        self._probe_seconds = probe_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._num_failed = 0
        self._num_refused = 0
        self._is_warned = False
        self._is_probing = False
        self._pause = 0.0
        self._paused_until = float("-inf")
        self.has_answered = False
        """Whether a call ever succeeded."""

    @property
    def is_refused(self) -> bool:
        """Whether the last calls all came back refused, which no other try mends."""
        return self._num_refused >= _SUSTAINED

    @property
    def is_probing(self) -> bool:
        """Whether a probe is under way; one attempt is enough for it."""
        return self._is_probing

    def may_call(self) -> bool:
        """False during a pause. At its end one call goes through as a probe, and the others wait for its result."""
        with self._lock:
            if not self._pause:
                return True
            now = self._clock()
            if now < self._paused_until:
                return False
            self._paused_until = now + max(self._pause, self._probe_seconds)
            self._is_probing = True
            return True

    def succeeded(self) -> None:
        with self._lock:
            self.has_answered = True
            self._num_failed = self._num_refused = 0
            self._is_warned = self._is_probing = False
            self._pause = 0.0

    def failed(self, kind: str) -> str:
        """Count a failed call; gives a warning when it is time for one, else an empty string."""
        with self._lock:
            is_transient = kind in TRANSIENT
            self._num_failed += 1
            self._num_refused = 0 if is_transient else self._num_refused + 1
            if self._is_probing or not self._pause:  # and not one that was on its way when the pause began
                if self.is_refused or (is_transient and self._num_failed >= _SUSTAINED_TRANSIENT):
                    longest = _MAX_TRANSIENT_PAUSE if is_transient else _MAX_PAUSE
                    self._pause = min(longest, 2 * self._pause or _FIRST_PAUSE)
                    self._paused_until = self._clock() + self._pause
                self._is_probing = False
            if self._is_warned or not self._pause:
                return ""
            self._is_warned = True
            return (
                f"THE ANALYZER HAS FAILED {self._num_failed} TIMES IN A ROW ({kind}): the affected trajectories "
                "train with plain GRPO weights. No more calls are made but a probe now and then."
            )
