"""Episodes in words: what the policy is shown at each turn, as token ids, and where guidance may be spliced in.

Two kinds of context (method.md, section 6). *Window*: every turn is prompted afresh with the task, the last few turns
and the current observation. *Conversation*: the chat grows, and the next ids are the previous ids, the reply's ids and
the template's suffix, so that sampled ids are never tokenized again. Needs a tokenizer, no model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..environments.base import PromptTemplate
from ..errors import ConfigurationError
from ..markup import markup_of


_MARK = "\ue0f0\ue0f1\ue0f0"  # private-use characters: in no vocabulary's text and in no observation
_CUT = " ... "
_MIN_OBSERVATION = 40  # characters that a cut observation keeps

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PastTurn:
    """A finished turn as later prompts may show it."""

    observation: str
    action: str
    next_observation: str
    reply_text: str
    reply_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EpisodeView:
    """What the next prompt is made from."""

    task: str
    observation: str
    admissible_actions: tuple[str, ...] | None = None
    history: tuple[PastTurn, ...] = ()
    messages: tuple[Message, ...] = ()
    """What the environment says in its own words; empty = the template says it."""


@dataclass(frozen=True, slots=True)
class Context:
    """One prompt, ready for the engine."""

    prompt_ids: tuple[int, ...]
    splice_index: int | None
    """Where guidance may be inserted; None when the chat template hides the end of the user message."""
    messages: tuple[Message, ...]
    cuts: int = 0
    """History items dropped, plus one when the observation was cut."""


class ChatRenderer:
    """Messages to text to ids with one tokenizer and one set of template arguments.

    Args:
        tokenizer:
            A Hugging Face tokenizer with a chat template.
        template_kwargs (`Mapping[str, Any]`, *optional*):
            Passed to the chat template, for example `{"enable_thinking": False}` for Qwen3.
    """

    def __init__(self, tokenizer: Any, template_kwargs: Mapping[str, Any] | None = None):
        if not getattr(tokenizer, "chat_template", None):
            raise ConfigurationError(
                "The tokenizer has no chat template, so an episode cannot be put into words. Use an instruction-tuned "
                "model, or set `processing_class.chat_template`."
            )
        self.tokenizer = tokenizer
        self.template_kwargs = dict(template_kwargs or {})

    def with_tools(self, tools: Sequence[Mapping[str, Any]]) -> ChatRenderer:
        """The same renderer for an environment that has tools.

        Raises:
            ConfigurationError: the chat template shows no tools, or no tool results.
        """
        if not tools:
            return self
        made = ChatRenderer(self.tokenizer, {**self.template_kwargs, "tools": [dict(tool) for tool in tools]})
        names = [str(tool.get("function", tool).get("name")) for tool in tools]
        question, call, result = ({"role": role, "content": _MARK} for role in ("user", "assistant", "tool"))
        text = made.text([question, call, result])
        if text.count(_MARK) != 3 or not all(name in text for name in names):
            raise ConfigurationError(
                f"The environment has the tools {', '.join(names)}, but the tokenizer's chat template does not show "
                "tools and their results. Use a model trained to call tools (Qwen2.5, Qwen3, ...)."
            )
        return made

    def text(self, messages: Sequence[Message]) -> str:
        """The chat as the template prints it, with the opening of the assistant's reply."""
        return self.tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=True, **self.template_kwargs
        )

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
            marked = [*messages[:last], {**messages[last], "content": kept + _MARK}, *messages[last + 1 :]]
            rendered = self.text(marked)
            if rendered.count(_MARK) == 1 and rendered.replace(_MARK, "") == text:
                return rendered.index(_MARK)
        return None


class WindowContext:
    """Contexts of one episode in which every turn is prompted afresh.

    Over-long prompts lose their oldest history first, then the middle of the observation; the task and the instruction
    are never cut.
    """

    def __init__(
        self, renderer: ChatRenderer, template: PromptTemplate, history_length: int, max_length: int | None = None
    ):
        self.renderer = renderer
        self.template = template
        self.history_length = history_length
        self.max_length = max_length

    def next(self, view: EpisodeView) -> Context | None:
        """The prompt of the coming turn; None when it cannot be made short enough."""
        shown = list(view.history[-self.history_length :]) if self.history_length else []
        for dropped, observation, is_cut in _shrinking(len(shown), view.observation):
            messages = self._messages(view, shown[dropped:], observation)
            _, ids, splice_index = self.renderer.with_splice(messages)
            if self.max_length is None or len(ids) <= self.max_length:
                return Context(tuple(ids), splice_index, tuple(messages), dropped + is_cut)
        return None

    def _messages(self, view: EpisodeView, shown: Sequence[PastTurn], observation: str) -> list[Message]:
        template = self.template
        first_shown = len(view.history) - len(shown) + 1
        history = "\n".join(
            _fill(
                template.history_item,
                turn=str(first_shown + k),
                observation=past.observation,
                action=past.action or template.no_action,
                next_observation=past.next_observation,
            )
            for k, past in enumerate(shown)
        )
        text = _fill(
            template.later if view.history else template.first,
            **_view_fields(template, view, observation),
            history=history,
        )
        return [*_system(template), {"role": "user", "content": text}]


@dataclass
class ConversationContext:
    """Contexts of one episode as a growing chat.

    When the template rewrites what it printed before (for example drops earlier thinking), or when the chat outgrows
    `max_length` and loses its oldest turns, the chat is rendered anew and its ids no longer extend the previous ones.
    """

    renderer: ChatRenderer
    template: PromptTemplate
    max_length: int | None = None
    _messages: list[Message] = field(default_factory=list)
    _num_opening: int = 0
    _ids: list[int] = field(default_factory=list)
    _text: str = ""
    _splice_index: int | None = None

    def next(self, view: EpisodeView) -> Context | None:
        """The prompt of the coming turn; None when it cannot be made short enough."""
        if not view.history:
            return self._open(view)
        last = view.history[-1]
        self._messages.append({"role": "assistant", "content": last.reply_text})
        return self._extend(last, self._answer(view, view.observation)) or self._render_anew(view)

    def _open(self, view: EpisodeView) -> Context | None:
        if view.messages:
            opening = self._fitting(view.messages)
        else:
            fitting = (
                self._fitting(self._first(view, text), is_cut) for _, text, is_cut in _shrinking(0, view.observation)
            )
            opening = next(filter(None, fitting), None)
        self._num_opening = len(self._messages)
        return opening

    def _first(self, view: EpisodeView, observation: str) -> list[Message]:
        text = _fill(self.template.first, **_view_fields(self.template, view, observation))
        return [*_system(self.template), {"role": "user", "content": text}]

    def _answer(self, view: EpisodeView, observation: str, is_cut: int = 0) -> list[Message]:
        """The messages that answer an action."""
        if not view.messages:
            text = _fill(self.template.reply, **_view_fields(self.template, view, observation))
            return [{"role": "user", "content": text}]
        if not is_cut:
            return list(view.messages)
        return [{**one, "content": cut_middle(one["content"], len(observation))} for one in view.messages]

    def _extend(self, last: PastTurn, answer: Sequence[Message]) -> Context | None:
        """Previous ids + reply ids + the template's suffix; None when the template does not allow it."""
        earlier = self._messages[:-1]
        probe = self.renderer.text([*earlier, {"role": "assistant", "content": _MARK}, *answer])
        if probe.count(_MARK) != 1:
            return None
        suffix = probe[probe.index(_MARK) + len(_MARK) :]
        text = self.renderer.text([*self._messages, *answer])
        if not (text.startswith(self._text) and text.endswith(suffix)):
            return None
        reply = text[len(self._text) : len(text) - len(suffix)]
        if reply.strip() != last.reply_text.strip():  # a template may trim a reply, but not rewrite it
            return None
        suffix_ids = self.renderer.encode(suffix)
        closing = tuple(suffix_ids[:1])
        if closing and last.reply_ids[-1:] == closing and closing[0] in markup_of(self.renderer.tokenizer).tokens:
            suffix_ids = suffix_ids[1:]  # the sampled end token already closed the message
        ids = [*self._ids, *last.reply_ids, *suffix_ids]
        if self.max_length is not None and len(ids) > self.max_length:
            return None
        self._messages.extend(answer)
        self._ids, self._text = ids, text
        return Context(tuple(ids), self._splice_index, tuple(self._messages))

    def _render_anew(self, view: EpisodeView) -> Context | None:
        """The whole chat from its messages, oldest exchanges dropped until it fits; the opening is never dropped."""
        before, opening = self._messages, self._num_opening
        replies = [k for k, message in enumerate(before) if k >= opening and message["role"] == "assistant"]
        for dropped, observation, is_cut in _shrinking(len(replies) - 1, view.observation):
            kept = [*before[:opening], *before[replies[dropped] :]]
            context = self._fitting([*kept, *self._answer(view, observation, is_cut)], dropped + is_cut)
            if context is not None:
                return context
        return None

    def _fitting(self, messages: Sequence[Message], cuts: int = 0) -> Context | None:
        """The prompt of `messages`, from which the chat goes on; None when it is too long."""
        text, ids, splice_index = self.renderer.with_splice(messages)
        if self.max_length is not None and len(ids) > self.max_length:
            return None
        self._messages, self._ids, self._text, self._splice_index = list(messages), ids, text, splice_index
        return Context(tuple(ids), splice_index, tuple(messages), cuts)


def _shrinking(num_history: int, observation: str) -> Iterator[tuple[int, str, int]]:
    """(history items dropped, observation, whether it is cut), from the whole prompt to the shortest allowed one."""
    for dropped in range(num_history + 1):
        yield dropped, observation, 0
    keep = len(observation) * 4 // 5
    while keep > _MIN_OBSERVATION:
        yield num_history, cut_middle(observation, keep), 1
        keep = keep * 4 // 5
    if len(observation) > _MIN_OBSERVATION:
        yield num_history, cut_middle(observation, _MIN_OBSERVATION), 1


def cut_middle(text: str, keep: int) -> str:
    """`text` with its middle replaced by ` ... ` so that `keep` characters of head and tail remain."""
    if len(text) <= keep:
        return text
    tail = keep // 2
    return text[: keep - tail] + _CUT + text[len(text) - tail :]


def _system(template: PromptTemplate) -> list[Message]:
    return [{"role": "system", "content": template.system}] if template.system is not None else []


def _view_fields(template: PromptTemplate, view: EpisodeView, observation: str) -> dict[str, str]:
    actions = template.admissible_separator.join(
        _fill(template.admissible_item, action=action) for action in view.admissible_actions or ()
    )
    return {
        "task": view.task,
        "observation": observation,
        "admissible_actions": actions,
        "num_turns": str(len(view.history)),
        "turn": str(len(view.history) + 1),
    }


def _fill(template: str, **fields: str) -> str:
    # One pass over the template: braces inside an observation are never taken for placeholders.
    return re.sub(r"\{(\w+)\}", lambda match: fields.get(match.group(1), match.group(0)), template)
