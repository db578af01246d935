"""From dataset rows to the episodes of a rollout batch: who plays which task with which seed.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


def plan_groups(
    rows: Sequence[Mapping[str, Any]], num_generations: int, seed: int, draw: int, prefix: str
) -> list[EpisodeSpec]:
    """The episodes of a rollout batch: `num_generations` of each row, all with their group's seed.

    Args:
        rows (`Sequence[Mapping[str, Any]]`):
            One dataset row for each group.
        seed (`int`), draw (`int`):
            The run's seed and the number of this draw of tasks; with the task's id they give the environment's seed.
        prefix (`str`):
            Start of the uids, unique within the run.
    """
    specs: list[EpisodeSpec] = []
    for g, row in enumerate(rows):
        task = task_row(row)
        environment = task.pop("environment", None)
        group_seed = derive_seed(seed, task_id(task), draw) % 2**31
        group_id = f"{prefix}-g{g}"
        specs.extend(
            EpisodeSpec(f"{group_id}-k{k}", group_id, k, task, group_seed, environment) for k in range(num_generations)
        )
    return specs


def group_id_of(uid: str) -> str:
    """The group of a trajectory that [`plan_groups`] named."""
    return uid.rpartition("-k")[0]


def task_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A dataset row without the None values that Arrow fills in for keys a row did not have, at any depth."""
    if "seed" in row:
        raise ConfigurationError(
            "The dataset has a column `seed`, but `reset` gets its seed from the trainer: the same for all members "
            "of a group. Rename the column."
        )
    return {key: _without_none(value) for key, value in row.items() if value is not None}


def task_id(row: Mapping[str, Any]) -> str:
    """The row's `task_id`, or a digest of its content."""
    return str(row["task_id"]) if "task_id" in row else f"{derive_seed(sorted(map(str, row.items()))):016x}"


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_without_none(inner) for inner in value]
    return value
