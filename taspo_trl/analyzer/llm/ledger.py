"""What the analyzer's calls cost: every call is booked, in total and for a budget that several processes share."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

from ..base import AnalyzerReply
from .database import Database


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over calls."""

    calls: int = 0
    """Questions, those answered from the cache included."""
    cached: int = 0
    requests: int = 0
    """HTTP requests: first attempts and retries."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float | None = None
    """None as long as no price is known."""
    seconds: float = 0.0
    """Summed over workers."""
    errors: dict[str, int] = field(default_factory=dict)
    """Failed calls by reason."""

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


class Ledger:
    """Books calls, in memory for this analyzer and in the database for its run.

    Args:
        database (`Database`):
            Holds one row for each call that was not answered from the cache.
        model (`str`), run (`str`):
            Noted in each row; a budget counts the rows of its run.
    """

    def __init__(self, database: Database, model: str, run: str):
        self._database = database
        self._model = model
        self._run = run
        self._lock = threading.Lock()
        self._sums: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        self._cost: float | None = None
        self._seconds = 0.0
        self._unbooked = (0.0, 0)  # USD and tokens that the database could not take
        self._elsewhere = (0.0, 0)  # what the run had spent beside this analyzer, when the database was last read

    def count(self, reply: AnalyzerReply) -> None:
        """Add a call to the totals."""
        with self._lock:
            self._sums["calls"] += 1
            self._sums["cached"] += reply.is_cached
            self._sums["requests"] += int(reply.details.get("requests", 0))
            self._sums["prompt_tokens"] += reply.prompt_tokens or 0
            self._sums["completion_tokens"] += reply.completion_tokens or 0
            self._seconds += reply.seconds
            if reply.cost_usd is not None:
                self._cost = (self._cost or 0.0) + reply.cost_usd
            if reply.error:
                self._errors[reply.error] += 1

    def book(self, connection: sqlite3.Connection, stage: str, reply: AnalyzerReply) -> None:
        """Write the row of a call, inside a transaction."""
        connection.execute(
            "INSERT INTO calls VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                self._run,
                time.time(),
                self._model,
                stage,
                reply.error,
                int(reply.details.get("requests", 0)),
                reply.prompt_tokens,
                reply.completion_tokens,
                reply.cost_usd,
                reply.seconds,
            ),
        )

    def keep(self, reply: AnalyzerReply) -> None:
        """Remember a call whose row could not be written: a budget counts it all the same."""
        tokens = (reply.prompt_tokens or 0) + (reply.completion_tokens or 0)
        with self._lock:
            self._unbooked = (self._unbooked[0] + (reply.cost_usd or 0.0), self._unbooked[1] + tokens)

    def totals(self) -> Totals:
        """What this analyzer has done so far."""
        with self._lock:
            return Totals(
                **{name: self._sums[name] for name in _COUNTED},
                cost_usd=self._cost,
                seconds=self._seconds,
                errors=dict(self._errors),
            )

    def run_totals(self) -> Totals | None:
        """The calls of the whole run that reached its model, over all processes and restarts of it.

        None where the database cannot be read.
        """

        def work(connection: sqlite3.Connection) -> tuple[tuple, list[tuple]]:
            sums = connection.execute(
                "SELECT COUNT(*), TOTAL(requests), TOTAL(prompt_tokens), TOTAL(completion_tokens), SUM(cost_usd), "
                "TOTAL(seconds) FROM calls WHERE run = ?",
                (self._run,),
            ).fetchone()
            errors = connection.execute(
                "SELECT error, COUNT(*) FROM calls WHERE run = ? AND error != '' GROUP BY error", (self._run,)
            ).fetchall()
            return sums, errors

        try:
            (calls, requests, prompt_tokens, completion_tokens, cost, seconds), errors = self._database.read(work)
        except (sqlite3.Error, OSError):
            return None
        return Totals(
            calls=calls,
            requests=int(requests),
            prompt_tokens=int(prompt_tokens),
            completion_tokens=int(completion_tokens),
            cost_usd=cost,
            seconds=seconds,
            errors=dict(errors),
        )

    def spent(self) -> tuple[float, int]:
        """(USD, tokens) of the whole run, over all processes and restarts of it.

        Where the database cannot be read: what it said last, and what this analyzer has spent itself.
        """
        try:
            row = self._database.read(
                lambda c: c.execute(
                    "SELECT TOTAL(cost_usd), TOTAL(prompt_tokens) + TOTAL(completion_tokens) FROM calls WHERE run = ?",
                    (self._run,),
                ).fetchone()
            )
        except (sqlite3.Error, OSError):
            row = None
        own = self.totals()
        own_usd = own.cost_usd or 0.0
        with self._lock:
            if row is not None:
                usd, tokens = float(row[0]) + self._unbooked[0], int(row[1]) + self._unbooked[1]
                self._elsewhere = (usd - own_usd, tokens - own.tokens)
            return self._elsewhere[0] + own_usd, self._elsewhere[1] + own.tokens


_COUNTED = ("calls", "cached", "requests", "prompt_tokens", "completion_tokens")
