"""From characters to tokens: which block of a reply is the action, and which sampled tokens it is.

docs/method.md, section 5. One function finds the block for the executor and for the token mask. Pure: strings,
positions, a tokenizer's `decode` and `encode`; no model.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any


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


_REPLACEMENT = "\ufffd"  # what a decoder prints for bytes that are not yet a whole character


def action_token_mask(
    tokenizer: Any,
    reply_ids: Sequence[int],
    reply_text: str | None = None,
    tags: tuple[str, ...] = ACTION_TAGS,
    every: bool = False,
) -> list[bool]:
    """M_it: which reply tokens overlap an executed block, both tags included.

    Tokens that merely touch the block's edge because the tokenizer glued a tag to its neighbour (`><`, `>.`, `>\\n`)
    do overlap it. Characters that span several tokens belong to all of them. Special tokens have no text and are never
    part of the action.

    Args:
        tokenizer:
            A Hugging Face tokenizer.
        reply_ids (`Sequence[int]`):
            The sampled ids of one reply.
        reply_text (`str`, *optional*):
            The recorded reply, consulted only when the decoded tokens hold no block: its block is then looked for as
            an exact sub-sequence of the ids, tokenized with and without one leading space.
        tags (`tuple[str, ...]`, *optional*, defaults to `("action", "search", "answer")`):
            Tag names.
        every (`bool`, *optional*, defaults to `False`):
            Whether all complete blocks are executed, or only the first.

    Returns:
        `list[bool]`: one value for each reply token, True = token of the action. All False when no block can be
        located; the turn is then unscorable.
    """
    ids = [int(i) for i in reply_ids]
    blocks = find_actions(_decode(tokenizer, ids), tags, every) if ids else ()
    if blocks:
        return [
            start < end and any(start < block.end and block.start < end for block in blocks)
            for start, end in token_spans(tokenizer, ids)  # a token without text overlaps nothing
        ]

    mask = [False] * len(ids)
    for block in find_actions(reply_text or "", tags, every):
        text = (reply_text or "")[block.start : block.end]
        for candidate in (text, " " + text):
            wanted = tokenizer.encode(candidate, add_special_tokens=False)
            at = _find(ids, wanted)
            if at is not None:
                mask[at : at + len(wanted)] = [True] * len(wanted)
                break
    return mask


def token_spans(tokenizer: Any, ids: Sequence[int]) -> list[tuple[int, int]]:
    """For each id the half-open character range that it takes part in.

    The ranges refer to `tokenizer.decode(ids, skip_special_tokens=True)`. No id is trusted to decode alone: ids that
    only together make a character share one range. Ids without text, such as special tokens, get an empty one.
    """
    ids = list(ids)
    whole = _decode(tokenizer, ids)
    groups = _window_groups(tokenizer, ids)
    if "".join(text for _, text in groups) != whole:
        groups = _prefix_groups(tokenizer, ids, whole)
    spans: list[tuple[int, int]] = []
    position = 0
    for size, text in groups:
        for i in ids[len(spans) : len(spans) + size]:
            is_silent = size > 1 and is_special(tokenizer, i)
            spans.append((position, position if is_silent else position + len(text)))
        position += len(text)
    return spans


def _window_groups(tokenizer: Any, ids: list[int]) -> list[tuple[int, str]]:
    """(number of ids, their joint text) in order, each group decoded behind the one before it: linear time."""
    groups: list[tuple[int, str]] = []
    context = 0  # where the group before the open ids begins
    before = ""
    texts: list[str] = []  # of the context and the first, the first two, ... open ids
    for end in range(1, len(ids) + 1):
        texts.append(_decode(tokenizer, ids[context:end]))
        if texts[-1].endswith(_REPLACEMENT) and end < len(ids):
            continue  # probably not yet a whole character
        groups.extend(_settled_groups(texts, len(before)))
        context = end - groups[-1][0]
        before = _decode(tokenizer, ids[context:end])
        texts = []
    return groups


def _prefix_groups(tokenizer: Any, ids: list[int], whole: str) -> list[tuple[int, str]]:
    """As [`_window_groups`], from decoded prefixes: quadratic, for decoders that look back further than one group."""
    return _settled_groups([*(_decode(tokenizer, ids[:end]) for end in range(1, len(ids))), whole], 0)


def _settled_groups(texts: list[str], position: int) -> list[tuple[int, str]]:
    """Groups of ids from the texts of ever more ids, the first `position` characters belonging to earlier ones.

    A group ends where the text so far is a part of the last one and every later text is longer: an invalid byte stays
    what it is and is no part of the character behind it, an unfinished character waits for its other bytes.
    """
    ends, shortest = [], len(texts[-1]) + 1
    for k in range(len(texts), 0, -1):
        text = texts[k - 1]
        if len(text) < shortest and texts[-1].startswith(text):
            ends.append(k)
        shortest = min(shortest, len(text))
    groups: list[tuple[int, str]] = []
    start = 0
    for end in reversed(ends):
        groups.append((end - start, texts[end - 1][position:]))
        start, position = end, len(texts[end - 1])
    return groups


def _decode(tokenizer: Any, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def is_special(tokenizer: Any, token_id: int) -> bool:
    """Whether an id is printed only when special tokens are."""
    return not _decode(tokenizer, [token_id]) and bool(tokenizer.decode([token_id]))


def _find(ids: list[int], wanted: list[int]) -> int | None:
    """The first position at which `wanted` stands in `ids` as it is."""
    if not wanted:
        return None
    for at in range(len(ids) - len(wanted) + 1):
        if ids[at : at + len(wanted)] == wanted:
            return at
    return None


def is_unicode(text: str) -> bool:
    """Whether `text` can be encoded: half of a surrogate pair cannot, and no tokenizer or file takes it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def as_unicode(text: str) -> str:
    """`text` with a question mark for each half of a surrogate pair."""
    return text.encode(errors="replace").decode()
