"""Refuses the values that an option of a credit rule cannot have, with the value, the rule and a remedy. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from ..errors import ConfigurationError


def check_number(option: str, value: Any, interval: str, remedy: str) -> None:
    """Raise [`~taspo_trl.errors.ConfigurationError`] unless `value` lies in `interval`, such as `"[0, 1)"`."""
    low, high = map(float, interval[1:-1].split(","))
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    closed = ([low] if interval[0] == "[" else []) + ([high] if interval[-1] == "]" else [])
    if not (is_number and (low < value < high or value in closed)):
        raise ConfigurationError(f"`{option}` must be a number in {interval}, got {value!r}. {remedy}")


def check_count(option: str, value: Any, least: int, remedy: str) -> None:
    """Raise [`~taspo_trl.errors.ConfigurationError`] unless `value` is a whole number of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigurationError(f"`{option}` must be a whole number of at least {least}, got {value!r}. {remedy}")


def check_choice(option: str, value: Any, choices: Collection[Any], remedy: str) -> None:
    """Raise [`~taspo_trl.errors.ConfigurationError`] unless `value` is one of `choices`."""
    if not any(type(value) is type(one) and value == one for one in choices):
        raise ConfigurationError(f"`{option}` must be one of {', '.join(map(repr, choices))}, got {value!r}. {remedy}")


def check_schedule(share: Any, zero_at: Any) -> None:
    """Check the options of [`share_at`]."""
    check_number("share", share, "[0, 1]", "It is lambda, the part of A that the weights move; 0 is plain GRPO.")
    if zero_at is not None:
        check_count("zero_at", zero_at, 0, "0 never decays, None takes a third of the run.")


def check_teacher(block: Any, teacher: Any = "rollout", teacher_every: Any = 1, teacher_rate: Any = 1.0) -> None:
    """Check the options that say who sees what in the guided branch."""
    if not isinstance(block, str) or not block:
        raise ConfigurationError(
            f"`block` must be the name of a guidance block, got {block!r}. Leave it at its default."
        )
    check_choice(
        "teacher", teacher, ("rollout", "stale", "ema", "frozen"), "A weight is the policy's own second look."
    )
    check_count("teacher_every", teacher_every, 1, "The papers copy the teacher every 10 updates.")
    check_number("teacher_rate", teacher_rate, "(0, 1]", "The published averages take 0.05.")
