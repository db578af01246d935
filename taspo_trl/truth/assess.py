"""Methods by name, measured on the same groups: recipes, controls, labels and the report in one call."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..credit.base import NOTHING, Batch, Needs, combined
from ..credit.states import state_key
from ..errors import ConfigurationError
from ..methods import METHODS, Recipe
from ..methods.registry import SUPPORTS
from ..records import TrajectoryRecord
from ..rollout.plans import WorldStates
from ..types import TrajectoryGroup
from .distilled import distilled_credit
from .progress import Labels, progress_labels
from .report import CONTROL, Truth, credit_report, perfect_credit, turn_credit
from .sample import ScoredGroups, guide_and_score
from .values import TurnValues


logger = logging.getLogger(__name__)


_SUPPORTS = tuple(name for name in SUPPORTS if name != "shift")
OURS: Mapping[str, Mapping[str, Any]] = (
    {name: {"support": name} for name in _SUPPORTS}
    | {"capped": {"cap_refused": True}}
    | {f"{name}_capped": {"support": name, "cap_refused": True} for name in _SUPPORTS}
)
"""Variants of TASPO that are measured under their own names, and no published methods -> their options."""
_COPIES = ("rollout", "stale", "ema", "frozen")
VALUE_THRESHOLD = 0.1
"""Turns whose Monte-Carlo advantage is above it should have more credit than the others."""


def recipes_of(names: Iterable[str], args: Any, with_controls: bool = True) -> dict[str, Recipe]:
    """The recipes of methods, each with its control where its guidance has one.

    Args:
        names (`Iterable[str]`):
            Names of [`~taspo_trl.methods.METHODS`] or `OURS`.
        args ([`~taspo_trl.TASPOConfig`]):
            Their settings.
        with_controls (`bool`, *optional*, defaults to `True`):
            Whether `"<name>@shuffled"`, with the block of another task, is added for methods whose blocks are
            `args.guidance`.

    Raises:
        ConfigurationError: there is no such method.
    """
    found = {}
    for name in names:
        found[name] = recipe = _recipe(name, args)
        if with_controls and recipe.needs.blocks == (args.guidance,) and args.guidance != CONTROL:
            other = copy.copy(args)
            other.guidance = CONTROL
            found[f"{name}@{CONTROL}"] = _recipe(name, other)
    return found


def _recipe(name: str, args: Any) -> Recipe:
    if name in OURS:
        return replace(METHODS["taspo"].make(args, **OURS[name]), name=name)
    if name not in METHODS:
        known = ", ".join(map(repr, (*METHODS, *OURS)))
        raise ConfigurationError(f"There is no method {name!r}. There are {known}.")
    return METHODS[name].make(args)


def measured_needs(recipes: Mapping[str, Recipe]) -> Needs:
    """What all methods together ask for, of one policy before its first update: it is every copy of itself.

    Raises:
        ConfigurationError: a method cannot be measured on saved episodes.
    """
    for name, recipe in recipes.items():
        needs = recipe.needs
        if needs.teacher not in _COPIES:
            raise ConfigurationError(
                f"{name!r} learns from another model (teacher {needs.teacher!r}), and here one policy is measured. "
                "Leave it out of `methods`."
            )
        if needs.vocabulary:
            raise ConfigurationError(
                f"{name!r} compares distributions over the vocabulary, which says nothing of the sampled tokens one "
                "by one: its turns have no credit. Leave it out of `methods`."
            )
        if needs.values:
            raise ConfigurationError(
                f"{name!r} asks for continuations of its own ({needs.values} from each state). Leave it out of "
                "`methods`, or take its other option."
            )
    one = NOTHING.teacher, NOTHING.teacher_every, NOTHING.teacher_rate
    return combined(
        *(
            replace(recipe.needs, teacher=one[0], teacher_every=one[1], teacher_rate=one[2])
            for recipe in recipes.values()
        )
    )


def credit_of(recipe: Recipe, batch: Batch) -> dict[tuple[str, int], float]:
    """C_it of each turn under a method; with a distillation term, its gradient's coefficient is a part of it."""
    weighed = recipe.assign(batch).weighed
    if recipe.distill is None:
        return turn_credit(batch, weighed)
    return distilled_credit(batch, weighed, recipe.distill)


def assess(
    groups: Sequence[TrajectoryGroup],
    recipes: Mapping[str, Recipe],
    *,
    model: Any,
    tokenizer: Any,
    analyzer: Any,
    factories: Mapping[str | None, Callable[[], Any]],
    values: TurnValues | None = None,
    with_progress: bool = True,
    num_resamples: int = 2000,
    **scoring: Any,
) -> tuple[dict[str, Any], ScoredGroups]:
    """Guide, score, weigh, label and report.

    Args:
        groups (`Sequence[TrajectoryGroup]`):
            Played groups with rewards.
        recipes (`Mapping[str, Recipe]`):
            As [`recipes_of`] makes them.
        model, tokenizer, analyzer, factories, scoring:
            As in [`~taspo_trl.truth.sample.guide_and_score`].
        values (`TurnValues`, *optional*):
            Continuations of some or all of the trajectories.
        with_progress (`bool`, *optional*, defaults to `True`):
            Whether turns are labelled by the environment's plan or progress.
        num_resamples (`int`, *optional*, defaults to `2000`):
            Of the bootstrap over groups.

    Returns:
        `tuple[dict, ScoredGroups]`: the report as plain data, and what it was made of.

    Raises:
        ConfigurationError: there are no labels.
    """
    needs = measured_needs(recipes)
    scored = guide_and_score(
        groups, needs, model=model, tokenizer=tokenizer, analyzer=analyzer, factories=factories, **scoring
    )
    batch, seconds = scored.batch, dict(scored.seconds)
    started = time.perf_counter()
    states = WorldStates(factories)
    keys = {name: states if one.knows_world else state_key(one.state_key) for name, one in recipes.items()}
    credits = {name: credit_of(one, replace(batch, state_key=keys[name])) for name, one in recipes.items()}
    seconds["credit"] = time.perf_counter() - started
    started = time.perf_counter()
    truths = truths_of(batch, factories, values, with_progress)
    seconds["labels"] = time.perf_counter() - started
    for kind, truth in truths.items():
        credits[f"perfect {kind}"] = perfect_credit(batch, truth.labels)
    report = credit_report(batch, credits, truths, num_resamples=num_resamples)
    report["seconds"] = {name: round(value, 2) for name, value in seconds.items()}
    report["analyzer_calls"] = scored.num_calls
    report["alternative_tokens"] = scored.num_alternative_tokens
    report["guided"] = sum(bool(one) for one in scored.guidance.values())
    if values is not None:
        report["continuation_replies"] = values.num_replies
        report["continuations_dropped"] = sum(map(len, values.dropped.values()))
        report["why_dropped"] = sorted({reason for reasons in values.dropped.values() for reason in reasons})[:5]
    return report, replace(scored, seconds=seconds)


def truths_of(
    batch: Batch,
    factories: Mapping[str | None, Callable[[], Any]],
    values: TurnValues | None = None,
    with_progress: bool = True,
) -> dict[str, Truth]:
    """The labels that can be had: `"progress"`, and `"values"` from continuations.

    Raises:
        ConfigurationError: there are none.
    """
    truths = {}
    if with_progress:
        labels: Labels = progress_labels(batch.trajectories, factories)
        if labels:
            truths["progress"] = Truth(labels)
    if values is not None:
        halves = values.labels(0), values.labels(1)
        truths["values"] = Truth(values.labels(), VALUE_THRESHOLD, halves, values.standard_errors())
    if not truths:
        raise ConfigurationError(
            'The environment has no `oracle_plan()` and gives no `info["progress"]`, so that its turns have no label. '
            "Ask for continuations (`--labels values`): any environment that replays will do."
        )
    return truths


def recorded_report(
    records: Sequence[TrajectoryRecord],
    factories: Mapping[str | None, Callable[[], Any]],
    num_resamples: int = 2000,
) -> dict[str, Any]:
    """The credit that a finished run gave, against the environment's plan or progress; no model is needed.

    Args:
        records (`Sequence[TrajectoryRecord]`):
            Of one run, with their credit.
        factories (`Mapping[str | None, Callable]`):
            Environment name -> callable that makes an instance.
        num_resamples (`int`, *optional*, defaults to `2000`):
            Of the bootstrap over groups.
    """
    members: dict[str, list[TrajectoryRecord]] = {}
    for record in records:
        members.setdefault(f"r{record.rollout} {record.group_id}", []).append(record)
    broken = [n for n, group in members.items() if any(o.credit is None and o.trajectory.is_usable for o in group)]
    if broken and len(broken) < len(members):
        logger.warning("%d groups of an update that broke off have no credit and are left out.", len(broken))
    members = {n: [o for o in group if o.credit is not None] for n, group in members.items() if n not in broken}
    members = {name: group for name, group in members.items() if group}
    if not members:
        raise ConfigurationError(
            "The records hold no credit, so there is nothing to measure. Name the folder of a run of `taspo "
            "train` that came to an update, or play with `--model`."
        )
    groups = tuple(TrajectoryGroup(name, tuple(one.trajectory for one in group)) for name, group in members.items())
    credit_of = {one.trajectory.uid: one.credit for group in members.values() for one in group if one.credit}
    batch = Batch(groups, tuple(credit_of[t.uid].advantage for group in groups for t in group.trajectories))
    credit: dict[tuple[str, int], float] = {}
    flat: dict[tuple[str, int], float] = {}
    for uid, one in credit_of.items():
        for t, weight in enumerate(one.weights):
            credit[uid, t], flat[uid, t] = one.advantage * weight, one.advantage
    method = next(iter(credit_of.values())).method
    credits = {method: credit, "grpo": flat}
    truths = truths_of(batch, factories)
    credits["perfect progress"] = perfect_credit(batch, truths["progress"].labels)
    return credit_report(batch, credits, truths, num_resamples=num_resamples)
