"""One question to an analyzer and its answer as an object: read strictly, repaired, or asked for once more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..types import Rejection
from .answers import read_answer
from .base import Analyzer, AnalyzerReply, AnalyzerRequest, FailedAnswer


_ITEM_CHARS = 600  # of an unreadable answer that are kept for the record

_IN_WORDS: Mapping[str, str] = {
    "empty_answer": "The answer was empty.",
    "not_json": "The answer is not valid JSON.",
    "not_an_object": "The answer is valid JSON, but not an object.",
    "not_finite": "The answer holds a number that JSON does not know.",
    "duplicate_key": "The answer's object holds a key twice.",
    "too_deep": "The answer is nested too deeply.",
    "several_objects": "The answer holds more than one object, or braces outside of it.",
    "foreign_fence": "The answer is a code block of another language.",
    "unclosed_thought": "The answer opens a block of thoughts and never closes it.",
    "thought_around": "The object stands among thoughts. Answer with the object alone.",
    "cut_json": "The answer ends before its object does. Answer more briefly.",
    "no_evidence_list": "The object has no list `evidence`.",
    "no_targets_list": "The object has no list `targets`.",
    "not_one_target": "`targets` must have exactly one entry.",
    "no_sentences_list": "The object has no list `sentences`.",
}
"""Whole-answer faults that a second try may mend. One cut at the output limit would only be cut again."""


@dataclass(frozen=True, slots=True)
class Asked:
    """How a question ended."""

    answer: dict[str, Any] | None
    fault: str = ""
    """Why there is no answer; empty when there is one."""
    rejections: tuple[Rejection, ...] = ()
    """Every answer that could not be read, also one whose second try could."""


def ask(
    analyzer: Analyzer, request: AnalyzerRequest, on_reply: Callable[[AnalyzerRequest, AnalyzerReply], None]
) -> Asked:
    """Ask, and once again with the fault named when the answer cannot be read.

    Args:
        analyzer (`Analyzer`):
            Whoever answers.
        request (`AnalyzerRequest`):
            The question.
        on_reply (`Callable`):
            Called with each (request, reply); the reply's details also count what the reading took.
    """
    rejections: list[Rejection] = []
    while True:
        reply = analyzer.complete(request)
        is_second = request.failed is not None
        if reply.error:
            on_reply(request, _counted(reply, is_second))
            return Asked(None, reply.error, (*rejections, Rejection(request.stage, reply.error)))
        is_cut = reply.finish_reason == "length"
        read = read_answer(reply.text, is_cut, request.stage)
        fault = "truncated" if is_cut and read.fault else read.fault
        on_reply(request, _counted(reply, is_second, read.is_repaired, bool(fault)))
        if not fault:
            return Asked(read.value, "", tuple(rejections))
        rejections.append(Rejection(request.stage, fault, reply.text[:_ITEM_CHARS]))
        if is_second or fault not in _IN_WORDS:
            return Asked(None, fault, tuple(rejections))
        request = replace(request, failed=FailedAnswer(reply.text, _IN_WORDS[fault]))


def _counted(
    reply: AnalyzerReply, is_second: bool, is_repaired: bool = False, is_unreadable: bool = False
) -> AnalyzerReply:
    counts = {"asked_again": is_second, "repaired": is_repaired, "unreadable": is_unreadable}
    return replace(reply, details={**reply.details, **{name: 1.0 for name, flag in counts.items() if flag}})
