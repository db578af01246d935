"""Plain typed values out of JSON that may lack fields, hold other types, or come from another version.

Pure. The viewer shows what a record holds; it never refuses one, so it asks for values instead of checking them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def text(value: Any) -> str:
    """Strings as they are, nothing for None, anything else as JSON."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (RecursionError, ValueError, TypeError):
        return "(cannot be shown)"


def number(value: Any, digits: int | None = None) -> float | None:
    """A finite number, rounded to so many digits behind the point; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        one = float(value)
    except OverflowError:
        return None
    if not math.isfinite(one):
        return None
    return one if digits is None else round(one, digits)


def whole(value: Any) -> int | None:
    """A finite number without its fraction; None for anything else."""
    one = number(value)
    return None if one is None else int(one)


def mapping(value: Any) -> Mapping[str, Any]:
    """An object; empty for anything else."""
    return value if isinstance(value, Mapping) else {}


def items(value: Any) -> list[Any]:
    """A list; empty for anything else."""
    return list(value) if isinstance(value, list | tuple) else []


def at(values: list[Any], index: int) -> Any:
    """One element; None behind the end."""
    return values[index] if index < len(values) else None
