"""Evaluation files to the numbers that the page shows, with their intervals."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..errors import ConfigurationError
from ..evaluation.results import EvaluationResult, compare
from ..evaluation.statistics import Rate
from .lenient import number, whole


def load_evaluations(paths: Iterable[Path]) -> tuple[list[dict[str, Any]], list[str]]:
    """(evaluations by name and step, greedy ones first, notes on files that hold none)."""
    found: list[tuple[str, int | None, EvaluationResult, dict[str, Any]]] = []
    notes = []
    for path in paths:
        try:
            result = EvaluationResult.load(path)
            name, step = _name_and_step(path, result)
            found.append((name, step, result, _summary(result)))
        except (ConfigurationError, ArithmeticError, AttributeError, TypeError, ValueError) as error:
            # A page may be passed on; where its run lay is nobody's business.
            notes.append(f"{path.name} is not shown: {str(error).replace(str(path), path.name)}")
    found.sort(key=lambda one: (is_sampled(one[2]), one[0], -1 if one[1] is None else one[1]))
    first: dict[str, EvaluationResult] = {}
    shown = []
    for name, step, result, summary in found:
        since = first.setdefault(name, result)
        shown.append({"name": name, "step": step, **summary, "since_first": _paired(since, result)})
    return shown, notes


def is_sampled(result: EvaluationResult) -> bool:
    """Whether its replies were drawn, not taken greedily; greedy ones stand first."""
    return bool(number(result.settings.get("temperature")))


def _name_and_step(path: Path, result: EvaluationResult) -> tuple[str, int | None]:
    match = re.fullmatch(r"(.+)_([0-9]{6,})", path.stem)
    if match is not None:
        return match.group(1), int(match.group(2))
    return path.stem, whole(result.settings.get("global_step"))


def _summary(result: EvaluationResult) -> dict[str, Any]:
    metrics = result.metrics()
    macro = [number(metrics[f"success_macro{end}"]) for end in ("", "_low", "_high")]
    return {
        "overall": _rate(result.overall()),
        "macro": macro if macro[0] is not None else None,
        "score": number(metrics["score"]),
        "turns": number(metrics["turns"]),
        "temperature": number(result.settings.get("temperature")),
        "num_plays": len(result.plays),
        "num_failed": len(result.plays) - len(result.usable),
        "families": [[family, _rate(rate)] for family, rate in result.families().items()],
    }


def _rate(rate: Rate) -> list[float | None]:
    """[value, low, high, successes, plays]"""
    return [number(rate.value), number(rate.low), number(rate.high), rate.num_successes, rate.num_plays]


def _paired(first: EvaluationResult, later: EvaluationResult) -> dict[str, Any] | None:
    """The exact paired test against the first evaluation of the same name."""
    if first is later:
        return None
    try:
        paired = compare(first, later)
    except ConfigurationError:  # not one task in common
        return None
    return {
        "difference": number(paired.difference),
        "p_value": number(paired.p_value),
        "num_pairs": paired.num_pairs,
        "only_first": paired.only_first,
        "only_later": paired.only_second,
    }
