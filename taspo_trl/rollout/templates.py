"""One chat template: what it prints, where guidance may go, and what it must be able to hold.

A template that cannot hold an environment's chats is refused when a run is set up, by name and with a remedy.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from ..environments.base import Traits
from ..environments.tool_calls import NOTATIONS, Notation, find_calls, parse_tool_calls, typed_arguments
from ..errors import ConfigurationError
from ..markup import THINKING_TAGS, harmless, markup_of, tags_as_text


MARK = "\ue0f0\ue0f1\ue0f0"
"""Private-use characters: in no vocabulary's text and in no observation."""
_THINKING = tuple(tag for pair in THINKING_TAGS for tag in pair)

DATE = "26 Jul 2024"
"""What templates print that ask for today's date, unless `date_string` is among the template's arguments (Llama 3.1's
own default). Always the same: a run that goes on after midnight, is resumed or evaluated later sees the same prompts.
"""
_DATE_FORMATS = ("%d %b %Y", "%Y-%m-%d", "%d %B %Y", "%B %d, %Y")

Message = dict[str, Any]


class ChatRenderer:
    """Messages to text to ids with one tokenizer and one set of template arguments.

    A template that prints today's date prints a fixed one, `date_string`, so that prompts do not change at midnight.

    Args:
        tokenizer:
            A Hugging Face tokenizer with a chat template.
        template_kwargs (`Mapping[str, Any]`, *optional*):
            Passed to the chat template, for example `{"enable_thinking": False}` for Qwen3, or
            `{"date_string": "01 Dec 2026"}` for templates that print a date.
        kept (`tuple[str, ...]`, *optional*):
            Texts that may be special tokens also where somebody else wrote them: an environment's tags.
    """

    def __init__(self, tokenizer: Any, template_kwargs: Mapping[str, Any] | None = None, kept: tuple[str, ...] = ()):
        if not getattr(tokenizer, "chat_template", None):
            raise ConfigurationError(
                "The tokenizer has no chat template, so an episode cannot be put into words. Use an instruction-tuned "
                "model, or set `processing_class.chat_template`."
            )
        self.tokenizer = tokenizer
        self.template_kwargs = dict(template_kwargs or {})
        self.kept = kept
        self.notation: Notation | None = None
        """How the template writes tool calls; None without tools."""
        self._clock = _clock(tokenizer.chat_template, self.template_kwargs)
        self._made: dict[Any, ChatRenderer] = {}

    def for_environment(self, traits: Traits) -> ChatRenderer:
        """The renderer for an environment's chats: with its tools, and with its tags as tags.

        Raises:
            ConfigurationError: see [`ChatRenderer.with_tools`].
        """
        tags = () if traits.tools else tags_as_text(traits.action_tags)
        key = (tags, json.dumps(traits.tools, sort_keys=True, default=str))
        if key not in self._made:
            self._made[key] = ChatRenderer(self.tokenizer, self.template_kwargs, tags).with_tools(traits.tools)
        return self._made[key]

    def with_tools(self, tools: Sequence[Mapping[str, Any]]) -> ChatRenderer:
        """The same renderer for an environment that has tools.

        One call is put through the template and read back, so that what the model was trained to write is what is
        executed.

        Raises:
            ConfigurationError: the chat template shows no tools, no tool results, or writes calls in a way that is
                not read.
        """
        if not tools:
            return self
        made = ChatRenderer(self.tokenizer, {**self.template_kwargs, "tools": [dict(tool) for tool in tools]})
        names = [str(tool.get("function", tool).get("name")) for tool in tools]
        question, call, result = ({"role": role, "content": MARK} for role in ("user", "assistant", "tool"))
        try:
            # Two rounds: a template may count roles, and refuse a reply behind a tool's result.
            text = made.text([question, *[call, {**result, "name": names[0]}] * 2])
        except ConfigurationError as error:
            reason = f" ({error.__cause__})"
        else:
            reason = ""
        if reason or text.count(MARK) != 5 or not all(name in text for name in names):
            raise ConfigurationError(
                f"The environment has the tools {', '.join(names)}, but {self._template} does not show "
                f"tools and their results{reason}. Use a model trained to call tools (Qwen2.5, Qwen3, ...)."
            )
        made.notation = made._notation(names[0])
        return made

    def _notation(self, name: str) -> Notation:
        """The notation in which the template's own call is read back."""
        schema = {"parameters": {"properties": {"amount": {"type": "integer"}, "text": {"type": "string"}}}}
        arguments = {"amount": 7, "text": "two words"}
        written = ""
        for given in (arguments, json.dumps(arguments)):  # some templates want the arguments as text
            call = {"id": "call00001", "type": "function", "function": {"name": name, "arguments": given}}
            question = {"role": "user", "content": MARK}
            try:
                opening = self.text([question])
                text = self.text([question, {"role": "assistant", "content": "", "tool_calls": [call]}], ends=True)
            except ConfigurationError:
                continue
            written = text[_shared(opening, text) :]
            for notation in NOTATIONS.values():
                blocks = find_calls(written, notation).blocks
                calls = parse_tool_calls(blocks[0]) if len(blocks) == 1 else None
                if calls is None or [call.name for call in calls] != [name]:
                    continue
                if typed_arguments(calls[0], schema) == arguments:
                    return notation
        shown = f"a call as {written[:200]!r}" if name in written else "no calls"
        raise ConfigurationError(
            f"{self._template[0].upper()}{self._template[1:]} writes {shown}, which cannot be read back. Calls are "
            f"read in the notations of {', '.join(one.families for one in NOTATIONS.values())}. Use such a model, or "
            "a chat template of that kind."
        )

    @property
    def opens_thinking(self) -> bool:
        """Whether a prompt ends inside of thinking."""
        if self._opens_thinking is None:
            text = self.text([{"role": "user", "content": MARK}])
            tail = text[text.rfind(MARK) + 1 :]
            opened = max(tail.rfind(opening) for opening, _ in THINKING_TAGS)
            self._opens_thinking = opened > max(tail.rfind(closing) for _, closing in THINKING_TAGS)
        return self._opens_thinking

    _opens_thinking: bool | None = None

    @property
    def date(self) -> str | None:
        """The date that the template prints; None when it prints none."""
        return self._clock.get("date_string")

    @property
    def _template(self) -> str:
        """The template's name, for messages."""
        name = str(getattr(self.tokenizer, "name_or_path", "") or "")
        return f"the chat template of {name!r}" if name else "the tokenizer's chat template"

    def check_chat(self, traits: Traits, context: str | None = None) -> None:
        """Raise [`~taspo_trl.errors.ConfigurationError`] when the template cannot hold an environment's chat.

        Args:
            traits (`Traits`):
                The environment's.
            context (`str`, *optional*):
                `"window"` or `"conversation"`; None takes the environment's.
        """
        has_system, is_conversation = traits.prompt.system is not None, (context or traits.context) == "conversation"
        chat = [{"role": "user", "content": MARK}]
        if is_conversation:
            chat = [*chat, {"role": "assistant", "content": MARK}, *chat]
        if has_system:
            chat = [{"role": "system", "content": MARK}, *chat]
        try:
            text = self.text(chat)
        except ConfigurationError as error:
            hint = "leave `system` out of the environment's PromptTemplate and put it into `first`, or "
            raise ConfigurationError(
                f"{self._template[0].upper()}{self._template[1:]} refuses the messages "
                f"{', '.join(one['role'] for one in chat)} ({error.__cause__}). Remedy: "
                f"{hint if has_system else ''}set a `processing_class.chat_template` that takes them."
            ) from error
        if text.count(MARK) < len(chat):
            raise ConfigurationError(
                f"{self._template[0].upper()}{self._template[1:]} does not show all of the messages "
                f"{', '.join(one['role'] for one in chat)} when their content is a string: it may be made for images. "
                "Set a `processing_class.chat_template` that prints them."
            )

    def check_roles(self, roles: Sequence[str]) -> None:
        """Raise [`~taspo_trl.errors.ConfigurationError`] when the template refuses messages, or hides a system one.

        Args:
            roles (`Sequence[str]`):
                Of the messages that open a chat, in their order.
        """
        chat = [{"role": role, "content": MARK if role == "system" else "x"} for role in roles]
        named = ", ".join(roles[:8]) + (", ..." if len(roles) > 8 else "")
        remedy = "set a `processing_class.chat_template` that takes them."
        if "system" in roles:
            remedy = f"put the system message's text into the first user message, or {remedy}"
        try:
            text = self.text(chat)
        except ConfigurationError as error:
            raise ConfigurationError(
                f"{self._template[0].upper()}{self._template[1:]} refuses the messages {named} ({error.__cause__}). "
                f"Remedy: {remedy}"
            ) from error
        if text.count(MARK) < sum(role == "system" for role in roles):
            raise ConfigurationError(
                f"{self._template[0].upper()}{self._template[1:]} does not show the system message of the messages "
                f"{named}. Remedy: {remedy}"
            )

    def end_tokens(self) -> tuple[list[int], str]:
        """(ids of the tokens with which the template ends a reply, text that ends one but is no such token).

        The last reply of a chat may end otherwise than earlier ones; both are named.
        """
        question, reply = ({"role": role, "content": MARK} for role in ("user", "assistant"))
        found: list[int] = []
        plain = ""
        for answer in ([], [question], [{"role": "tool", "name": "f", "content": "x"}]):
            try:
                text = self.text([question, reply, *answer], ends=not answer)
            except ConfigurationError:
                continue
            if text.count(MARK) < 2 or not (suffix := text.split(MARK, 2)[2]):
                continue
            first = self.encode(suffix)[0]
            if first not in markup_of(self.tokenizer).tokens:
                plain = plain or suffix[:20]
            elif first not in found:
                found.append(first)
        return found, plain

    def with_end_tokens(self, known: Sequence[int]) -> list[int]:
        """End tokens of a model, with those with which the template ends a reply when none of them is known.

        A base model whose end token is not the template's would write the next messages itself. Warns when the
        template ends replies with plain text, at which nothing stops.
        """
        own, plain = self.end_tokens()
        if plain and not own:
            warnings.warn(
                f"{self._template[0].upper()}{self._template[1:]} ends a reply with {plain!r}, which is none of the "
                "end tokens: a model that goes on writes the next messages itself. Use a template that ends replies "
                "with the tokenizer's end token.",
                UserWarning,
                stacklevel=2,
            )
        return list(known) if set(own) & set(known) else [*known, *own]

    def outside(self, text: str) -> str:
        """`text` of somebody else as it may enter a prompt: it can become no special token, nor open a message."""
        return harmless(self.tokenizer, text, self.kept)

    def written(self, text: str) -> str:
        """A reply of the model as text of a later prompt: it keeps its tags, its thinking and its calls."""
        marks = self.notation.texts if self.notation is not None else ()
        return harmless(self.tokenizer, text, (*self.kept, *marks, *_THINKING))

    def text(self, messages: Sequence[Message], ends: bool = False) -> str:
        """The chat as the template prints it, with the opening of the assistant's reply unless it `ends`.

        Raises:
            ConfigurationError: the template refuses the messages.
        """
        try:
            return self.tokenizer.apply_chat_template(
                list(messages),
                tokenize=False,
                add_generation_prompt=not ends,
                **{**self.template_kwargs, **self._clock},
            )
        except Exception as error:  # a template raises what it likes
            roles = ", ".join(str(one.get("role")) for one in messages[:8])
            raise ConfigurationError(
                f"{self._template[0].upper()}{self._template[1:]} refuses the messages {roles}: "
                f"{type(error).__name__}: {str(error)[:300]}"
            ) from error

    def max_chars(self, max_length: int) -> int:
        """Characters that `max_length` tokens can hold at most; a longer text is not worth being tokenized."""
        if self._longest is None:
            self._longest = max(map(len, self.tokenizer.get_vocab()), default=1)
        return max_length * self._longest

    _longest: int | None = None

    def encode(self, text: str) -> list[int]:
        """Ids of rendered text. The template prints its own special tokens, so none are added."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def with_splice(self, messages: Sequence[Message]) -> tuple[str, list[int], int | None]:
        """Rendered text, its ids, and the index at which the last user message ends."""
        text = self.text(messages)
        end_of_user = self._end_of_last_user_message(messages, text)
        if end_of_user is None:
            return text, self.encode(text), None
        if not getattr(self.tokenizer, "is_fast", False):
            ids, head = self.encode(text), self.encode(text[:end_of_user])
            return text, ids, len(head) if ids[: len(head)] == head else None
        encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        # A token glued across the end of the message stays whole: the guidance then goes before it.
        index = next(
            (k for k, (_, end) in enumerate(encoded["offset_mapping"]) if end > end_of_user),
            len(encoded["input_ids"]),
        )
        return text, list(encoded["input_ids"]), index or None

    def _end_of_last_user_message(self, messages: Sequence[Message], text: str) -> int | None:
        """Where the message ends in the rendered `text`; None when a mark put there changes what is printed."""
        last = max((k for k, message in enumerate(messages) if message["role"] == "user"), default=None)
        if last is None or not isinstance(messages[last].get("content"), str):
            return None
        content = messages[last]["content"]
        for kept in dict.fromkeys((content, content.rstrip())):  # a template may strip a message
            marked = [*messages[:last], {**messages[last], "content": kept + MARK}, *messages[last + 1 :]]
            rendered = self.text(marked)
            if rendered.count(MARK) == 1 and rendered.replace(MARK, "") == text:
                return rendered.index(MARK)
        return None


_NOW = re.compile(r"""strftime_now\(\s*(['"])(.*?)\1\s*\)""")


def _clock(template: Any, template_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that pin the date of a template that prints one; empty for one that prints none."""
    if "strftime_now" not in str(template) and "date_string" not in str(template):
        return {}
    pinned = str(template_kwargs.get("date_string", DATE))
    if not isinstance(template, str) or not _NOW.search(template):
        return {"date_string": pinned}

    def written(call: re.Match[str]) -> str:
        for known in _DATE_FORMATS:
            try:
                return repr(datetime.strptime(pinned, known).strftime(call[2]))
            except ValueError:
                continue
        return repr(pinned)

    return {"date_string": pinned, "chat_template": _NOW.sub(written, template)}


def _shared(first: str, second: str) -> int:
    """How many characters two texts have in common at their beginnings."""
    pairs = zip(first, second, strict=False)
    return next((k for k, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
