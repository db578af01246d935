"""The calls of a reply: where they stand and what they say, in the notations of the chat templates in use.

Pure. Every scan is linear in the reply. Thinking is no place for calls: whatever stands before its end is a draft.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..markup import THINKING_TAGS
from ..tokens import ActionBlock


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call; `arguments` by parameter name."""

    name: str
    arguments: Mapping[str, Any]

    def to_json(self) -> str:
        """The call on one line, in the JSON notation."""
        return json.dumps({"name": self.name, "arguments": dict(self.arguments)}, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Notation:
    """How the models of a family write calls."""

    name: str
    """Also the `tag` of the blocks that are found with it."""
    families: str
    """Who writes it, for messages."""
    opening: str
    """Text before a call; empty when calls stand bare at the beginning of the reply."""
    closing: str
    """Text behind a call; empty when the call's own syntax ends it."""
    read: Callable[[str], tuple[ToolCall, ...] | None]
    """The calls in a block's content; None when it holds none."""
    marks: tuple[str, ...] = ()
    """Token texts that belong to the notation, besides `opening` and `closing`."""

    @property
    def texts(self) -> tuple[str, ...]:
        """All token texts that a reply must show for its calls to be read."""
        return tuple(text for text in (self.opening, self.closing, *self.marks) if text)


@dataclass(frozen=True, slots=True)
class Calls:
    """What [`find_calls`] finds."""

    blocks: tuple[ActionBlock, ...]
    fault: str = ""
    """Why the reply is no good final answer although it holds no call: `unclosed_tool_call` or `unclosed_thinking`."""


# ---- where calls stand ----------------------------------------------------------------------------------------------


def find_calls(text: str, notation: Notation, opens_thinking: bool = False) -> Calls:
    """The calls of a reply, in order, each as the block that is executed.

    Nothing before the end of thinking counts: neither what stands between thinking tags, nor what stands before a
    closing one whose opening tag was part of the prompt. Thinking that never ends leaves no calls.

    Args:
        text (`str`):
            The decoded reply.
        notation (`Notation`):
            How its calls are written.
        opens_thinking (`bool`, *optional*, defaults to `False`):
            Whether the prompt ended inside of thinking.

    Returns:
        [`Calls`]: blocks `text[start:end]` with the notation's marks included.
    """
    blocks: list[ActionBlock] = []
    is_begun = False
    position = 0
    if opens_thinking:
        ends = [found + len(closing) for _, closing in THINKING_TAGS if (found := text.find(closing)) >= 0]
        if not ends:
            return Calls((), "unclosed_thinking")
        position = min(ends)
    events, spans = _events(notation.opening), _Spans(text, notation)
    event = events.search(text, position)
    while event is not None:
        position = event.end()
        if event.lastgroup == "call":
            span = spans.of(position)
            following = events.search(text, position)
            if span is None:
                is_begun = True
            elif following is not None and _is_draft(following, span[0], events):
                is_begun = False
            else:
                content = text[position : span[0]]
                is_nested = bool(notation.closing) and notation.opening in content.lower()
                blocks.append(ActionBlock(notation.name, content, event.start(), span[1], is_nested, position))
                position = span[1]
                following = events.search(text, position)
            event = following
            continue
        if event.lastgroup == "thought":
            closing = _CLOSING[event[0]]
            end = text.find(closing, position)
            if end < 0:
                return Calls((), "unclosed_thinking")
            position = end + len(closing)
        blocks, is_begun = [], False
        event = events.search(text, position)
    if not notation.opening:
        blocks, is_begun = _bare_calls(text, position, notation)
    return Calls(tuple(blocks), "unclosed_tool_call" if is_begun and not blocks else "")


_CLOSING = dict(THINKING_TAGS)


@lru_cache(maxsize=16)
def _events(opening: str) -> re.Pattern[str]:
    """What changes the meaning of the text behind it: the beginning or end of thinking, the opening of a call."""
    thought, end = ("|".join(re.escape(pair[k]) for pair in THINKING_TAGS) for k in (0, 1))
    call = f"|(?P<call>(?i:{re.escape(opening)}))" if opening else ""
    return re.compile(f"(?P<thought>{thought})|(?P<end>{end}){call}", re.ASCII)


def _is_draft(event: re.Match[str], end: int, events: re.Pattern[str]) -> bool:
    """Whether the first event inside a call ends the thinking that the call was begun in: another call follows."""
    if event.lastgroup != "end" or event.start() >= end:
        return False
    following = events.search(event.string, event.end())
    return following is not None and following.lastgroup == "call" and following.start() <= end


class _Spans:
    """Where the calls of a text end; each closing mark is looked for once."""

    def __init__(self, text: str, notation: Notation):
        self.text = text
        self.notation = notation
        self._closing: re.Match[str] | None = None
        self._is_exhausted = False
        self._num_retries = 8

    def of(self, start: int) -> tuple[int, int] | None:
        """(end of the content, end of the block) of a call that was opened at `start`; None when it has no end."""
        if self.notation.closing:
            if not self._is_exhausted and (self._closing is None or self._closing.start() < start):
                self._closing = _closing_of(self.notation.closing).search(self.text, start)
                self._is_exhausted = self._closing is None
            return None if self._closing is None else self._closing.span()
        following = self.text.find(self.notation.opening, start)
        limit = len(self.text) if following < 0 else following
        value = _BEFORE_JSON.match(self.text, start, limit)
        begin = limit if value is None else value.end()
        end = _json_end(self.text[begin:limit], 0)
        if end is not None:
            return (begin + end, begin + end)
        if begin < limit < len(self.text) and self._num_retries:  # the opening mark may stand in one of its strings
            self._num_retries -= 1  # each costs the length of the text
            limit = _json_end(self.text, begin) or limit
        return (limit, limit)


@lru_cache(maxsize=16)
def _closing_of(mark: str) -> re.Pattern[str]:
    return re.compile(re.escape(mark), re.ASCII | re.IGNORECASE)


_BEFORE_JSON = re.compile(r"[^\[{]*(?:\[(?:CALL_ID|ARGS)\][^\[{]*)*")


def _json_end(text: str, start: int) -> int | None:
    """Where the JSON value ends that begins at `start`."""
    try:
        return _DECODER.raw_decode(text, start)[1]
    except (ValueError, RecursionError):
        return None


_DECODER = json.JSONDecoder()
_BARE = re.compile(r"\s*(?:<\|python_tag\|>)?\s*(?=\{)")
_BARE_NEXT = re.compile(r"\s*;?\s*(?=\{)")


def _bare_calls(text: str, start: int, notation: Notation) -> tuple[list[ActionBlock], bool]:
    """(calls that stand at `start` without marks, whether one was begun that is no JSON)."""
    blocks: list[ActionBlock] = []
    before = _BARE.match(text, start)
    while before is not None:
        end = _json_end(text, before.end())
        if end is None:
            return blocks, _BARE_BEGUN.match(text, before.end()) is not None
        content = text[before.end() : end]
        if notation.read(content) is None:
            break
        blocks.append(ActionBlock(notation.name, content, before.end(), end, False, before.end()))
        before = _BARE_NEXT.match(text, end)
    return blocks, False


_BARE_BEGUN = re.compile(r'\{\s*"(?:name|type|function)"\s*:')


# ---- what a call says -----------------------------------------------------------------------------------------------


def parse_tool_call(content: str) -> ToolCall | None:
    """The call inside a `<tool_call>` block, a JSON object or nested tags; None when it is none."""
    if "<function=" in content:
        return _function_tags(content)
    try:
        return _call_of(json.loads(content))
    except (ValueError, RecursionError):
        return None


def parse_tool_calls(block: ActionBlock) -> tuple[ToolCall, ...] | None:
    """The calls of a block that [`find_calls`] found; None when it holds none, or anything else."""
    notation = NOTATIONS.get(block.tag)
    if notation is None:
        return None
    try:
        return notation.read(block.content) or None
    except (ValueError, RecursionError):
        return None


def _call_of(data: Any) -> ToolCall | None:
    if isinstance(data, Mapping) and isinstance(data.get("function"), Mapping):
        data = data["function"]
    if not isinstance(data, Mapping) or not isinstance(data.get("name"), str):
        return None
    arguments = data.get("arguments", data.get("parameters", {}))
    if isinstance(arguments, str):  # some models quote the object once more
        arguments = json.loads(arguments)
    return ToolCall(data["name"], arguments) if isinstance(arguments, Mapping) else None


def _one(call: ToolCall | None) -> tuple[ToolCall, ...] | None:
    return None if call is None else (call,)


def _all_of(data: Any) -> tuple[ToolCall, ...] | None:
    calls = [_call_of(one) for one in (data if isinstance(data, list) else [data])]
    return None if not calls or None in calls else tuple(call for call in calls if call is not None)


def _function_tags(content: str) -> ToolCall | None:
    """`<function=NAME><parameter=KEY>VALUE</parameter>...</function>`"""
    name, start = _tag_value(content, "<function=", 0)
    end = content.find("</function>", start) if name else -1
    if name is None or end < 0:
        return None
    arguments: dict[str, str] = {}
    while True:
        key, start = _tag_value(content, "<parameter=", start)
        close = content.find("</parameter>", start) if key is not None else -1
        if key is None or close < 0 or close > end:
            return ToolCall(name, arguments)
        arguments[key] = content[start:close].removeprefix("\n").removesuffix("\n")
        start = close


def _tag_value(content: str, opening: str, start: int) -> tuple[str | None, int]:
    """(what stands between `opening` and the next `>`, where it ends); None when there is no such tag."""
    begin = content.find(opening, start)
    end = content.find(">", begin) if begin >= 0 else -1
    if end < 0:
        return None, len(content)
    value = content[begin + len(opening) : end].strip()
    return (value if value and not _SPACE.search(value) else None), end + 1


_SPACE = re.compile(r"\s")


def _argument_keys(content: str) -> tuple[ToolCall, ...] | None:
    """`NAME`, then pairs of `<arg_key>` and `<arg_value>`."""
    head, *pairs = content.split("<arg_key>")
    name = head.strip()
    if not _NAME.fullmatch(name):
        return None
    arguments: dict[str, str] = {}
    for pair in pairs:
        key, closed, rest = pair.partition("</arg_key>")
        value = rest.lstrip()
        if not closed or not value.startswith("<arg_value>") or not value.rstrip().endswith("</arg_value>"):
            return None
        arguments[key.strip()] = value.rstrip().removeprefix("<arg_value>").removesuffix("</arg_value>")
    return (ToolCall(name, arguments),)


_NAME = re.compile(r"[A-Za-z_][\w.-]*")


def _bare_json(content: str) -> tuple[ToolCall, ...] | None:
    return _one(_call_of(json.loads(content)))


def _named_json(content: str) -> tuple[ToolCall, ...] | None:
    """A list of objects, or `NAME[CALL_ID]ID[ARGS]{...}`."""
    text = content.strip()
    if text[:1] in "[{" and not text.startswith(("[ARGS]", "[CALL_ID]")):
        return _all_of(json.loads(text))
    head, _, arguments = text.partition("{")
    name = head.partition("[")[0].strip()
    data = json.loads("{" + arguments)
    return (ToolCall(name, data),) if _NAME.fullmatch(name) and isinstance(data, Mapping) else None


def _separated_json(content: str) -> tuple[ToolCall, ...] | None:
    """`function<sep>NAME` and a fenced object, or `NAME<sep>{...}`."""
    kind, _, rest = content.partition("<｜tool▁sep｜>")
    head, brace, arguments = rest.partition("{")
    name = head.strip().removesuffix("```json").strip() if kind.strip() == "function" else kind.strip()
    data = json.loads((brace + arguments).strip().removesuffix("```"))
    return (ToolCall(name, data),) if _NAME.fullmatch(name) and isinstance(data, Mapping) else None


def _quoted_map(content: str) -> tuple[ToolCall, ...] | None:
    """`call:NAME{key:<|"|>text<|"|>,other:7}`"""
    head, brace, rest = content.strip().partition("{")
    name = head.removeprefix("call:").strip()
    if not head.startswith("call:") or not brace or not _NAME.fullmatch(name):
        return None
    parts = ("{" + rest).split('<|"|>')
    written = "".join(json.dumps(part) if k % 2 else _BARE_KEY.sub(r'\1"\2":', part) for k, part in enumerate(parts))
    data = json.loads(written)
    return (ToolCall(name, data),) if isinstance(data, Mapping) else None


_BARE_KEY = re.compile(r"([{,]\s*)([A-Za-z_][\w.-]*)\s*:")


def _python_calls(content: str) -> tuple[ToolCall, ...] | None:
    """`[name(key='text', other=7), second()]`, or a JSON list."""
    text = content.strip()
    if text.startswith(("[{", "{")):
        return _all_of(json.loads(text))
    if not (text.startswith("[") and text.endswith("]")):
        return None
    calls: list[ToolCall] = []
    position = 1
    while True:
        head = _PYTHON_CALL.match(text, position)
        if head is None:
            is_done = _PYTHON_END.fullmatch(text, position) is not None
            return tuple(calls) if is_done and calls else None
        position = head.end()
        arguments: dict[str, Any] = {}
        while (key := _PYTHON_KEY.match(text, position)) is not None:
            value, position = _python_value(text, key.end())
            arguments[key[1]] = value
        if text[position : position + 1] != ")":
            return None
        calls.append(ToolCall(head[1], arguments))
        position += 1


_PYTHON_CALL = re.compile(r"\s*,?\s*([A-Za-z_][\w.]*)\(\s*")
_PYTHON_KEY = re.compile(r"\s*,?\s*([A-Za-z_]\w*)\s*=\s*")
_PYTHON_END = re.compile(r"\s*\]\s*")
_PYTHON_TEXT = re.compile(r"""'((?:[^'\\]|\\.)*)'\s*|"((?:[^"\\]|\\.)*)"\s*""", re.DOTALL)
_PYTHON_BARE = re.compile(r"[^,()\[\]{}'\"]*")
_WORDS = {"true": True, "false": False, "null": None, "none": None}


def _python_value(text: str, start: int) -> tuple[Any, int]:
    """(value, where it ends) of one argument."""
    quoted = _PYTHON_TEXT.match(text, start)
    if quoted is not None:
        return re.sub(r"\\(['\"\\])", r"\1", quoted[1] if quoted[1] is not None else quoted[2]), quoted.end()
    if text[start : start + 1] in ("[", "{"):
        end = _balanced_end(text, start)
        return _literal(text[start:end]), end
    bare = _PYTHON_BARE.match(text, start)
    word = bare[0].strip() if bare else ""
    if word.lower() in _WORDS:
        return _WORDS[word.lower()], start + len(bare[0] if bare else "")
    try:
        return json.loads(word), start + len(bare[0] if bare else "")
    except ValueError:
        return word, start + len(bare[0] if bare else "")


_MAX_DEPTH = 50
_BRACKETS = re.compile(r"""[\[{(]|[\]})]|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""", re.DOTALL)


def _balanced_end(text: str, start: int) -> int:
    depth = 0
    for bracket in _brackets(text, start):
        depth += 1 if bracket[0] in "[{(" else -1 if bracket[0] in "]})" else 0
        if depth > _MAX_DEPTH:
            break
        if depth == 0:
            return bracket.end()
    raise ValueError("brackets without an end")


def _brackets(text: str, start: int) -> Iterator[re.Match[str]]:
    return _BRACKETS.finditer(text, start)


def _literal(text: str) -> Any:
    """A list or mapping in JSON's or in Python's notation."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return ast.literal_eval(text)
    except (SyntaxError, MemoryError, TypeError) as error:
        raise ValueError("no literal") from error


JSON_BLOCKS = Notation(
    "tool_call",
    "Hermes, Qwen2.5, Qwen3, Qwen3-Coder, Qwen3.5, Nemotron 3",
    "<tool_call>",
    "</tool_call>",
    lambda content: _one(parse_tool_call(content)),
)
NOTATIONS: Mapping[str, Notation] = {
    one.name: one
    for one in (
        JSON_BLOCKS,
        Notation("tool_call_keys", "GLM-4.5", "<tool_call>", "</tool_call>", _argument_keys),
        Notation("bare_json", "Llama 3.1 to 3.3", "", "", _bare_json, ("<|python_tag|>",)),
        Notation("named_json", "Mistral", "[TOOL_CALLS]", "", _named_json, ("[ARGS]", "[CALL_ID]")),
        Notation("python_calls", "LFM2", "<|tool_call_start|>", "<|tool_call_end|>", _python_calls),
        Notation("quoted_map", "Gemma 4", "<|tool_call>", "<tool_call|>", _quoted_map, ('<|"|>',)),
        Notation(
            "separated_json",
            "DeepSeek",
            "<｜tool▁call▁begin｜>",
            "<｜tool▁call▁end｜>",
            _separated_json,
            ("<｜tool▁sep｜>",),
        ),
    )
}
"""The notations that are read, by name."""


# ---- types ----------------------------------------------------------------------------------------------------------


def typed_arguments(call: ToolCall, schema: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments as the tool's JSON schema types them: tags carry text only."""
    properties = schema.get("function", schema).get("parameters", {}).get("properties", {})
    return {name: _typed(value, properties.get(name, {}).get("type")) for name, value in call.arguments.items()}


def _typed(value: Any, kind: Any) -> Any:
    if not isinstance(value, str) or kind in (None, "string") or (isinstance(kind, list) and "string" in kind):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value
