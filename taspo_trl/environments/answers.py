"""What the rollout loop reads from an environment's answer: the reward, the verdicts, the admissible actions. Pure."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any


def finite_number(value: Any) -> float | None:
    """A reward as a float; None for what is missing, no number, or not finite."""
    if isinstance(value, str | bytes | bytearray):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, ArithmeticError, RuntimeError):  # also arrays of several elements, and 10**400
        return None
    return number if math.isfinite(number) else None


def verdict(info: Mapping[str, Any], name: str, environment: Any, default: bool) -> bool:
    """`info[name] is True`: no score, no truthiness (method.md, section 3). `default` for what is absent or None."""
    value = info.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        kind = f"{type(value).__module__}.{type(value).__name__}".removeprefix("builtins.")
        warnings.warn(
            f'`{type(environment).__name__}` gave `info["{name}"]` as a {kind}, which counts as '
            "False: only `True` itself is a yes. Return `bool(...)`.",
            UserWarning,
            stacklevel=2,
        )
    return value is True


def messages(info: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """The chat messages that the environment wrote itself; empty when it leaves that to its template."""
    return tuple(dict(one) for one in info.get("messages") or ())


def admissible_actions(info: Mapping[str, Any]) -> tuple[str, ...] | None:
    """What may be done now; None when the environment does not say."""
    actions = info.get("admissible_actions")
    return None if actions is None else tuple(str(action) for action in actions)
