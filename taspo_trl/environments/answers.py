"""What the rollout loop reads from an environment's answer: the reward, the verdicts, the admissible actions, errors.

Pure.
"""

from __future__ import annotations

import math
import reprlib
import traceback
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..tokens import as_unicode


_ERROR_CHARS = 2000
_SHOWN_CHARS = 80
_PACKAGE = Path(__file__).parents[1]


def worded(error: BaseException) -> str:
    """An error for records: its class, its message, and ` (file:line)` where it was raised outside of this package.

    Never raises, whatever the message does when it is asked for; at most 2,000 characters, all of them encodable.
    """
    place = _place_of(error)
    return f"{type(error).__name__}: {message_of(error)}"[: _ERROR_CHARS - len(place)] + place


def message_of(error: BaseException) -> str:
    """What an error says, cut and encodable as in [`worded`]."""
    try:
        text = str(error)
    except Exception:  # code of whoever raised it
        text = "its message cannot be shown"
    return as_unicode(text[:_ERROR_CHARS])


def shown(value: Any) -> str:
    """A value for an error message: its beginning, whatever its size; never raises."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = _SHOWN_CHARS
    try:
        return as_unicode(short.repr(value))[:_SHOWN_CHARS]
    except Exception:
        return f"a {type(value).__name__}"


def _place_of(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    if not frames or Path(frames[-1].filename).is_relative_to(_PACKAGE):
        return ""
    return as_unicode(f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})")


def finite_number(value: Any) -> float | None:
    """A reward as a float; None for what is missing, no number, or not finite."""
    if isinstance(value, str | bytes | bytearray):
        return None
    try:
        number = float(value)
    except Exception:  # also arrays of several elements, 10**400, and whatever a class of the user's does
        return None
    return number if math.isfinite(number) else None


def verdict(info: Mapping[str, Any], name: str, environment: Any, default: bool) -> bool:
    """`info[name] is True`: no score, no truthiness (docs/method.md, section 3).

    `default` for what is absent or None.
    """
    value = info.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        kind = kind_of(value)
        warnings.warn(
            f'`{type(environment).__name__}` gave `info["{name}"]` as a {kind}, which counts as '
            "False: only `True` itself is a yes. Return `bool(...)`.",
            UserWarning,
            stacklevel=2,
        )
    return value is True


def verdict_kind(before: str, info: Mapping[str, Any]) -> str:
    """What an episode's `info["success"]` has been so far: see [`~taspo_trl.types.Trajectory`].

    Another type than `bool` is remembered, however often a real one comes: it is what has to be mended.
    """
    value = info.get("success")
    if value is None or before not in ("", "bool"):
        return before
    return kind_of(value)


def kind_of(value: Any) -> str:
    """The name of a value's type, with its module where that is not Python's own."""
    return f"{type(value).__module__}.{type(value).__name__}".removeprefix("builtins.")


def messages(info: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """The chat messages that the environment wrote itself; empty when it leaves that to its template."""
    return tuple(dict(one) for one in info.get("messages") or ())


def admissible_actions(info: Mapping[str, Any]) -> tuple[str, ...] | None:
    """What may be done now; None when the environment does not say."""
    actions = info.get("admissible_actions")
    return None if actions is None else tuple(str(action) for action in actions)
