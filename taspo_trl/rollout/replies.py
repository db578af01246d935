"""A reply's text, its executed blocks and their tokens: one reader for the executor, the masks and the records."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..environments.base import Traits
from ..environments.tool_calls import Notation, find_calls
from ..markup import tags_as_text
from ..tokens import ActionBlock, ActionMasks, action_masks, decode_reply, find_actions
from .templates import ChatRenderer


@dataclass(frozen=True)
class ReplyReader:
    """Reads the replies of one environment.

    Args:
        tokenizer:
            A Hugging Face tokenizer.
        tags (`tuple[str, ...]`):
            The environment's action tags.
        every (`bool`, *optional*, defaults to `False`):
            Whether all complete blocks are executed, or only the first.
        notation (`Notation`, *optional*):
            How tool calls are written; None = actions stand between tags.
        opens_thinking (`bool`, *optional*, defaults to `False`):
            Whether prompts end inside of thinking.
    """

    tokenizer: Any
    tags: tuple[str, ...]
    every: bool = False
    notation: Notation | None = None
    opens_thinking: bool = False

    def text(self, reply_ids: Sequence[int]) -> str:
        """The reply without end, padding and role tokens."""
        return decode_reply(self.tokenizer, reply_ids, (*tags_as_text(self.tags), *self._marks))

    def blocks(self, text: str) -> tuple[ActionBlock, ...]:
        """The blocks that are executed."""
        if self.notation is None:
            return find_actions(text, self.tags, self.every)
        return find_calls(text, self.notation, self.opens_thinking).blocks

    def fault(self, text: str) -> str:
        """Why a reply without a block is no good final answer; empty where the environment alone judges it."""
        return "" if self.notation is None else find_calls(text, self.notation, self.opens_thinking).fault

    def masks(self, reply_ids: Sequence[int], text: str) -> ActionMasks:
        """Which of the reply's tokens are the executed blocks, with and without their tags."""
        find = None if self.notation is None else self.blocks
        return action_masks(self.tokenizer, reply_ids, text, self.tags, self.every, find, self._marks)

    @property
    def _marks(self) -> tuple[str, ...]:
        return () if self.notation is None else self.notation.texts


def reader_of(renderer: ChatRenderer, traits: Traits) -> ReplyReader:
    """Who reads the replies of an environment.

    Args:
        renderer (`ChatRenderer`):
            Of this environment, as `for_environment` gives it.
        traits (`Traits`):
            What it declares of itself.
    """
    return ReplyReader(
        renderer.tokenizer,
        traits.action_tags,
        traits.action_blocks == "all",
        renderer.notation,
        renderer.notation is not None and renderer.opens_thinking,
    )


def first_unknown(reply_ids: Sequence[Any], vocab_size: int) -> int | None:
    """Where the first of an engine's ids stands that is none of the vocabulary's; None when all are."""
    for k, i in enumerate(reply_ids):
        try:
            is_known = 0 <= operator.index(i) < vocab_size
        except TypeError:
            is_known = False
        if not is_known:
            return k
    return None
