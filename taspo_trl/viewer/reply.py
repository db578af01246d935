"""Where the executed action stands in a reply.

Pure. A record holds the reply and what the environment executed, not which tags it declared, so the block is found
again from the two.
"""

from __future__ import annotations

import re

from ..analyzer.quotes import collapse
from ..tokens import ActionBlock, find_action, find_actions


_OPENING = re.compile(r"<([a-z_][\w.-]*)>", re.ASCII | re.IGNORECASE)
_MAX_TAGS = 20
"""More than any reply means; markup without end must not take time without end."""


def reply_parts(reply: str, action: str) -> list[str]:
    """`reply` cut into plain text and executed action by turns; the parts joined are the reply.

    Args:
        reply (`str`):
            The recorded reply.
        action (`str`):
            What the environment executed.

    Returns:
        `list[str]`: parts 0, 2, ... are plain, parts 1, 3, ... are the action with its tags. One part when the reply
        holds no action.
    """
    span = _span(reply, action)
    if span is None:
        return [reply]
    return [reply[: span[0]], reply[span[0] : span[1]], reply[span[1] :]]


def _span(reply: str, action: str) -> tuple[int, int] | None:
    block = find_action(reply)
    if block is not None and _is_same(block.content, action):
        return block.start, block.end
    if not action.strip():
        return None
    own = next((found for found in _blocks(reply) if _is_same(found.content, action)), None)  # tags of an environment
    # An environment may rewrite a block's text, for example into `search: ...`: then the paper's tags decide.
    block = own or block
    if block is not None:
        return block.start, block.end
    start = reply.find(action)
    return None if start < 0 else (start, start + len(action))


def _blocks(reply: str) -> list[ActionBlock]:
    """The complete blocks of all tags, also those inside others: a thought may hold an action."""
    tags = list(dict.fromkeys(match.group(1).lower() for match in _OPENING.finditer(reply)))
    found = [block for tag in tags[:_MAX_TAGS] for block in find_actions(reply, (tag,), every=True)]
    return sorted(found, key=lambda block: block.start)


def _is_same(content: str, action: str) -> bool:
    return collapse(content).casefold() == collapse(action).casefold()
