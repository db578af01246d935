"""Which metrics a method cannot move, so that a log without them says as much; and in which order the rest stand.

Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from ..credit.base import NoWeights, OutcomeAdvantage
from ..credit.grpo import GRPO
from ..methods import Recipe


GROUPS = (
    ("success", "reward", "reward_std", "rewards/", "environment_reward", "frac_reward_zero_std", "groups/"),
    ("turns/", "actions/", "prompts/", "replies/", "completions/", "episodes/", "environments/", "stop/", "tokens/"),
    ("guidance/", "evidence/", "alternatives/"),
    ("credit/", "distill/"),
    ("analyzer/",),
    ("loss", "policy_loss", "entropy", "kl", "clip_ratio/", "moving/", "sampling/", "nonfinite_steps"),
    ("time/", "step_time", "num_tokens"),
)
"""Beginnings of names, in the order of `docs/metrics.md`."""

_ORDER = [beginning for group in GROUPS for beginning in group]


def without_idle(report: Mapping[str, float], recipe: Recipe) -> dict[str, float]:
    """The metrics of a rollout batch without those that the method cannot move.

    A name of an idle part is left out only while it has the value that it must have (0, or none at all): what should
    not happen is still seen. What the method never asks for (guidance of a method without contexts: why there is none,
    how long that took; the weights of one that has no weights) goes as a whole.

    Args:
        report (`Mapping[str, float]`):
            Name -> value, from [`~taspo_trl.reporting.metrics.rollout_report`].
        recipe (`Recipe`):
            The method.
    """
    needs = recipe.needs
    whole: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()
    if not needs.blocks:
        whole += ("guidance/none/", "time/analyzer")
        idle += ("guidance/", "evidence/")
    elif not recipe.asks_analyzer:
        idle += ("guidance/statements", "evidence/kept")
    if not (needs.blocks or needs.plain_only or needs.final_scores or needs.alternatives):
        whole += ("time/scoring",)
        idle += ("credit/scorable_share", "credit/support_")
    if recipe.advantage in (OutcomeAdvantage(), GRPO()) and isinstance(recipe.weight, NoWeights):
        whole += ("credit/",)
    return {
        name: value
        for name, value in report.items()
        if not name.startswith(whole) and not (name.startswith(idle) and (not value or math.isnan(value)))
    }


def grouped(names: Iterable[str]) -> list[str]:
    """The names with those of a group side by side, in the order of [`GROUPS`]; others come last, as they came."""
    return sorted(names, key=_place)


def _place(name: str) -> int:
    fitting = (k for k, one in enumerate(_ORDER) if name == one or name.startswith(f"{one.rstrip('/')}/"))
    return next(fitting, len(_ORDER))
