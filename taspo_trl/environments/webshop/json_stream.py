"""Reads the members of one big JSON array or object from a text stream, one at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import IO, Any

from ...errors import ConfigurationError


_CHUNK = 1 << 20
_SPACE = " \t\r\n"
_ENDS = frozenset(",:]}" + _SPACE)
"""What may follow a value."""
_DECODER = json.JSONDecoder()  # like `json.load` it also takes NaN, which scraped catalogues hold


def stream_items(stream: IO[str], name: str) -> Iterator[Any]:
    """The items of a top-level array; `name` is what messages call the file."""
    reader = _Reader(stream, name)
    reader.expect("[")
    if not reader.accept("]"):
        yield reader.value()
        while reader.accept(","):
            yield reader.value()
        reader.expect("]")


def stream_pairs(stream: IO[str], name: str) -> Iterator[tuple[str, Any]]:
    """The keys and values of a top-level object; `name` is what messages call the file."""
    reader = _Reader(stream, name)
    reader.expect("{")
    if not reader.accept("}"):
        yield reader.pair()
        while reader.accept(","):
            yield reader.pair()
        reader.expect("}")


class _Reader:
    """A window onto the stream that grows until it holds the next whole value."""

    def __init__(self, stream: IO[str], name: str):
        self._stream = stream
        self._name = name
        self._text = ""
        self._start = 0

    def _fill(self) -> bool:
        # A value that does not fit yet is decoded again from its start: doubling keeps the total work linear.
        chunk = self._stream.read(max(_CHUNK, len(self._text) - self._start))
        if chunk:
            self._text = self._text[self._start :] + chunk
            self._start = 0
        return bool(chunk)

    def _peek(self) -> str:
        """The next character that is not white space; empty at the end."""
        while True:
            while self._start < len(self._text) and self._text[self._start] in _SPACE:
                self._start += 1
            if self._start < len(self._text) or not self._fill():
                return self._text[self._start : self._start + 1]

    def _damage(self, what: str) -> ConfigurationError:
        return ConfigurationError(f"The JSON file {self._name!r} is cut or damaged: {what}. Fetch it again.")

    def accept(self, character: str) -> bool:
        if self._peek() != character:
            return False
        self._start += 1
        return True

    def expect(self, character: str) -> None:
        if not self.accept(character):
            raise self._damage(f"expected {character!r}, found {self._peek()!r}")

    def value(self) -> Any:
        self._peek()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._start)
            except json.JSONDecodeError as error:
                if not self._fill():
                    raise self._damage(str(error)) from error
                continue
            # A number that runs into the edge of the window may go on behind it.
            if self._text[end : end + 1] in _ENDS or not self._fill():
                self._start = end
                return value

    def pair(self) -> tuple[str, Any]:
        key = self.value()
        self.expect(":")
        return key, self.value()
