"""One table for the values that an option may have: TASPO's own, and the few of TRL's that matter to it. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import ConfigurationError


_Range = tuple[Callable[[Any], bool], str]

_AT_LEAST_ONE: _Range = (lambda value: value >= 1, "at least 1")
_AT_LEAST_ONE_OR_NONE: _Range = (lambda value: value is None or value >= 1, "at least 1, or None")
_POSITIVE: _Range = (lambda value: value > 0, "positive")
_POSITIVE_OR_NONE: _Range = (lambda value: value is None or value > 0, "positive, or None")
_NOT_NEGATIVE: _Range = (lambda value: value >= 0, "not negative")

RANGES: Mapping[str, _Range] = {
    "max_completion_length": _AT_LEAST_ONE,
    "max_turns": _AT_LEAST_ONE_OR_NONE,
    "max_tool_calling_iterations": _AT_LEAST_ONE_OR_NONE,
    "max_prompt_length": _AT_LEAST_ONE_OR_NONE,
    "max_episode_tokens": _AT_LEAST_ONE_OR_NONE,
    "history_length": (lambda value: value is None or value >= 0, "not negative, or None"),
    "temperature": (lambda value: value > 0, "positive: a policy that explores not cannot learn"),
    "generation_tokens": _AT_LEAST_ONE,
    "micro_batch_tokens": _AT_LEAST_ONE,
    "max_nonfinite_steps": _AT_LEAST_ONE,
    "environment_timeout": _POSITIVE,
    "invalid_action_penalty": _NOT_NEGATIVE,
    "max_evidence_items": _AT_LEAST_ONE,
    "max_guidance_items": _AT_LEAST_ONE,
    "max_guidance_tokens": _AT_LEAST_ONE,
    "analyzer_context_chars": _AT_LEAST_ONE,
    "analyzer_workers": _AT_LEAST_ONE,
    "analyzer_attempts": _AT_LEAST_ONE,
    "analyzer_max_tokens": _AT_LEAST_ONE,
    "analyzer_timeout": _POSITIVE,
    "analyzer_requests_per_minute": _POSITIVE_OR_NONE,
    "analyzer_tokens_per_minute": _POSITIVE_OR_NONE,
    "analyzer_budget_usd": _POSITIVE_OR_NONE,
    "analyzer_budget_tokens": _POSITIVE_OR_NONE,
    "analyzer_time_budget": _POSITIVE_OR_NONE,
    "shift_clip": _POSITIVE,
    "shift_threshold": _NOT_NEGATIVE,
    "score_temperature": _POSITIVE,
    "weight_range": (lambda value: 0 <= value < 1, "in [0, 1): weights stay positive"),
    "weight_step_size": (
        lambda value: value is None or 0 <= value < math.inf,
        "finite and not negative, or None",
    ),
    "hub_timeout": _POSITIVE,
    "tracker_timeout": _POSITIVE,
    "eval_temperature": _NOT_NEGATIVE,
    "eval_top_p": (lambda value: 0 < value <= 1, "in (0, 1]"),
}
"""Option -> (whether a value is allowed, the rule in words)."""


def check_ranges(values: Mapping[str, Any]) -> None:
    """Raise [`~taspo_trl.errors.ConfigurationError`] for the first value outside its range."""
    for name, (is_allowed, rule) in RANGES.items():
        try:
            is_right = is_allowed(values[name])
        except TypeError:  # None or a word where a number belongs
            is_right = False
        if not is_right:
            raise ConfigurationError(f"`{name}` must be {rule}, got {values[name]!r}.")


def check_choices(values: Mapping[str, Any], choices: Mapping[str, tuple[Any, ...]]) -> None:
    """Raise [`~taspo_trl.errors.ConfigurationError`] for the first value that is none of its option's choices."""
    for name, allowed in choices.items():
        if values[name] not in allowed:
            raise ConfigurationError(
                f"`{name}` must be one of {', '.join(repr(one) for one in allowed if one is not None)}, "
                f"got {values[name]!r}."
            )
