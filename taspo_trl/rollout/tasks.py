"""From dataset rows to the episodes of a rollout batch: who plays which task with which seed.

Pure.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigurationError
from ..seeds import derive_seed


@dataclass(frozen=True, slots=True)
class EpisodeSpec:
    """One episode to play."""

    uid: str
    group_id: str
    generation_idx: int
    row: Mapping[str, Any]
    """The dataset row, without None values."""
    seed: int
    """The same for all members of a group."""
    environment: str | None = None
    none_columns: frozenset[str] = frozenset()
    """The row's columns that are None: passed to a `reset` that cannot do without them."""


def plan_groups(
    rows: Sequence[Mapping[str, Any]],
    num_generations: int,
    seed: int,
    rollout: int,
    prefix: str,
    *,
    is_routed: bool = False,
    numbers: Sequence[int] | None = None,
) -> list[EpisodeSpec]:
    """The episodes of a rollout batch: `num_generations` of each row, all with their group's seed.

    Args:
        rows (`Sequence[Mapping[str, Any]]`):
            One dataset row for each group.
        seed (`int`), rollout (`int`):
            The run's seed and the number of the rollout batch; with the task's id and its number among equal rows
            they give the environment's seed. The first of equal rows has the seed that it would have alone.
        prefix (`str`):
            Start of the uids, unique within the run.
        is_routed (`bool`, *optional*, defaults to `False`):
            The column `environment` selects the environment and is no part of the task. Else it is a column like any
            other.
        numbers (`Sequence[int]`, *optional*):
            How many equal rows stand before each. If `None`, they are counted in `rows`.
    """
    if numbers is None:
        numbers = equal_before(rows)
    specs: list[EpisodeSpec] = []
    for g, (row, number) in enumerate(zip(rows, numbers, strict=True)):
        task = task_row(row)
        environment = task.pop("environment", None) if is_routed else None
        parts = (seed, task_id(task), rollout, number) if number else (seed, task_id(task), rollout)
        group_seed = derive_seed(*parts) % 2**31
        group_id = f"{prefix}-g{g}"
        none_columns = frozenset(name for name, value in row.items() if value is None)
        specs.extend(
            EpisodeSpec(f"{group_id}-k{k}", group_id, k, task, group_seed, environment, none_columns)
            for k in range(num_generations)
        )
    return specs


def equal_before(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """For each row, how many rows before it are the same task: equal in `task_id`, or in content without one."""
    seen: Counter[tuple[Any, str]] = Counter()
    numbers = []
    for row in rows:
        task = task_row(row)
        key = (task.get("environment"), task_id(task))
        numbers.append(seen[key])
        seen[key] += 1
    return numbers


def group_id_of(uid: str) -> str:
    """The group of a trajectory that [`plan_groups`] named."""
    return uid.rpartition("-k")[0]


def task_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A dataset row without the None values that Arrow fills in for keys a row did not have, at any depth."""
    check_columns(row)
    return {key: _without_none(value) for key, value in row.items() if value is not None}


def check_columns(columns: Iterable[str]) -> None:
    """Raise [`~taspo_trl.errors.ConfigurationError`] for a column that `reset` could not be called with."""
    columns = set(columns)
    if "seed" in columns:
        raise ConfigurationError(
            "The dataset has a column `seed`, but `reset` gets its seed from the trainer: the same for all members "
            "of a group. Rename the column."
        )
    if "self" in columns:
        raise ConfigurationError(
            "The dataset has a column `self`, which no method can take by name, so that every `reset` would fail. "
            "Rename the column."
        )


def task_id(row: Mapping[str, Any]) -> str:
    """The row's `task_id`, or a digest of its content."""
    return str(row["task_id"]) if "task_id" in row else f"{derive_seed(sorted(map(str, row.items()))):016x}"


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_without_none(inner) for inner in value]
    return value


def split_names(values: Iterable[Any]) -> tuple[str, ...]:
    """Values of a column `split`, if they read like names: a column of that name may hold anything."""
    names = tuple(dict.fromkeys(value for value in values if value is not None))
    is_plain = all(isinstance(name, str) and re.fullmatch(r"[\w.+\-]{1,40}", name) for name in names)
    return names if is_plain and len(names) <= 8 else ()
