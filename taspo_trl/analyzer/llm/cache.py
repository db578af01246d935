"""Answers that were paid for once, found again by the content of their question.

A question is its model, parameters, prompt version and canonical request. Trajectory uids are names, not content: in
the canonical request they are numbered in order of appearance, and an answer that was given under other uids is
retold with the present ones. Where that cannot be done exactly, it is no hit.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ..answers import read_answer
from ..base import AnalyzerRequest, Stage
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
    read = read_answer(text)
    if read.fault or len(old_uids) != len(new_uids):
        return None
    names = dict(zip(old_uids, new_uids, strict=True))
    return json.dumps(_with_names(read.value, names), ensure_ascii=False)


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
            lambda c: c.execute("SELECT stage, answer FROM answers WHERE key = ?", (question.key,)).fetchone()
        )
        if row is None:
            return None
        data = json.loads(row[1])
        answer = RawAnswer(**{**data["answer"], "text": data["text"]})
        text = retold(answer.text, data["uids"], question.uids)
        if text is None or not _is_readable(row[0], answer):
            return None
        return replace(answer, text=text)

    def put(self, connection: sqlite3.Connection, question: Question, stage: Stage, answer: RawAnswer) -> None:
        """File `answer`, inside the transaction that also books what it cost; not one that cannot be read, which would
        be found again by every later run."""
        if not _is_readable(stage, answer):
            return
        parts = {name: getattr(answer, name) for name in RawAnswer.__dataclass_fields__ if name != "text"}
        data = json.dumps({"text": answer.text, "uids": question.uids, "answer": parts})
        connection.execute(
            "INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?)",
            (question.key, self._model, stage, time.time(), data),
        )


class Claims:
    """One asker for each question at a time, among the threads of all processes that share a cache.

    The others wait and then find the answer in the cache. The system drops a process's claims when it dies.

    Args:
        folder (`Path`, *optional*):
            Where the lock files are; None = no cache, so that nothing is won by waiting.
    """

    def __init__(self, folder: Path | None):
        self._folder = folder

    @contextlib.contextmanager
    def claim(self, key: str, closed: threading.Event) -> Iterator[None]:
        """Hold `key` inside; gives up waiting when `closed` is set."""
        while (release := self._take(key)) is None and not closed.wait(_POLL_SECONDS):
            pass
        try:
            yield
        finally:
            if release is not None:
                release()

    def _take(self, key: str) -> Callable[[], object] | None:
        """How to give `key` back, or None while someone else has it."""
        if self._folder is None:
            return lambda: None
        # A few thousand files at most; questions that share one wait for each other now and then.
        lock = FileLock(self._folder / f"{key[:3]}.lock", thread_local=False)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=0)
        except Timeout:
            return None
        except (OSError, NotImplementedError):  # a file system without locks: better paid twice than not at all
            return lambda: None
        return lock.release


def _is_readable(stage: Stage, answer: RawAnswer) -> bool:
    if stage == "play":
        return bool(answer.text.strip())
    return not read_answer(answer.text, answer.finish_reason == "length", stage).fault


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
