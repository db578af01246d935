"""JSON-lines files, plain or compressed: one object a line, errors with file and line number."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from ...errors import ConfigurationError


_OPENERS: dict[str, Callable[..., IO[Any]]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


def is_jsonl(path: Path) -> bool:
    """Whether the name says JSON lines, also compressed."""
    suffixes = path.suffixes
    return suffixes[-1:] == [".jsonl"] or (suffixes[-2:-1] == [".jsonl"] and suffixes[-1] in _OPENERS)


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSON-lines file; blank lines are passed over."""
    opener = _OPENERS.get(path.suffix, open)
    with opener(path, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield _parse(line, path, number)


def _parse(line: str, path: Path, number: int) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise ConfigurationError(f"{path}, line {number}: not JSON ({error.msg}).") from error
    if not isinstance(record, dict):
        raise ConfigurationError(f"{path}, line {number}: expected an object, got {type(record).__name__}.")
    return record
