"""When the next request may go out: limits per minute, waits that the server asked for, waits between attempts.

Per process: several processes share neither limits nor waits.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable


_WINDOW_SECONDS = 60.0
_FIRST_BACKOFF = 1.0
_MAX_BACKOFF = 30.0


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
