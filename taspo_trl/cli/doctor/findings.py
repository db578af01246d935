"""One finding of `taspo doctor`, and how a look at something slow or broken becomes one. Pure but for the clock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar


T = TypeVar("T")


class Status(StrEnum):
    """How bad it is. Only a failure makes the command fail."""

    OK = "ok"
    ABSENT = "absent"
    """Not there, or not as it should be, and nothing that was looked at needs it."""
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at and what was seen."""

    group: str
    """Part of the report: versions, devices, extras, recipe, services."""
    name: str
    status: Status
    detail: str
    remedy: str = ""
    """The next step; empty where nothing is to be done."""

    def as_dict(self) -> dict[str, str]:
        return {name: str(getattr(self, name)) for name in self.__slots__}


class TookTooLong(Exception):
    """A look was not over in time."""


def within(seconds: float, look: Callable[[], T]) -> T:
    """The result of `look`, or its exception; [`TookTooLong`] after `seconds`.

    What hangs goes on in a daemon thread, which ends with the process: a doctor that waits for a dead server or for a
    download of gigabytes helps nobody.
    """
    outcome: dict[str, Any] = {}

    def run() -> None:
        try:
            outcome["value"] = look()
        except BaseException as error:
            outcome["error"] = error

    thread = threading.Thread(target=run, daemon=True, name="taspo-doctor")
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TookTooLong(f"no result within {seconds:g} s")
    if "error" in outcome:
        raise outcome["error"]
    return outcome["value"]


def one_line(error: BaseException, limit: int = 300) -> str:
    """An exception for a table cell: its kind where the text alone says too little, on one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= limit else text[: limit - 4] + " ..."
