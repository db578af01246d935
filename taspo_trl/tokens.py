"""From characters to tokens: which sampled tokens are the executed action (method.md, section 5).

Pure: needs a tokenizer's `decode` and `encode`, no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .actions import ACTION_TAGS, find_action


_REPLACEMENT = "\ufffd"  # what a decoder prints for bytes that are not yet a whole character


def action_token_mask(
    tokenizer: Any,
    reply_ids: Sequence[int],
    reply_text: str | None = None,
    tags: tuple[str, ...] = ACTION_TAGS,
) -> list[bool]:
    """M_it: which reply tokens overlap the executed block, both tags included.

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

    Returns:
        `list[bool]`: one value for each reply token, True = token of the action. All False when no block can be
        located; the turn is then unscorable.
    """
    ids = [int(i) for i in reply_ids]
    block = find_action(_decode(tokenizer, ids), tags) if ids else None
    if block is not None:
        return [start < block.end and block.start < end for start, end in token_spans(tokenizer, ids)]

    mask = [False] * len(ids)
    block = find_action(reply_text, tags) if reply_text else None
    if block is not None and reply_text is not None:
        text = reply_text[block.start : block.end]
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
    only together make a character share one range, and special tokens get an empty one.
    """
    ids = list(ids)
    whole = _decode(tokenizer, ids)
    groups = _window_groups(tokenizer, ids)
    if "".join(text for _, text in groups) != whole:
        groups = _prefix_groups(tokenizer, ids, whole)
    spans, position = [], 0
    for size, text in groups:
        spans.extend([(position, position + len(text))] * size)
        position += len(text)
    return spans


def _window_groups(tokenizer: Any, ids: list[int]) -> list[tuple[int, str]]:
    """(number of ids, their joint text) in order, each group decoded behind the one before it: linear time."""
    groups: list[tuple[int, str]] = []
    context, start = 0, 0  # the group before the open one, and the open one
    before = ""
    for end in range(1, len(ids) + 1):
        window = _decode(tokenizer, ids[context:end])
        if window.endswith(_REPLACEMENT) and end < len(ids):
            continue  # probably not yet a whole character
        groups.append((end - start, window[len(before) :]))
        context, start = start, end
        before = _decode(tokenizer, ids[context:start])
    return groups


def _prefix_groups(tokenizer: Any, ids: list[int], whole: str) -> list[tuple[int, str]]:
    """As [`_window_groups`], from decoded prefixes: quadratic, for decoders that look back further than one group."""
    groups: list[tuple[int, str]] = []
    start, position = 0, 0
    for end in range(1, len(ids) + 1):
        prefix = whole if end == len(ids) else _decode(tokenizer, ids[:end])
        if not whole.startswith(prefix) or len(prefix) < position:
            continue
        groups.append((end - start, prefix[position:]))
        start, position = end, len(prefix)
    return groups


def _decode(tokenizer: Any, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def _find(ids: list[int], wanted: list[int]) -> int | None:
    """The first position at which `wanted` stands in `ids` as it is."""
    if not wanted:
        return None
    for at in range(len(ids) - len(wanted) + 1):
        if ids[at : at + len(wanted)] == wanted:
            return at
    return None
