"""What has been played of an evaluation so far: in memory, and in a file with which an interrupted one goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..files import append_line, go_on
from .results import Attempt, Play, attempt_from_json, play_from_json


Key = tuple[str, int]
"""(task id, number of the play)"""


class Record:
    """The attempts of each play, in their order.

    Args:
        keys (`Iterable[Key]`):
            All plays, in the order of the result.
        max_attempts (`int`):
            Attempts of a play at most. With 1, the file holds plays; else a line for each attempt.
        on_play (`Callable`, *optional*):
            Called with each play that has ended.
    """

    def __init__(self, keys: Iterable[Key], max_attempts: int, on_play: Callable[[Play], None] | None = None):
        self._attempts: dict[Key, list[Attempt]] = {key: [] for key in keys}
        self._families: dict[Key, str] = {}
        self._max_attempts = max_attempts
        self._on_play = on_play
        self._path: Path | None = None

    def keep_in(self, path: Path, facts: Mapping[str, Any]) -> None:
        """Go on with what an evaluation with the same settings left in `path`, and append to it.

        Raises:
            ConfigurationError: the file belongs to other settings.
        """
        go_on(
            path,
            facts,
            self._take,
            what="finished plays, which are played again,",
            other="the progress of an evaluation with other settings",
        )
        self._path = path
        for play in self._finished():
            self._tell(play)

    def wants(self, key: Key, attempt_idx: int) -> bool:
        """Whether attempt number `attempt_idx` of a play, from 0, is still to be played."""
        tried = self._attempts[key]
        return len(tried) == attempt_idx and not (tried and self._is_over(tried))

    def leaves_another(self, key: Key, attempt: Attempt) -> bool:
        """Whether a further attempt may follow this one."""
        return not self._is_over([*self._attempts[key], attempt])

    def notes(self, key: Key) -> list[str]:
        """The notes on the play's failed attempts; empty ones are none."""
        return [one.note.text for one in self._attempts[key] if one.note is not None and one.note.text]

    def add(self, key: Key, family: str, attempt: Attempt) -> None:
        """Append an attempt, with its note where one was asked for."""
        tried = self._attempts[key]
        tried.append(attempt)
        self._families[key] = family
        play = self._play(key)
        if self._path is not None:
            name = {"task_id": key[0], "play_idx": key[1], "family": family}
            data = play.to_json() if self._max_attempts == 1 else {**name, "attempt": asdict(attempt)}
            append_line(self._path, data)
        if self._is_over(tried):
            self._tell(play)

    def plays(self) -> Iterator[Play]:
        """Every play of which something is known, in the order of the keys."""
        return (self._play(key) for key, tried in self._attempts.items() if tried)

    def _finished(self) -> Iterator[Play]:
        return (self._play(key) for key, tried in self._attempts.items() if tried and self._is_over(tried))

    def _tell(self, play: Play) -> None:
        if self._on_play is not None:
            self._on_play(play)

    def _is_over(self, tried: list[Attempt]) -> bool:
        last = tried[-1]
        return last.success or not last.is_usable or len(tried) == self._max_attempts

    def _play(self, key: Key) -> Play:
        is_single = self._max_attempts == 1
        return Play.of(key[0], self._families[key], key[1], self._attempts[key], is_single)

    def _take(self, data: Mapping[str, Any]) -> None:
        """A line of the file: an attempt that ended through infrastructure is played again."""
        key = (data["task_id"], data["play_idx"])
        if self._max_attempts > 1:
            attempt = attempt_from_json(data["attempt"])
        else:
            play = play_from_json(data)
            attempt = Attempt(**{name: getattr(play, name) for name in Attempt.__dataclass_fields__ if name != "note"})
        if attempt.is_usable and key in self._attempts:
            self._attempts[key].append(attempt)
            self._families[key] = data["family"]
