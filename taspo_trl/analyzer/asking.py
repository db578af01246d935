"""One question to an analyzer and its answer as an object: read strictly, repaired, or asked for once more."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..errors import AnalyzerError, InvariantError
from ..types import Rejection
from .answers import read_answer
from .base import Analyzer, AnalyzerReply, AnalyzerRequest, FailedAnswer


logger = logging.getLogger(__name__)

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
        reply = _reply(analyzer, request)
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


def _reply(analyzer: Analyzer, request: AnalyzerRequest) -> AnalyzerReply:
    """The analyzer's reply; one that breaks its contract costs this question and not the step."""
    try:
        reply = analyzer.complete(request)
    except (AnalyzerError, InvariantError):
        raise
    except Exception:
        logger.warning("An analyzer raised, which counts as a failed call (`raised`).", exc_info=True)
        return AnalyzerReply(error="raised")
    if _is_reply(reply):
        return reply
    logger.warning("An analyzer gave a %s that is no AnalyzerReply (`wrong_type`).", type(reply).__name__)
    return AnalyzerReply(error="wrong_type")


def _is_reply(reply: Any) -> bool:
    if not isinstance(reply, AnalyzerReply):
        return False
    texts = (reply.text, reply.error, reply.finish_reason)
    numbers = (reply.prompt_tokens, reply.completion_tokens, reply.cost_usd, reply.seconds)
    return (
        all(isinstance(one, str) for one in texts)
        and isinstance(reply.details, Mapping)
        and all(one is None or isinstance(one, int | float) for one in (*numbers, *reply.details.values()))
    )


def _counted(
    reply: AnalyzerReply, is_second: bool, is_repaired: bool = False, is_unreadable: bool = False
) -> AnalyzerReply:
    counts = {"asked_again": is_second, "repaired": is_repaired, "unreadable": is_unreadable}
    return replace(reply, details={**reply.details, **{name: 1.0 for name, flag in counts.items() if flag}})
