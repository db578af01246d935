"""Accepted statements to the guidance block P_i, as token ids (docs/method.md, section 4, composition).

The block holds plain tokens only: text that could pass for a wrapper, chat markup, an action or a special token never
gets in.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

from ..markup import block_markup
from ..tokens import ACTION_TAGS
from ..types import Block, Rejection, Statement


OPENING = "[Privileged Guidance]"
CLOSING = "[End Privileged Guidance]"

_CHAT_MARKUP = re.compile(
    r"<\|[^<>|]{0,80}\|>|\[/?(?:INST|SYS)\]|<</?SYS>>|</?s>|</?(?:think|tool_call|tool_response|information)>",
    re.IGNORECASE,
)
_ITEM_CHARS = 600  # of a text that was cut that are kept for the record
_BRACKETS = re.compile(r"[<>\[\]|]")
_WRAPPER = re.compile(r"\[\s*(?:end\s+)?privileged\s+guidance\s*\]", re.IGNORECASE)


class Composer:
    """Makes guidance blocks for one tokenizer.

    Args:
        tokenizer:
            A Hugging Face tokenizer.
        max_tokens (`int`, *optional*, defaults to `256`):
            B_PI: tokens of a whole block. The wrapper's tokens come first off; if they alone do not fit, the block is
            the first `max_tokens` guidance tokens without it.
        action_tags (`tuple[str, ...]`, *optional*):
            Tags that a statement must not hold, besides the paper's three.
    """

    def __init__(self, tokenizer: Any, max_tokens: int = 256, action_tags: tuple[str, ...] = ()):
        if max_tokens < 1:
            raise ValueError(f"`max_tokens` must be at least 1, got {max_tokens}.")
        self._tokenizer = tokenizer
        tags = "|".join(re.escape(tag) for tag in {*ACTION_TAGS, *action_tags})
        self._tags = re.compile(rf"</?(?:{tags})>", re.IGNORECASE)
        markup = block_markup(tokenizer)
        self._special_texts = sorted((text for text in markup if text.strip()), key=len, reverse=True)
        self._special_ids = set(markup.values())
        self._opening_ids = self._encode(f"\n\n{OPENING}\n")
        self._closing_ids = self._encode(f"\n{CLOSING}")
        inside = max_tokens - len(self._opening_ids) - len(self._closing_ids)
        self._has_wrapper = inside > 0
        self._room = inside if self._has_wrapper else max_tokens

    def compose(self, statements: Sequence[Statement]) -> tuple[tuple[int, ...], list[Statement], list[Rejection]]:
        """(block ids, statements that went in, rejects).

        Statements with markup are dropped, and those of which the budget leaves nothing; the last one may be cut.
        """
        kept: list[Statement] = []
        rejected: list[Rejection] = []
        for statement in statements:
            fault = self.fault(statement.text)
            if fault:
                rejected.append(Rejection("composition", fault, statement.text))
            else:
                kept.append(statement)
        text, starts = "", []
        for statement in kept:
            starts.append(len(self._plain_ids(text)))
            text += f"- {statement.text}\n"
        num_shown = sum(start < self._room for start in starts)
        rejected += [Rejection("composition", "over_max_tokens", statement.text) for statement in kept[num_shown:]]
        return self.block(text[:-1]), kept[:num_shown], rejected

    def block(self, text: str) -> tuple[int, ...]:
        """The block around `text`, which must be free of markup; empty for empty text."""
        return self._wrapped(self._plain_ids(text)) if text.strip() else ()

    def shown(
        self, texts: Sequence[str | None], place: Literal["splice", "start"] = "splice"
    ) -> tuple[Block, list[Rejection]]:
        """Recorded texts, one for each turn, as a block: made harmless and cut to the budget.

        Args:
            texts (`Sequence[str | None]`):
                None = the turn has no block, `""` = the empty block. A text of which nothing is left has none.
            place (`str`, *optional*, defaults to `"splice"`):
                As in [`~taspo_trl.types.Block`].

        Returns:
            `tuple[Block, list[Rejection]]`: the block, and what each distinct text lost at its end to the budget.
        """
        made: dict[str | None, tuple[tuple[int, ...] | None, str]] = {None: (None, ""), "": ((), "")}
        cut = []
        for text in texts:
            if text in made or text is None:
                continue
            clean = self.neutralized(text)
            ids = self._plain_ids(clean) if clean.strip() else []
            block = self._wrapped(ids) if ids else None
            made[text] = (block, self.text(block)) if block is not None else (None, "")
            if len(ids) > self._room:
                lost = self._tokenizer.decode(ids[self._room :], clean_up_tokenization_spaces=False)
                cut.append(cut_away(lost))
        return Block(tuple(made[text][0] for text in texts), tuple(made[text][1] for text in texts), place), cut

    def fits(self, text: str) -> bool:
        """Whether [`shown`] keeps `text` whole."""
        return len(self._plain_ids(self.neutralized(text))) <= self._room

    def _wrapped(self, ids: Sequence[int]) -> tuple[int, ...]:
        guidance = tuple(ids[: self._room])
        return (*self._opening_ids, *guidance, *self._closing_ids) if self._has_wrapper else guidance

    def text(self, block_ids: Sequence[int]) -> str:
        """The block as people read it."""
        return self._tokenizer.decode(list(block_ids), clean_up_tokenization_spaces=False).strip()

    def fault(self, text: str) -> str:
        """Why a statement may not enter a block; empty when it may."""
        if _WRAPPER.search(text):
            return "wrapper_in_statement"
        if self._tags.search(text):
            return "action_tag_in_statement"
        if _CHAT_MARKUP.search(text) or any(special in text for special in self._special_texts):
            return "markup_in_statement"
        return ""

    def neutralized(self, text: str) -> str:
        """Recorded text with all markup made harmless, for constructions that show a transcript as it is."""
        for pattern in (_WRAPPER, self._tags, _CHAT_MARKUP):
            text = pattern.sub(lambda match: re.sub(r"[<>\[\]|/]", " ", match.group(0)), text)
        for special in self._special_texts:
            text = text.replace(special, " ")
        # Nested markup, such as one wrapper in another, leaves markup behind; only an attacker writes it.
        return _BRACKETS.sub(" ", text) if self.fault(text) else text

    def _plain_ids(self, text: str) -> list[int]:
        return [i for i in self._encode(text) if i not in self._special_ids]

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))


def cut_away(text: str) -> Rejection:
    """The record of what the budget took from a block."""
    return Rejection("composition", "cut_to_max_tokens", text[:_ITEM_CHARS])
