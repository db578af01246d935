"""The passages of an index on disk: any one by its position, without reading the others.

The file is mapped into memory, so that processes share it and a corpus may be larger than the memory. Reading is
thread-safe: nothing is moved, bytes are only looked at.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import overload

import numpy as np

from ....errors import ConfigurationError
from ..jsonl import read_jsonl
from ..passages import Passage, parse_contents


def passage_of(record: dict, position: int) -> Passage:
    """The passage of a corpus record: `{"id", "contents"}` with a title line, or `{"id", "title", "text"}`."""
    passage_id = str(record.get("id", position))
    if isinstance(contents := record.get("contents"), str):
        title, text = parse_contents(contents)
    elif isinstance(record.get("text"), str):
        title, text = str(record.get("title") or ""), record["text"]
    else:
        raise ConfigurationError(
            f"Passage {passage_id!r} has the fields {sorted(record)}. It needs `contents` (a quoted title line and "
            "the text), or `title` and `text`."
        )
    return Passage(passage_id=passage_id, title=title, text=text)


def read_corpus(path: str | Path) -> Iterator[Passage]:
    """The passages of a JSON-lines corpus, plain or compressed."""
    for position, record in enumerate(read_jsonl(Path(path))):
        yield passage_of(record, position)


def write_corpus(passages: Iterable[Passage], path: Path) -> None:
    """A plain JSON-lines corpus in the form that [`PassageStore`] maps."""
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        for passage in passages:
            record = {"id": passage.passage_id, "contents": passage.contents}
            file.write(json.dumps(record, ensure_ascii=False) + "\n")


def scan_offsets(path: Path) -> np.ndarray:
    """Where each line of a file begins, and where the last one ends: (number of lines + 1,) int64."""
    lengths = [0]
    with open(path, "rb") as file:
        lengths.extend(len(line) for line in file if line.strip())
    return np.cumsum(np.asarray(lengths, dtype=np.int64))


class PassageStore(Sequence[Passage]):
    """The passages of a plain JSON-lines file.

    Args:
        path (`Path`):
            The file, one passage a line and no blank line between.
        offsets (`np.ndarray`, *optional*):
            What [`scan_offsets`] gives for it; scanned when absent, which reads the file once.
    """

    def __init__(self, path: Path, offsets: np.ndarray | None = None):
        self.path = path
        self._offsets = scan_offsets(path) if offsets is None else offsets
        size = path.stat().st_size
        if int(self._offsets[-1]) != size:
            raise ConfigurationError(
                f"{path} has {size} bytes, its index expects {int(self._offsets[-1])}: the file was changed or holds "
                "blank lines. Build the index again."
            )
        self._bytes = np.memmap(path, dtype=np.uint8, mode="r") if size else np.empty(0, np.uint8)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @overload
    def __getitem__(self, index: int) -> Passage: ...
    @overload
    def __getitem__(self, index: slice) -> list[Passage]: ...
    def __getitem__(self, index):
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        position = range(len(self))[index]  # as a list does: negative counts from the end, outside is an IndexError
        line = self._bytes[self._offsets[position] : self._offsets[position + 1]].tobytes()
        return passage_of(json.loads(line), position)
