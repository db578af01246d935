"""Every method by its name: how its recipe is made of a configuration, and whom to cite."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..credit.base import WeightRule
from ..credit.taspo import TurnWeights
from ..credit.token_level import TokenWeights
from ..errors import ConfigurationError
from .recipe import Recipe


@dataclass(frozen=True)
class Method:
    """One line of the table.

    Args:
        line (`str`):
            What it does, in one line.
        make (`Callable`):
            ([`~taspo_trl.TASPOConfig`], `**method_options`) -> [`Recipe`].
        citation (`str`):
            Where it is described.
    """

    line: str
    make: Callable[..., Recipe]
    citation: str


def _taspo(args: Any) -> Recipe:
    settings = {
        "clip": args.shift_clip,
        "threshold": args.shift_threshold,
        "temperature": args.score_temperature,
        "weight_range": args.weight_range,
        "step_size": args.weight_step_size,
        "block": args.guidance,
    }
    rule: WeightRule = TokenWeights(**settings) if args.allocation == "token" else TurnWeights(**settings)
    return Recipe("taspo", weight=rule, contexts=(args.guidance,))


def _grpo(args: Any) -> Recipe:
    return Recipe("grpo")


METHODS: Mapping[str, Method] = {
    "taspo": Method("turn weights from aligned guidance, mean one", _taspo, "arXiv:2608.31077"),
    "grpo": Method("the outcome's advantage on every token", _grpo, "arXiv:2402.03300"),
}
"""Name -> method."""


def recipe_for(args: Any) -> Recipe:
    """The recipe that a configuration asks for; `guidance="none"` is GRPO.

    Raises:
        ConfigurationError: there is no such method.
    """
    name = "grpo" if args.guidance == "none" else "taspo"
    if name not in METHODS:
        raise ConfigurationError(f"`method` must be one of {', '.join(map(repr, METHODS))}, got {name!r}.")
    return METHODS[name].make(args)
