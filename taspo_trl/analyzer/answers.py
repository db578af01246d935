"""An analyzer's text to the one JSON object in it, or the reason why it is rejected whole.

Pure. What can be read in one way only is read: a fence or prose around a single object, thoughts before it, raw line
breaks inside strings, a missing comma. Nothing is guessed: a second object, a repeated key, a cut answer, an object
that may be a draft among thoughts is a reject. Time is linear in the text's length.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .base import Stage


MAX_CHARS = 200_000
"""A longer answer is rejected unread: 4,096 tokens never need so much."""
MAX_DEPTH = 40
MAX_REPAIR_CHARS = 40_000  # json-repair goes back and forth over text that it cannot follow

_OPEN_THOUGHT = re.compile(r"\A<(think|thinking|thought|reasoning)>", re.IGNORECASE)
_CLOSED_THOUGHT = re.compile(r"</(?:think|thinking|thought|reasoning)>", re.IGNORECASE)
# Whatever a model family opens or closes thoughts with: <think>, [/THINK], <seed:think>, ◁think▷, any special token,
# and channels whose special tokens the server has taken out.
_THOUGHT_MARK = re.compile(
    r"""[<\[◁][^<>\[\]◁▷\n]{0,20}(?:think|thought|reason|reflect|analysis|scratchpad) | <[|\uff5c] | [|\uff5c]>
        | assistant(?:analysis|commentary|final) | (?-i:\Aanalysis(?=[A-Z\n]))""",
    re.VERBOSE | re.IGNORECASE,
)
_LITERALS = {"True": "true", "False": "false", "None": "null"}
_LITERAL = re.compile(r"\b(?:True|False|None)\b")
_TOKENS = re.compile(
    r"""(?: "(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*' | [{}\[\],:\s]
        | -?(?:0|[1-9][0-9]{0,15})(?:\.[0-9]{1,16})?(?![\w.]) | (?:true|false|null|True|False|None)\b
        | [A-Za-z_][A-Za-z0-9_]*(?=\s*:) )*""",
    re.VERBOSE | re.DOTALL,
)
_FORGIVEN = re.compile(r"[\s,'\"\\]+")


@dataclass(frozen=True, slots=True)
class ReadAnswer:
    """What an analyzer's text holds."""

    value: dict[str, Any] | None
    """The object; None when the text is rejected whole."""
    fault: str = ""
    """Why it is rejected; empty when it is not."""
    is_repaired: bool = False
    """The object was not written as JSON, but could be read in one way only."""


def read_answer(text: str, is_cut: bool = False, stage: Stage | None = None) -> ReadAnswer:
    """The single JSON object of an answer.

    Args:
        text (`str`):
            The answer as it came.
        is_cut (`bool`, *optional*, defaults to `False`):
            The server said that the answer was cut at its output limit: it is then read as it stands or not at all.
        stage (`str`, *optional*):
            The question, whose answer has a certain shape as a whole; its items are checked one by one later. If
            `None`, any object will do.
    """
    read = _read(text, is_cut)
    fault = _shape_fault(stage, read.value) if read.value is not None else ""
    return ReadAnswer(None, fault) if fault else read


def _shape_fault(stage: Stage | None, value: Mapping[str, Any]) -> str:
    """Why an object cannot be the answer to `stage` as a whole."""
    if stage == "judgement":
        return "" if isinstance(value.get("sentences"), list) else "no_sentences_list"
    if stage == "extraction":
        return "" if isinstance(value.get("evidence"), list) else "no_evidence_list"
    if stage is None:
        return ""
    targets = value.get("targets")
    if not isinstance(targets, list):
        return "no_targets_list"
    return "" if len(targets) == 1 else "not_one_target"


def _read(text: str, is_cut: bool) -> ReadAnswer:
    text = text.strip("\ufeff \t\r\n")
    if not text:
        return ReadAnswer(None, "empty_answer")
    if len(text) > MAX_CHARS:
        return ReadAnswer(None, "answer_too_long")
    value, fault = _strict(text)
    if not fault:
        return ReadAnswer(value)
    if fault != "not_json":
        return ReadAnswer(None, fault)

    text, fault = _without_thoughts(text)
    if fault:
        return ReadAnswer(None, fault)
    inner = _without_fence(text)
    value, fault = _strict(inner)
    if fault == "not_json" and not is_cut:
        candidate, fault = _single_object(inner)
        if candidate:
            value, fault = _strict(candidate)
            if fault == "not_json":
                return _repaired(candidate)
    return ReadAnswer(value, fault)


def _strict(text: str) -> tuple[dict[str, Any] | None, str]:
    """JSON, with raw line breaks and tabs allowed inside strings: they can mean only themselves."""
    try:
        value = json.loads(text, strict=False, parse_constant=_refuse_constant, object_pairs_hook=_unique_keys)
    except _Refused as refusal:
        return None, refusal.reason
    except (ValueError, RecursionError):
        return None, "not_json"
    if not isinstance(value, dict):
        return None, "not_an_object"
    fault = _insane(value)
    return (None, fault) if fault else (value, "")


class _Refused(Exception):
    """Valid JSON syntax, or nearly, with a meaning that is not to be trusted."""

    def __init__(self, reason: str):
        super().__init__(reason)
        self.reason = reason


def _refuse_constant(name: str) -> Any:
    raise _Refused("not_finite")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        raise _Refused("duplicate_key")
    return unique


def _insane(value: Any, depth: int = 0) -> str:
    """Too deep, or a number that is not finite: `1e999` reads as infinity although it is written as a number."""
    if depth > MAX_DEPTH:
        return "too_deep"
    if isinstance(value, dict):
        return next((fault for inner in value.values() if (fault := _insane(inner, depth + 1))), "")
    if isinstance(value, list):
        return next((fault for inner in value if (fault := _insane(inner, depth + 1))), "")
    return "not_finite" if isinstance(value, float) and not math.isfinite(value) else ""


def _without_thoughts(text: str) -> tuple[str, str]:
    """`text` behind a leading block of thoughts; some servers leave out its opening tag."""
    is_opened = _OPEN_THOUGHT.match(text)
    closed = _CLOSED_THOUGHT.search(text)
    if closed is None:
        return ("", "unclosed_thought") if is_opened else (text, "")
    if is_opened or not text.startswith(("{", "```")):
        text = text[closed.end() :].strip()
        return (text, "") if text else ("", "empty_answer")
    return text, ""


def _without_fence(text: str) -> str:
    """What a JSON fence around the whole of `text` holds; `text` where there is none."""
    head, line_break, rest = text.partition("\n")
    if line_break and head.rstrip(" \t").lower() in ("```", "```json") and rest.endswith("```"):
        return rest[:-3].strip()
    return text


def _single_object(text: str) -> tuple[str, str]:
    """The one brace-to-brace piece of `text` that is balanced, without braces, thoughts, foreign fences around it."""
    start = text.find("{")
    if start < 0:
        return "", "not_json"
    end, fault = _end_of_object(text, start)
    if fault:
        return "", fault
    around = f"{text[:start]}\n{text[end:]}"
    if "{" in around or "}" in around:
        return "", "several_objects"
    if _THOUGHT_MARK.search(around):
        return "", "thought_around"
    if text[:start].rstrip().endswith("[") or text[end:].lstrip().startswith("]"):
        return "", "not_an_object"
    lines = (line.strip(" \t") for line in around.split("\n"))
    languages = [line[3:].strip(" \t").lower() for line in lines if line.startswith("```")]
    if any(language != "json" and re.fullmatch(r"\w+", language) for language in languages):
        return "", "foreign_fence"
    return text[start:end], ""


def _end_of_object(text: str, start: int) -> tuple[int, str]:
    """Where the object that opens at `start` ends, or why it has no end. Brackets in double quotes do not count."""
    expected: list[str] = []
    is_string, k = False, start
    while k < len(text):
        character = text[k]
        if is_string:
            if character == "\\":
                k += 1
            elif character == '"':
                is_string = False
        elif character == '"':
            is_string = True
        elif character in "{[":
            expected.append("}" if character == "{" else "]")
        elif character in "}]":
            if character != expected.pop():
                return 0, "not_json"
            if not expected:
                return k + 1, ""
        k += 1
    return 0, "cut_json"


def _repaired(text: str) -> ReadAnswer:
    """What json-repair makes of `text`, provided that it can be read in one way only.

    The text must consist of whole strings (single or double quotes), numbers, literals, bare keys and brackets; and in
    the result only commas, quotes, backslashes, white space and the spelling of true, false and null may differ.
    """
    from json_repair import repair_json

    tokens = _TOKENS.match(text) if len(text) <= MAX_REPAIR_CHARS else None
    if tokens is None or tokens.end() != len(text):
        return ReadAnswer(None, "not_json")
    try:
        value, fault = _strict(repair_json(text, skip_json_loads=True, ensure_ascii=False))
        if not fault and _skeleton(json.dumps(value, ensure_ascii=False)) == _skeleton(text):
            return ReadAnswer(value, is_repaired=True)
    except (ValueError, RecursionError, IndexError, TypeError):  # json-repair's own, on text that it cannot follow
        return ReadAnswer(None, "not_json")
    return ReadAnswer(None, fault or "not_json")


def _skeleton(text: str) -> str:
    return _FORGIVEN.sub("", _LITERAL.sub(lambda match: _LITERALS[match.group()], text))
