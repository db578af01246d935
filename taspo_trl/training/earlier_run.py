"""Sets aside what an earlier or an abandoned run left in the output folder, so that no two are ever read as one."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable
from pathlib import Path

from ..checkpoints import checkpoints_of, step_of
from ..errors import ConfigurationError


logger = logging.getLogger(__name__)

PATTERNS = ("_trajectories/*", "_evaluations/*", "completions/*.parquet", "trainer_state.json")
"""The files of a run, beside its checkpoints and its model."""


def set_aside(output_dir: str | os.PathLike, before: float) -> Path | None:
    """Move what a new run does not go on with to `output_dir/_earlier/N`; nothing is deleted.

    These are recorded episodes, evaluations, logs and checkpoints: `last` is to mean a checkpoint of the run that
    lives here now.

    Args:
        output_dir (`str` or `PathLike`):
            The run's folder.
        before (`float`):
            Seconds since the epoch: what was changed before it is another run's.

    Returns:
        `Path` or `None`: where they are now; None when there were none.
    """
    root = Path(output_dir)
    old = [one for one in [*_files(root), *checkpoints_of(root)] if one.stat().st_mtime < before]
    target = _move(root, old)
    if target is not None:
        logger.warning(
            "%s held files of an earlier run; its episodes, evaluations and checkpoints are in %s now.", root, target
        )
    return target


def set_aside_beyond(output_dir: str | os.PathLike, step: int, num_rollouts: int) -> Path | None:
    """Move what lies beyond the point from which a run goes on to `output_dir/_earlier/N`; nothing is deleted.

    The run plays these batches and takes these steps again, perhaps with other settings.

    Args:
        output_dir (`str` or `PathLike`):
            The run's folder.
        step (`int`):
            Optimizer steps before the point: later checkpoints, evaluations and logs move.
        num_rollouts (`int`):
            Rollout batches before it: the records of later ones move.

    Returns:
        `Path` or `None`: where they are now; None when there were none.
    """
    root = Path(output_dir)
    beyond = []
    for file in _files(root):
        if file.parent.name == "_trajectories":
            number = re.match(r"rollout_([0-9]+)", file.name)
            is_beyond = number is not None and int(number[1]) >= num_rollouts
        elif file.name == "trainer_state.json":
            is_beyond = _step_in(root) > step
        else:
            number = re.search(r"_([0-9]+)\.\w+(\.partial)?$", file.name)
            is_beyond = number is not None and int(number[1]) > step
        if is_beyond:
            beyond.append(file)
    beyond += [one for one in checkpoints_of(root) if int(one.name.split("-")[1]) > step]
    target = _move(root, beyond)
    if target is not None:
        logger.warning(
            "The run goes on after step %d; the episodes, evaluations and checkpoints of later steps are in %s now.",
            step,
            target,
        )
    return target


def _files(root: Path) -> list[Path]:
    return [file for pattern in PATTERNS for file in sorted(root.glob(pattern)) if file.is_file()]


def _step_in(root: Path) -> int:
    try:
        return step_of(root)
    except ConfigurationError:  # cut off by a kill
        return 2**63


def _move(root: Path, old: Iterable[Path]) -> Path | None:
    old = list(old)
    if not old:
        return None
    taken = [int(one.name) for one in (root / "_earlier").glob("*") if one.name.isdigit()]
    target = root / "_earlier" / str(max(taken, default=0) + 1)
    for one in old:
        place = target / one.relative_to(root)
        place.parent.mkdir(parents=True, exist_ok=True)
        os.replace(one, place)
    return target
