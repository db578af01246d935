"""The guidance blocks of a raw record.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .lenient import at, items, mapping, text


def has_guidance(guidance: Mapping[str, Any]) -> bool:
    """Whether any turn has a block, the empty one included."""
    return bool(_contents(guidance))


def shown_block(guidance: Mapping[str, Any]) -> tuple[int, str]:
    """(tokens of the longest block, its text), where there are several with a heading each: name and turns."""
    contents = _contents(guidance)
    tokens = max((size for _, _, size, _ in contents), default=0)
    if len(contents) == 1:
        return tokens, contents[0][3]
    parts = [f"{name}, turns {', '.join(map(str, turns))}:\n{shown}" for name, turns, _, shown in contents]
    return tokens, "\n\n".join(parts)


def _contents(guidance: Mapping[str, Any]) -> list[tuple[str, list[int], int, str]]:
    """(block name, turns from 1, tokens, text) of each distinct content."""
    found = []
    for name, block in mapping(guidance.get("blocks")).items():
        places = items(mapping(block).get("turns"))
        for number, ids in enumerate(items(mapping(block).get("ids"))):
            turns = [turn for turn, place in enumerate(places, 1) if place == number]
            found.append((text(name), turns, len(items(ids)), text(at(items(mapping(block).get("texts")), number))))
    return found
