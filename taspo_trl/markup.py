"""Which tokens of a tokenizer are chat markup: no reply's text shows them, and no text from outside becomes one.

A tokenizer's special and added tokens are of several kinds. End, padding and role tokens frame a chat. Tags such as
`<action>`, `<think>` or `<tool_call>` are what a model says. Others are ordinary words or white space that somebody
added. Only the first kind is markup, whatever the tokenizer calls special.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


THINKING_TAGS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|channel>", "<channel|>"),
    ("<seed:think>", "</seed:think>"),
)
"""What opens and what closes a model's thinking, in the notations of the models' families."""

_TAG = re.compile(r"</?[A-Za-z_][\w.:-]*>|\[/?[A-Z_]+\]")
_BRACKETED = re.compile(r"\s*[<\[{].+[>\]}]\s*", re.DOTALL)
_NAMES = ("eos_token", "bos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")


@dataclass(frozen=True)
class Markup:
    """The markup of one tokenizer, as an environment's tags leave it."""

    silent: frozenset[int]
    """Ids that no reply's text shows: end, padding and role tokens."""
    tokens: frozenset[int]
    """Ids that no text may become that somebody else wrote: all special tokens but for the kept tags, and the tokens
    with which the chat template frames messages."""
    texts: tuple[str, ...]
    """The texts of `tokens`, longest first."""
    pattern: re.Pattern[str]
    """Finds one of `texts`."""
    normalizes: bool
    """Whether a text can become one of `tokens` without holding it as it is, through the tokenizer's normalizer."""


def tags_as_text(tags: Iterable[str]) -> tuple[str, ...]:
    """The opening and closing forms of tag names."""
    return tuple(text for tag in tags for text in (f"<{tag}>", f"</{tag}>"))


_made: weakref.WeakKeyDictionary[Any, dict[Any, Markup]] = weakref.WeakKeyDictionary()


def markup_of(tokenizer: Any, kept: tuple[str, ...] = ()) -> Markup:
    """The chat markup of a tokenizer.

    Args:
        tokenizer:
            A Hugging Face tokenizer.
        kept (`tuple[str, ...]`, *optional*):
            Texts of tokens that are never markup, whatever their case: an environment's tags, the marks of tool calls.
    """
    key = (kept, len(tokenizer), str(getattr(tokenizer, "chat_template", None)))
    known = _made.setdefault(tokenizer, {})
    if key not in known:
        known[key] = _markup(tokenizer, {text.lower() for text in kept})
    return known[key]


def block_markup(tokenizer: Any) -> dict[str, int]:
    """Text -> id of the tokens that a guidance block must not hold: special tokens and added ones in brackets.

    Words, line feeds and spaces that a tokenizer merely lists among its added tokens are text.
    """
    added = _added(tokenizer)
    return {text: i for i, (text, is_special) in added.items() if is_special or _BRACKETED.fullmatch(text)}


def _added(tokenizer: Any) -> dict[int, tuple[str, bool]]:
    """Id -> (text, whether it is special) of all added and special tokens."""
    found = {
        int(i): (str(token), bool(getattr(token, "special", False)))
        for i, token in getattr(tokenizer, "added_tokens_decoder", {}).items()
    }
    for i in tokenizer.all_special_ids:
        found[i] = (found[i][0] if i in found else str(tokenizer.convert_ids_to_tokens(i)), True)
    return found


def _markup(tokenizer: Any, kept: set[str]) -> Markup:
    added = _added(tokenizer)
    named = {getattr(tokenizer, name, None) for name in _NAMES}
    framing = _framing(tokenizer)
    thinking = {tag.lower() for pair in THINKING_TAGS for tag in pair}
    silent, tokens = set(), set()
    for i, (text, is_special) in added.items():
        if not text.strip() or text.lower() in kept:
            continue
        is_frame = text in framing and text.lower() not in thinking
        if is_special and (text in named or is_frame or not (_TAG.fullmatch(text) or text.lower() in thinking)):
            silent.add(i)
        if is_special or is_frame:
            tokens.add(i)
    silent |= {i for i, (text, is_special) in added.items() if is_special and not text.strip()}
    has_normalizer = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None) is not None
    is_normalized = has_normalizer and any(
        token.normalized for i, token in tokenizer.added_tokens_decoder.items() if i in tokens
    )
    texts = tuple(sorted((added[i][0] for i in tokens), key=len, reverse=True))
    pattern = re.compile("|".join(map(re.escape, texts)))
    return Markup(frozenset(silent), frozenset(tokens), texts, pattern, is_normalized)


def _framing(tokenizer: Any) -> set[str]:
    """The added tokens that the chat template prints around empty messages."""
    if not getattr(tokenizer, "chat_template", None):
        return set()
    user, reply = ({"role": role, "content": "x"} for role in ("user", "assistant"))
    printed = ""
    for chat in (
        [user, reply, user],
        [{"role": "system", "content": "x"}, user],
        [user, reply, {"role": "tool", "name": "x", "content": "x"}],
    ):
        try:
            printed += tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        except Exception:  # roles that a template refuses are refused where they are needed
            continue
    return {text for text, _ in _added(tokenizer).values() if text.strip() and text in printed}


def harmless(tokenizer: Any, text: str, kept: tuple[str, ...] = ()) -> str:
    """`text` so that it is encoded without chat markup: a space breaks each text of a markup token.

    Args:
        text (`str`):
            What somebody else wrote: an observation, a task, a message, a reply of the model as it is shown later.
        kept (`tuple[str, ...]`, *optional*):
            See [`markup_of`].
    """
    markup = markup_of(tokenizer, kept)
    if not markup.texts:
        return text
    for _ in range(3):  # a broken text may in theory be another token; only an attacker's tokenizer has such
        if markup.pattern.search(text) is None:
            break
        text = markup.pattern.sub(lambda found: _broken(found[0]), text)
    return _checked(tokenizer, text, markup) if markup.normalizes else text


def _checked(tokenizer: Any, text: str, markup: Markup) -> str:
    """`text` without what the tokenizer's normalizer would turn into markup."""
    for _ in range(3):
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        hits = [
            span for i, span in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True) if i in markup.tokens
        ]
        if not hits:
            return text
        for start, end in reversed(hits):
            text = text[:start] + _broken(text[start:end]) + text[end:]
    return text


def _broken(text: str) -> str:
    return f"{text[0]} {text[1:]}" if len(text) > 1 else " "
