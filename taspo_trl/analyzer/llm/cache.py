"""Answers that were paid for once, found again by the content of their question.

A question is its model, parameters, prompt version and canonical request. Trajectory uids are names, not content: in
the canonical request they are numbered in order of appearance, and an answer that was given under other uids is
retold with the present ones. Where that cannot be done exactly, it is no hit.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ..answers import parse_object
from ..base import AnalyzerRequest
from ..prompts import PROMPT_VERSION
from .database import Database
from .transport import RawAnswer


_UID_KEY = "traj_uid"
_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Question:
    """What an answer is filed under."""

    key: str
    """Digest of everything that the answer depends on."""
    uids: tuple[str, ...]
    """The trajectory uids of the request, in order of appearance."""


def question_of(model: str, parameters: Mapping[str, Any], request: AnalyzerRequest) -> Question:
    """The question that `request` puts to `model` with `parameters`."""
    uids: dict[str, int] = {}
    payload = _numbered(request.payload, uids)
    failed = request.failed and [_numbered_text(request.failed.text, uids), request.failed.fault]
    content = {
        "model": model,
        "parameters": parameters,
        "prompt_version": PROMPT_VERSION,
        "stage": request.stage,
        "system": request.system,
        "payload": payload,
        "failed": failed,
    }
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), default=repr)
    return Question(hashlib.sha256(canonical.encode()).hexdigest(), tuple(uids))


def retold(text: str, old_uids: Sequence[str], new_uids: Sequence[str]) -> str | None:
    """An answer's text with other trajectory uids; None when it cannot be read, so that its uids cannot be found."""
    if tuple(old_uids) == tuple(new_uids):
        return text
    value, fault = parse_object(text)
    if fault or len(old_uids) != len(new_uids):
        return None
    names = dict(zip(old_uids, new_uids, strict=True))
    return json.dumps(_with_names(value, names), ensure_ascii=False)


class AnswerCache:
    """Answers in SQLite, as JSON.

    Args:
        database (`Database`):
            Where they lie.
        model (`str`):
            Noted beside each answer.
    """

    def __init__(self, database: Database, model: str):
        self._database = database
        self._model = model

    def get(self, question: Question) -> RawAnswer | None:
        """The answer to `question`, told with its uids; None when there is none."""
        row = self._database.read(
            lambda c: c.execute("SELECT answer FROM answers WHERE key = ?", (question.key,)).fetchone()
        )
        if row is None:
            return None
        data = json.loads(row[0])
        text = retold(data["text"], data["uids"], question.uids)
        if text is None:
            return None
        return RawAnswer(**{**data["answer"], "text": text})

    def put(self, connection: sqlite3.Connection, question: Question, stage: str, answer: RawAnswer) -> None:
        """File `answer`, inside the transaction that also books what it cost."""
        parts = {name: getattr(answer, name) for name in RawAnswer.__dataclass_fields__ if name != "text"}
        data = json.dumps({"text": answer.text, "uids": question.uids, "answer": parts})
        connection.execute(
            "INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?)",
            (question.key, self._model, stage, time.time(), data),
        )


class Claims:
    """One asker for each question at a time, among the threads of all processes that share a cache.

    The others wait and then find the answer in the cache. The kernel drops a process's claims when it dies. On systems
    without POSIX locks only the threads of one process are kept apart.

    Args:
        path (`Path`, *optional*):
            File whose byte ranges are locked; None = one process only.
    """

    def __init__(self, path: Path | None):
        self._path = path
        self._lock = threading.Lock()
        self._asking: set[str] = set()
        self._file: IO[bytes] | None = None
        self._pid = os.getpid()

    @contextlib.contextmanager
    def claim(self, key: str, closed: threading.Event) -> Iterator[None]:
        """Hold `key` inside; gives up waiting when `closed` is set."""
        while not (is_mine := self._take(key)) and not closed.wait(_POLL_SECONDS):
            pass
        try:
            yield
        finally:
            if is_mine:
                self._release(key)

    def close(self) -> None:
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def _take(self, key: str) -> bool:
        with self._lock:
            if key in self._asking or not self._lock_range(key):
                return False
            self._asking.add(key)
            return True

    def _release(self, key: str) -> None:
        with self._lock:
            self._asking.discard(key)
            self._unlock_range(key)

    def _lock_range(self, key: str) -> bool:
        if self._path is None:
            return True
        try:
            import fcntl
        except ImportError:
            return True
        if self._file is None or self._pid != os.getpid():
            self._file, self._pid = open(self._path, "ab"), os.getpid()  # noqa: SIM115 - closing it drops every lock
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _offset(key))
        except (BlockingIOError, PermissionError):
            return False
        except OSError:  # a file system without locks
            return True
        return True

    def _unlock_range(self, key: str) -> None:
        if self._file is not None:
            import fcntl

            with contextlib.suppress(OSError):
                fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _offset(key))


def _offset(key: str) -> int:
    return int(key[:15], 16)


def _numbered(value: Any, uids: dict[str, int]) -> Any:
    """`value` with trajectory uids replaced by their numbers, which `uids` collects."""
    if isinstance(value, Mapping):
        return {
            key: uids.setdefault(inner, len(uids))
            if key == _UID_KEY and isinstance(inner, str)
            else _numbered(inner, uids)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [_numbered(inner, uids) for inner in value]
    return value


def _numbered_text(text: str, uids: Mapping[str, int]) -> str:
    told = retold(text, tuple(uids), [str(number) for number in uids.values()])
    return text if told is None else told


def _with_names(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {
            key: names.get(inner, inner) if key == _UID_KEY and isinstance(inner, str) else _with_names(inner, names)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [_with_names(inner, names) for inner in value]
    return value
