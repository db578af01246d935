"""One SQLite file that threads and processes share, and that a kill at any moment leaves whole."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ...errors import ConfigurationError


T = TypeVar("T")

_VERSION = 1
_BUSY_SECONDS = 30.0

_TABLES = """
CREATE TABLE IF NOT EXISTS answers (
    key TEXT PRIMARY KEY, model TEXT NOT NULL, stage TEXT NOT NULL, created REAL NOT NULL, answer TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS calls (
    run TEXT NOT NULL, created REAL NOT NULL, model TEXT NOT NULL, stage TEXT NOT NULL, error TEXT NOT NULL,
    requests INTEGER NOT NULL, prompt_tokens INTEGER, completion_tokens INTEGER, cost_usd REAL, seconds REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS calls_of_run ON calls (run);
"""


class Database:
    """A connection that opens on first use, for one process at a time; a forked child opens its own.

    Reading and writing raise `sqlite3.Error` or `OSError`, for a damaged file and a full disk.

    Args:
        path (`Path`, *optional*):
            The file; None keeps everything in memory.
    """

    def __init__(self, path: Path | None):
        self.path = path
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._pid = os.getpid()

    def check(self) -> None:
        """Open the file now.

        Raises:
            ConfigurationError: it is no database, of another version, or cannot be written.
        """
        try:
            with self._lock:
                self._open()
        except (OSError, sqlite3.Error) as error:
            raise ConfigurationError(
                f"The analyzer cache {self.path} cannot be used: {error}. Pass another file as `cache` (config: "
                "`analyzer_cache`), delete this one, or switch the cache off."
            ) from error

    def transact(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in one transaction; it is on disk when this returns."""
        with self._lock:
            connection = self._open()
            connection.execute("BEGIN IMMEDIATE")
            try:
                result = work(connection)
            except BaseException:
                if connection.in_transaction:  # a full disk has ended it already
                    connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")
            return result

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work`, which only reads."""
        with self._lock:
            return work(self._open())

    def close(self) -> None:
        """May be called twice; the next use opens the file again."""
        with self._lock:
            if self._connection is not None and self._pid == os.getpid():
                self._connection.close()
            self._connection = None

    def _open(self) -> sqlite3.Connection:
        if self._connection is None or self._pid != os.getpid():
            # A connection that crossed a fork must not even be closed: that would drop the parent's locks.
            self._pid = os.getpid()
            self._connection = _connect(self.path)
        return self._connection


def _connect(path: Path | None) -> sqlite3.Connection:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(
        path or ":memory:", timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )
    _prepare(connection)
    return connection


def _prepare(connection: sqlite3.Connection) -> None:
    deadline = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            # Readers do not wait for writers, and a writer that is killed leaves nothing half written.
            connection.execute("PRAGMA journal_mode=WAL")
            # Every answer was paid for: it is on the disk, not only on its way there, when its transaction ends.
            connection.execute("PRAGMA synchronous=FULL")
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, _VERSION):
                raise sqlite3.DatabaseError(f"it has version {version}, this version of taspo_trl writes {_VERSION}")
            connection.executescript(f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version={_VERSION}; COMMIT;")
            return
        except sqlite3.OperationalError as error:
            # Changing the journal mode does not wait for other processes by itself.
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            time.sleep(0.05)
