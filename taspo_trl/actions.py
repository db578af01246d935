"""Which block of a reply is the action: one function for the executor and for the token mask (method.md, section 5).

Pure: strings in, positions out.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from functools import lru_cache


ACTION_TAGS = ("action", "search", "answer")
"""The tags of the paper's three environments; an environment may declare its own, which replace them."""


@dataclass(frozen=True, slots=True)
class ActionBlock:
    """The executed block of a reply: `text[start:end]`, both tags included."""

    tag: str
    """Lower-case name of the tag."""
    content: str
    """What stands between the tags, unchanged."""
    start: int
    end: int
    is_nested: bool
    """Whether the content holds another opening tag; such a block is executed as it is and counts as invalid."""


@lru_cache(maxsize=64)
def _patterns(tags: tuple[str, ...]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    names = "|".join(re.escape(tag) for tag in tags)
    return (
        # ASCII, or case folding takes `<ſearch>` and `<actıon>` for tags.
        re.compile(rf"<({names})>(.*?)</\1>", re.ASCII | re.IGNORECASE | re.DOTALL),
        re.compile(rf"<(?:{names})>", re.ASCII | re.IGNORECASE),
    )


def find_action(text: str, tags: tuple[str, ...] = ACTION_TAGS) -> ActionBlock | None:
    """The first complete block of `text`; None when no block is complete. See [`find_actions`]."""
    return next(iter(find_actions(text, tags)), None)


def find_actions(text: str, tags: tuple[str, ...] = ACTION_TAGS, every: bool = False) -> tuple[ActionBlock, ...]:
    """The executed blocks of `text` in order: its first complete block, or with `every` all complete blocks.

    Tags are paired, matched case-insensitively, and the content may span lines. A block without a closing tag is
    skipped: the search goes on behind its opening tag.

    Args:
        text (`str`):
            The decoded reply.
        tags (`tuple[str, ...]`, *optional*, defaults to `("action", "search", "answer")`):
            Names of the tags, without brackets.
        every (`bool`, *optional*, defaults to `False`):
            Whether a reply may hold several actions, as it may hold several tool calls.

    Returns:
        `tuple[ActionBlock, ...]`: empty when no block is complete.
    """
    block, opening = _patterns(tuple(tags))
    matches = block.finditer(text)
    return tuple(
        ActionBlock(
            tag=match.group(1).lower(),
            content=match.group(2),
            start=match.start(),
            end=match.end(),
            is_nested=opening.search(match.group(2)) is not None,
        )
        for match in (matches if every else itertools.islice(matches, 1))
    )


def count_blocks(text: str, tags: tuple[str, ...] = ACTION_TAGS) -> int:
    """How many complete blocks `text` holds."""
    return sum(1 for _ in _patterns(tuple(tags))[0].finditer(text))
