"""What a Search-QA reply asks for, and what is wrong with its form.

Pure. Which block is executed is decided by [`~taspo_trl.tokens.find_action`] alone; this module only names the block
for `step` and judges what stands around it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...tokens import ActionBlock, find_action


TAGS = ("search", "answer")

_OPENING_TAG = re.compile(rf"<({'|'.join(TAGS)})>", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Request:
    """What `step` is asked to do."""

    tag: str
    """`"search"` or `"answer"`."""
    text: str
    """The query or the final answer, without outer white space. May be empty."""


def format_action(block: ActionBlock) -> str:
    """The executed block as the string that `step` gets: `<search>query</search>` or `<answer>text</answer>`."""
    return f"<{block.tag}>{block.content.strip()}</{block.tag}>"


def parse_action(action: str) -> Request | None:
    """The inverse of [`format_action`]; None when `action` holds no complete block."""
    block = find_action(action, TAGS)
    return None if block is None else Request(tag=block.tag, text=block.content.strip())


def find_fault(reply_text: str, block: ActionBlock | None) -> str:
    """Why a reply does not have the form asked for: exactly one block, search or answer, with something in it.

    Every opening tag counts, also one inside the reasoning and one that is never closed: a reply that leaves open what
    it means to do is not well formed.

    Args:
        reply_text (`str`):
            The whole reply.
        block (`ActionBlock` or `None`):
            Its executed block.

    Returns:
        `str`: `no_action_block` (no opening tag at all), `unclosed_block` (tags, but no complete block), `nested_tag`
        (the executed block holds another opening tag), `both_kinds` (a search and an answer), `repeated_block`
        (two of a kind), `empty_block`, or an empty string for a well-formed reply.
    """
    if block is None:
        return "unclosed_block" if _OPENING_TAG.search(reply_text) else "no_action_block"
    if block.is_nested:
        return "nested_tag"
    outside = f"{reply_text[: block.start]}\n{reply_text[block.end :]}"
    other_tags = {tag.lower() for tag in _OPENING_TAG.findall(outside)}
    if other_tags - {block.tag}:
        return "both_kinds"
    if other_tags:
        return "repeated_block"
    return "" if block.content.strip() else "empty_block"
