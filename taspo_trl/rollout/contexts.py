"""Episodes in words: what the policy is shown at each turn, as token ids, and where guidance may be spliced in.

Two kinds of context (docs/method.md, section 6). *Window*: every turn is prompted afresh with the task, the last few
turns and the current observation. *Conversation*: the chat grows, and the next ids are the previous ids, the reply's
ids and the template's suffix, so that sampled ids are never tokenized again. Needs a tokenizer, no model.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..environments.base import PromptTemplate
from ..markup import markup_of
from .templates import MARK, ChatRenderer, Message


_CUT = " ... "
_MIN_OBSERVATION = 40  # characters that a cut observation keeps


Opening = Callable[[Sequence[Message]], list[Message]]
"""What puts further words into a first prompt's messages, in window contexts into those of each turn."""


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
        self.opening: Opening | None = None

    def next(self, view: EpisodeView) -> Context | None:
        """The prompt of the coming turn; None when it cannot be made short enough."""
        shown = list(view.history[-self.history_length :]) if self.history_length else []
        for dropped, observation, is_cut in _shrinking(len(shown), view.observation, self.renderer, self.max_length):
            messages = self._messages(view, shown[dropped:], observation)
            if _is_hopeless(messages, self.renderer, self.max_length):
                continue
            _, ids, splice_index = self.renderer.with_splice(messages)
            if self.max_length is None or len(ids) <= self.max_length:
                return Context(tuple(ids), splice_index, tuple(messages), dropped + is_cut)
        return None

    def _messages(self, view: EpisodeView, shown: Sequence[PastTurn], observation: str) -> list[Message]:
        template, outside = self.template, self.renderer.outside
        first_shown = len(view.history) - len(shown) + 1
        history = "\n".join(
            _fill(
                template.history_item,
                turn=str(first_shown + k),
                observation=outside(past.observation),
                action=outside(past.action) or template.no_action,
                next_observation=outside(past.next_observation),
            )
            for k, past in enumerate(shown)
        )
        text = _fill(
            template.later if view.history else template.first,
            **_view_fields(template, view, observation, outside),
            history=history,
        )
        messages = [*_system(template), {"role": "user", "content": text}]
        return messages if self.opening is None else self.opening(messages)


@dataclass
class ConversationContext:
    """Contexts of one episode as a growing chat.

    When the template rewrites what it printed before (for example drops earlier thinking), or when the chat outgrows
    `max_length` and loses its oldest turns, the chat is rendered anew and its ids no longer extend the previous ones.
    """

    renderer: ChatRenderer
    template: PromptTemplate
    max_length: int | None = None
    opening: Opening | None = None
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
        self._messages.append({"role": "assistant", "content": self.renderer.written(last.reply_text)})
        return self._extend(last, self._answer(view, view.observation)) or self._render_anew(view)

    def _open(self, view: EpisodeView) -> Context | None:
        if view.messages:
            opening = self._fitting(self._opened(self._told(view.messages)))
        else:
            fitting = (
                self._fitting(self._opened(self._first(view, text)), is_cut)
                for _, text, is_cut in _shrinking(0, view.observation, self.renderer, self.max_length)
            )
            opening = next(filter(None, fitting), None)
        self._num_opening = len(self._messages)
        return opening

    def _opened(self, messages: list[Message]) -> list[Message]:
        return messages if self.opening is None else self.opening(messages)

    def _first(self, view: EpisodeView, observation: str) -> list[Message]:
        text = _fill(self.template.first, **_view_fields(self.template, view, observation, self.renderer.outside))
        return [*_system(self.template), {"role": "user", "content": text}]

    def _answer(self, view: EpisodeView, observation: str, is_cut: int = 0) -> list[Message]:
        """The messages that answer an action."""
        if not view.messages:
            text = _fill(self.template.reply, **_view_fields(self.template, view, observation, self.renderer.outside))
            return [{"role": "user", "content": text}]
        return self._told(view.messages, len(observation) if is_cut else None)

    def _told(self, messages: Sequence[Message], keep: int | None = None) -> list[Message]:
        """An environment's own messages as they may enter the chat, each cut to `keep` characters."""
        told = []
        for one in messages:
            content = one.get("content")
            if isinstance(content, str):
                content = self.renderer.outside(content if keep is None else cut_middle(content, keep))
            told.append({**one, "content": content})
        return told

    def _extend(self, last: PastTurn, answer: Sequence[Message]) -> Context | None:
        """Previous ids + reply ids + the template's suffix; None when the template does not allow it."""
        earlier = self._messages[:-1]
        probe = self.renderer.text([*earlier, {"role": "assistant", "content": MARK}, *answer])
        if probe.count(MARK) != 1:
            return None
        suffix = probe[probe.index(MARK) + len(MARK) :]
        text = self.renderer.text([*self._messages, *answer])
        if not (text.startswith(self._text) and text.endswith(suffix)):
            return None
        reply = text[len(self._text) : len(text) - len(suffix)]
        if reply.strip() != self._messages[-1]["content"].strip():  # a template may trim a reply, but not rewrite it
            return None
        if self.max_length is not None and len(suffix) > self.renderer.max_chars(self.max_length):
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
        spoken = max((str(one.get("content")) for one in view.messages), key=len, default=view.observation)
        for dropped, observation, is_cut in _shrinking(len(replies) - 1, spoken, self.renderer, self.max_length):
            kept = [*before[:opening], *before[replies[dropped] :]]
            context = self._fitting([*kept, *self._answer(view, observation, is_cut)], dropped + is_cut)
            if context is not None:
                return context
        return None

    def _fitting(self, messages: Sequence[Message], cuts: int = 0) -> Context | None:
        """The prompt of `messages`, from which the chat goes on; None when it is too long."""
        if _is_hopeless(messages, self.renderer, self.max_length):
            return None
        text, ids, splice_index = self.renderer.with_splice(messages)
        if self.max_length is not None and len(ids) > self.max_length:
            return None
        self._messages, self._ids, self._text, self._splice_index = list(messages), ids, text, splice_index
        return Context(tuple(ids), splice_index, tuple(messages), cuts)


def _shrinking(
    num_history: int, observation: str, renderer: ChatRenderer, max_length: int | None
) -> Iterator[tuple[int, str, int]]:
    """(history items dropped, observation, whether it is cut), from the whole prompt to the shortest allowed one.

    Cuts that cannot fit `max_length` tokens are left out, so that a long observation is tokenized about once.
    """
    limit = None if max_length is None else renderer.max_chars(max_length)
    if limit is None or len(observation) <= limit:
        for dropped in range(num_history + 1):
            yield dropped, observation, 0
    count = None
    keep = len(observation) * 4 // 5
    while keep > _MIN_OBSERVATION:
        if limit is None or max_length is None:
            yield num_history, cut_middle(observation, keep), 1
        elif keep <= limit:
            count = count or _token_counter(observation, limit, renderer.tokenizer)
            if count(keep) <= max_length + _GLUED:
                yield num_history, cut_middle(observation, keep), 1
        keep = keep * 4 // 5
    if len(observation) > _MIN_OBSERVATION:
        yield num_history, cut_middle(observation, _MIN_OBSERVATION), 1


_GLUED = 16  # tokens by which the count of a cut text may differ from its count inside the prompt


def _token_counter(observation: str, limit: int, tokenizer: Any) -> Callable[[int], int]:
    """About how many tokens a cut of `observation` to `limit` characters or fewer has, from one look at its ends."""
    if not getattr(tokenizer, "is_fast", False):
        return lambda keep: 0
    limit = min(limit, len(observation))
    half = limit // 2
    parts = observation[: limit - half], observation[len(observation) - half :]
    head, tail = (
        [
            start
            for start, _ in tokenizer(part, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        ]
        for part in parts
    )

    def count(keep: int) -> int:
        behind = bisect_left(tail, half - keep // 2)
        return bisect_left(head, keep - keep // 2) + len(tail) - behind

    return count


def _is_hopeless(messages: Sequence[Message], renderer: ChatRenderer, max_length: int | None) -> bool:
    """Whether messages are too long for any tokenization to fit."""
    if max_length is None:
        return False
    size = sum(len(one["content"]) for one in messages if isinstance(one.get("content"), str))
    return size > renderer.max_chars(max_length)


def cut_middle(text: str, keep: int) -> str:
    """`text` with its middle replaced by ` ... ` so that `keep` characters of head and tail remain."""
    if len(text) <= keep:
        return text
    tail = keep // 2
    return text[: keep - tail] + _CUT + text[len(text) - tail :]


def _system(template: PromptTemplate) -> list[Message]:
    return [{"role": "system", "content": template.system}] if template.system is not None else []


def _view_fields(
    template: PromptTemplate, view: EpisodeView, observation: str, outside: Callable[[str], str]
) -> dict[str, str]:
    actions = template.admissible_separator.join(
        _fill(template.admissible_item, action=outside(action)) for action in view.admissible_actions or ()
    )
    return {
        "task": outside(view.task),
        "observation": outside(observation),
        "admissible_actions": actions,
        "num_turns": str(len(view.history)),
        "turn": str(len(view.history) + 1),
    }


def _fill(template: str, **fields: str) -> str:
    # One pass over the template: braces inside an observation are never taken for placeholders.
    return re.sub(r"\{(\w+)\}", lambda match: fields.get(match.group(1), match.group(0)), template)
