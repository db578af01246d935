"""A request to the analyzer as chat messages.

Pure. Recorded text stands only inside the JSON of a user message, never in the instructions.
"""

from __future__ import annotations

import json

from ...tokens import as_unicode
from ..base import AnalyzerRequest


_MAX_SHOWN_ANSWER = 4000
_CHARS_PER_TOKEN = 3.5

Message = dict[str, str]


def chat_of(request: AnalyzerRequest) -> list[Message]:
    """System and user message; for a question asked again also the failed answer and what is wrong with it."""
    system = request.system
    if "json" not in system:
        system += "\n\nThe answer's format is json."  # endpoints refuse JSON mode when no message names it
    messages = [
        {"role": "system", "content": system},
        {"role": "user", "content": as_unicode(json.dumps(request.payload, ensure_ascii=False))},
    ]
    if request.failed is not None:
        shown = as_unicode(request.failed.text[:_MAX_SHOWN_ANSWER]) or "(empty)"
        problem = {"problem": request.failed.fault, "task": "Answer again: exactly one JSON object as agreed."}
        messages.append({"role": "assistant", "content": shown})
        messages.append({"role": "user", "content": json.dumps(problem)})
    return messages


def estimated_tokens(*texts: str) -> int:
    """A rough count for limits and budgets, where the server gives none."""
    return int(sum(map(len, texts)) / _CHARS_PER_TOKEN)
