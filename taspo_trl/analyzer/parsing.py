"""An analyzer's text to the one JSON object in it, or the reason why it is rejected whole.

Pure. Nothing is guessed: text around the object, a second object, or a cut answer is a reject.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any


MAX_CHARS = 200_000
"""A longer answer is rejected unread: 4,096 tokens never need so much."""
MAX_DEPTH = 40

_FENCE = re.compile(r"\A```(?:json|JSON)?[ \t]*\n(.*?)\n?[ \t]*```\Z", re.DOTALL)


def parse_object(text: str) -> tuple[dict[str, Any] | None, str]:
    """The single JSON object that `text` consists of.

    A byte order mark and one Markdown fence (bare or `json`) around the whole answer are taken off.

    Returns:
        `tuple[dict | None, str]`: (object, "") or (None, reason).
    """
    text = text.lstrip("\ufeff").strip()
    if not text:
        return None, "empty_answer"
    if len(text) > MAX_CHARS:
        return None, "answer_too_long"
    fenced = _FENCE.match(text)
    if fenced:
        text = fenced.group(1).strip()
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None, "not_json"
    if not isinstance(value, dict):
        return None, "not_an_object"
    return (value, "") if _is_sane(value) else (None, "not_json")


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _is_sane(value: Any, depth: int = 0) -> bool:
    """Bounded depth, finite numbers: `1e999` reads as infinity although it is written as a number."""
    if depth > MAX_DEPTH:
        return False
    if isinstance(value, dict):
        return all(_is_sane(inner, depth + 1) for inner in value.values())
    if isinstance(value, list):
        return all(_is_sane(inner, depth + 1) for inner in value)
    return not isinstance(value, float) or math.isfinite(value)
