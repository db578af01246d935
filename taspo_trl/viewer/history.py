"""Learning curves: the logged numbers of a run, or what its trajectories alone tell."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from .index import Row
from .lenient import items, mapping, number
from .sources import read_json


Series = dict[str, list[list[float]]]
"""Logged name -> [step, value] pairs in the order of the steps."""


def load_history(logs: Sequence[Path], base: Path) -> tuple[str, Series, list[str]]:
    """(where the log was found, its series, notes): of several logs the one that goes furthest.

    Args:
        logs (`Sequence[Path]`):
            `trainer_state.json` files and the quickstart's `metrics.json`, the preferred ones first.
        base (`Path`):
            Names are given relative to it.
    """
    best, source, notes = Series(), "", []
    for path in logs:
        name = path.relative_to(base).as_posix()
        try:
            data = read_json(path)
        except ValueError as error:
            notes.append(f"{name} holds no log: {error}.")
            continue
        series = series_of(items(data) or items(mapping(data).get("log_history")))
        if _last_step(series) > _last_step(best):
            best, source = series, name
    return source, best, notes


def series_of(entries: Iterable[Any]) -> Series:
    """The numbers of a log history by name; the last value of a step that was logged twice, as after a resume."""
    values: dict[str, dict[float, float]] = defaultdict(dict)
    for entry in map(mapping, entries):
        step = number(entry.get("step"))
        if step is None:
            continue
        for name, value in entry.items():
            one = number(value)
            if name != "step" and one is not None:
                values[name][step] = float(f"{one:.6g}")  # learning rates and losses are small
    return {name: [[step, series[step]] for step in sorted(series)] for name, series in values.items()}


def series_from_rows(rows: Iterable[Row]) -> Series:
    """Success, reward, turns, invalid actions, coverage and weight spread by step, as training defines them.

    For runs that left no log: it is written with the first checkpoint.
    """
    by_step: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        if row.step is not None:
            by_step[row.step].append(row)
    series: Series = defaultdict(list)
    for step in sorted(by_step):
        for name, value in _step_metrics(by_step[step]).items():
            if value is not None:
                series[name].append([float(step), value])
    return dict(series)


def _step_metrics(rows: Sequence[Row]) -> dict[str, float | None]:
    usable = [row for row in rows if row.is_usable]
    wanted = [row for row in rows if row.has_guidance is not None and row.advantage]
    moved = [weight for row in rows if row.credit == "weighted" for weight in row.weights]
    num_turns = sum(row.turns for row in rows)
    return {
        "success": _mean([float(row.outcome == "success") for row in usable]),
        "reward": _mean([row.reward for row in usable if row.reward is not None]),
        "turns/mean": _mean([float(row.turns) for row in usable]),
        "actions/invalid_share": sum(row.invalid for row in rows) / num_turns if num_turns else None,
        "guidance/coverage": _mean([float(row.has_guidance is True) for row in wanted]),
        "credit/weight_std": _std(moved),
    }


def _last_step(series: Series) -> float:
    return max((points[-1][0] for points in series.values()), default=-math.inf)


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _std(values: Sequence[float]) -> float | None:
    mean = _mean(values)
    if mean is None or len(values) < 2:
        return None
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
