"""From characters to tokens: which block of a reply is the action, and which sampled tokens it is.

docs/method.md, section 5. One function finds the block for the executor and for the token mask. Pure: strings,
positions, a tokenizer's `decode` and `encode`; no model.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from .markup import markup_of, tags_as_text


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
    content_start: int = 0
    """Where the content begins in the reply."""

    @property
    def content_end(self) -> int:
        return self.content_start + len(self.content)


@lru_cache(maxsize=64)
def _pattern(tags: tuple[str, ...]) -> re.Pattern[str]:
    names = "|".join(re.escape(tag) for tag in tags)
    # ASCII, or case folding takes `<ſearch>` and `<actıon>` for tags.
    return re.compile(rf"<(/?)({names})>", re.ASCII | re.IGNORECASE)


def find_action(text: str, tags: tuple[str, ...] = ACTION_TAGS) -> ActionBlock | None:
    """The first complete block of `text`; None when no block is complete. See [`find_actions`]."""
    return next(iter(find_actions(text, tags)), None)


def find_actions(text: str, tags: tuple[str, ...] = ACTION_TAGS, every: bool = False) -> tuple[ActionBlock, ...]:
    """The executed blocks of `text` in order: its first complete block, or with `every` all complete blocks.

    Tags are paired, matched case-insensitively, and the content may span lines. A block without a closing tag is
    skipped: the search goes on behind its opening tag. Time is linear in the text, whatever stands in it.

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
    openings: list[tuple[int, int, str]] = []  # start, end, name
    closings: dict[str, list[tuple[int, int]]] = {}
    for tag in _pattern(tuple(tags)).finditer(text):
        name = tag[2].lower()
        if tag[1]:
            closings.setdefault(name, []).append(tag.span())
        else:
            openings.append((*tag.span(), name))
    blocks: list[ActionBlock] = []
    passed = dict.fromkeys(closings, 0)  # closing tags of each name that no later block can end in
    end = 0
    for k, (start, content_start, name) in enumerate(openings):
        if start < end or name not in closings:
            continue
        own = closings[name]
        while passed[name] < len(own) and own[passed[name]][0] < content_start:
            passed[name] += 1
        if passed[name] == len(own):
            continue
        content_end, end = own[passed[name]]
        is_nested = k + 1 < len(openings) and openings[k + 1][0] < content_end
        blocks.append(ActionBlock(name, text[content_start:content_end], start, end, is_nested, content_start))
        if not every:
            break
    return tuple(blocks)


def count_blocks(text: str, tags: tuple[str, ...] = ACTION_TAGS) -> int:
    """How many complete blocks `text` holds."""
    return len(find_actions(text, tags, every=True))


def _contents(text: str, tags: tuple[str, ...]) -> list[tuple[int, int]]:
    """Where the contents of all complete blocks stand; without any, all that follows the first opening tag."""
    blocks = find_actions(text, tags, every=True)
    if blocks:
        return [(block.content_start, block.content_end) for block in blocks]
    unclosed = next((tag for tag in _pattern(tuple(tags)).finditer(text) if not tag.group(1)), None)
    return [] if unclosed is None else [(unclosed.end(), len(text))]


_REPLACEMENT = "\ufffd"  # what a decoder prints for bytes that are not yet a whole character


class ActionMasks(NamedTuple):
    """Which tokens of a reply are its action; one value for each reply token, True = it is."""

    action: list[bool]
    """M_it: tokens that overlap an executed block, both tags included."""
    content: list[bool]
    """Tokens that overlap what stands between the tags."""


def action_masks(
    tokenizer: Any,
    reply_ids: Sequence[int],
    reply_text: str | None = None,
    tags: tuple[str, ...] = ACTION_TAGS,
    every: bool = False,
    find: Callable[[str], tuple[ActionBlock, ...]] | None = None,
    kept: tuple[str, ...] = (),
) -> ActionMasks:
    """The two masks of a reply's action: with its tags (see [`action_token_mask`]) and without them.

    The content mask covers the contents of all complete blocks, executed or not. A reply without a complete block, for
    example one that was cut, has an empty action mask; its content is then all that follows its first opening tag.
    A token that a tokenizer glued from a tag and its content (`>look`) is part of both.

    Args:
        tokenizer, reply_ids, reply_text, tags, every:
            As of [`action_token_mask`].
        find (`Callable`, *optional*):
            Finds the executed blocks of a text, for notations other than tags. The content mask then covers their
            contents alone.
        kept (`tuple[str, ...]`, *optional*):
            Texts of special tokens that are part of a reply's text, besides the tags.

    Returns:
        [`ActionMasks`]: (action, content).
    """
    tags, ids = tuple(tags), [int(i) for i in reply_ids]
    kept = (*tags_as_text(tags), *kept)
    blocks_in = find or (lambda text: find_actions(text, tags, every))

    def contents_in(text: str) -> list[tuple[int, int]]:
        if find is None:
            return _contents(text, tags)
        return [(block.content_start, block.content_end) for block in find(text)]

    text = decode_reply(tokenizer, ids, kept) if ids else ""
    blocks = blocks_in(text)
    recorded = reply_text or ""
    if not blocks and ids and recorded != text and (lost := blocks_in(recorded)):
        action = _located(tokenizer, ids, recorded, [(block.start, block.end) for block in lost])
        return ActionMasks(action, _located(tokenizer, ids, recorded, contents_in(recorded)))
    contents = contents_in(text)
    spans = token_spans(tokenizer, ids, kept) if blocks or contents else [(0, 0)] * len(ids)
    action = _overlapping(spans, [(block.start, block.end) for block in blocks])
    return ActionMasks(action, _overlapping(spans, contents))


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
        `list[bool]`: one value for each reply token, True = token of the action. All False when a block cannot be
        located; the turn is then unscorable.
    """
    return action_masks(tokenizer, reply_ids, reply_text, tags, every).action


def _overlapping(spans: Sequence[tuple[int, int]], ranges: Sequence[tuple[int, int]]) -> list[bool]:
    """Which spans overlap one of the `ranges`, which are in order and apart; a span without text overlaps nothing."""
    ends = [end for _, end in ranges]
    mask = []
    for start, end in spans:
        k = bisect_left(ends, start + 1)  # the first range that ends behind the span's first character
        mask.append(start < end and k < len(ranges) and max(start, ranges[k][0]) < min(end, ranges[k][1]))
    return mask


def _located(tokenizer: Any, ids: list[int], text: str, ranges: Iterable[tuple[int, int]]) -> list[bool]:
    """The ids that spell the `ranges` of a recorded text, one behind the other; none when one is not found."""
    mask, position = [False] * len(ids), 0
    for start, end in ranges:
        at = None
        for candidate in (text[start:end], " " + text[start:end]):
            wanted = tokenizer.encode(candidate, add_special_tokens=False)
            at = _find(ids, wanted, position)
            if at is not None:
                position = at + len(wanted)
                mask[at:position] = [True] * len(wanted)
                break
        if at is None:
            return [False] * len(ids)
    return mask


def token_spans(tokenizer: Any, ids: Sequence[int], kept: tuple[str, ...] = ()) -> list[tuple[int, int]]:
    """For each id the half-open character range that it takes part in.

    The ranges refer to [`decode_reply`]. No id is trusted to decode alone: ids that only together make a character
    share one range. Ids without text, such as end tokens, get an empty one. Time is linear in the number of ids for
    decoders that look back by no more than a character or a run of bytes; replies that another decoder prints are
    located up to 4,096 tokens, and all ranges of a longer one are empty.
    """
    silent = markup_of(tokenizer, kept).silent
    visible = [i for i in ids if i not in silent]
    whole = _decode(tokenizer, visible)
    groups = _window_groups(tokenizer, visible)
    if "".join(text for _, text in groups) != whole:
        groups = _run_groups(tokenizer, visible)
    if "".join(text for _, text in groups) != whole:
        groups = _prefix_groups(tokenizer, visible, whole) if len(visible) <= _MAX_PREFIXES else []
    shown: list[tuple[int, int]] = []
    position = 0
    for size, text in groups:
        shown.extend([(position, position + len(text))] * size)
        position += len(text)
    shown.extend([(position, position)] * (len(visible) - len(shown)))
    upcoming, last = iter(shown), 0
    spans = []
    for i in ids:
        if i in silent:
            spans.append((last, last))
        else:
            spans.append(next(upcoming))
            last = spans[-1][1]
    return spans


_MAX_OPEN = 16
"""Ids that wait for the rest of a character; a character has no more than four bytes."""
_MAX_PREFIXES = 4096


def _window_groups(tokenizer: Any, ids: list[int]) -> list[tuple[int, str]]:
    """(number of ids, their joint text) in order, each group decoded behind the one before it: linear time."""
    groups: list[tuple[int, str]] = []
    context = start = 0  # where the group before the open ids begins, where these begin
    before = ""
    texts: list[str] = []  # of the context and the first, the first two, ... open ids
    for end in range(1, len(ids) + 1):
        texts.append(_decode(tokenizer, ids[context:end]))
        is_whole = end == len(ids) or not texts[-1].endswith(_REPLACEMENT)
        if not is_whole and len(texts) < _MAX_OPEN:
            continue  # probably not yet a whole character
        settled = _settled_groups(texts, len(before))
        if not is_whole:  # bytes that are none: the last few may still become a character
            settled = _leading(settled, len(texts) - 4) or settled
        groups.extend(settled)
        start += sum(size for size, _ in settled)
        context = start - settled[-1][0]
        before = _decode(tokenizer, ids[context:start])
        texts = [_decode(tokenizer, ids[context:k]) for k in range(start + 1, end + 1)]
    return groups


def _leading(groups: list[tuple[int, str]], size: int) -> list[tuple[int, str]]:
    """The first groups that hold no more than `size` ids together."""
    kept, total = [], 0
    for group in groups:
        total += group[0]
        if total > size:
            break
        kept.append(group)
    return kept


def _run_groups(tokenizer: Any, ids: list[int]) -> list[tuple[int, str]]:
    """As [`_window_groups`], for decoders that judge a whole run of byte tokens at once (sentencepiece)."""
    is_byte = [_BYTE.fullmatch(token or "") is not None for token in tokenizer.convert_ids_to_tokens(ids)]
    groups: list[tuple[int, str]] = []
    start = 0
    while start < len(ids):
        end = start + 1
        while is_byte[start] and end < len(ids) and is_byte[end]:
            end += 1
        before = _decode(tokenizer, ids[start - 1 : start]) if start else ""
        text = _decode(tokenizer, ids[max(0, start - 1) : end])[len(before) :]
        if end - start > 1 and len(text) != end - start:
            groups.extend(_window_groups(tokenizer, ids[start:end]))
        else:  # one token; or a run that is no text, of which each byte is one replacement character
            groups.extend((1, one) for one in ([text] if end - start == 1 else text))
        start = end
    return groups


_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")


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
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def decode_reply(tokenizer: Any, ids: Sequence[int], kept: tuple[str, ...] = ()) -> str:
    """A reply's text as the executor reads it, the masks locate it and the records show it.

    Without end, padding and role tokens only: tags stay, also where a tokenizer has them as special tokens.

    Args:
        tokenizer:
            A Hugging Face tokenizer.
        ids (`Sequence[int]`):
            Ids of a reply.
        kept (`tuple[str, ...]`, *optional*):
            Texts of tokens that are never left out: see [`~taspo_trl.markup.markup_of`].
    """
    silent = markup_of(tokenizer, kept).silent
    return _decode(tokenizer, [i for i in ids if i not in silent])


def _find(ids: list[int], wanted: list[int], start: int = 0) -> int | None:
    """The first position from `start` on at which `wanted` stands in `ids` as it is."""
    if not wanted or max([*ids, *wanted]) > sys.maxunicode:
        return None
    # As text, for its linear search: no vocabulary has more ids than there are characters.
    at = "".join(map(chr, ids)).find("".join(map(chr, wanted)), start)
    return None if at < 0 else at


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
