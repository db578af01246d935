"""Sets aside what an earlier run left in the output folder, so that no two runs are ever read as one."""

from __future__ import annotations

import logging
import os
from pathlib import Path


logger = logging.getLogger(__name__)

FOLDERS = ("_trajectories", "_evaluations")


def set_aside(output_dir: str | os.PathLike, before: float) -> Path | None:
    """Move recorded episodes and evaluations older than `before` to `output_dir/_earlier/N`; nothing is deleted.

    Args:
        output_dir (`str` or `PathLike`):
            The run's folder.
        before (`float`):
            Seconds since the epoch: files changed before it are another run's.

    Returns:
        `Path` or `None`: where they are now; None when there were none.
    """
    root = Path(output_dir)
    old = [
        file
        for folder in FOLDERS
        for file in sorted((root / folder).glob("*"))
        if file.is_file() and file.stat().st_mtime < before
    ]
    if not old:
        return None
    taken = [int(one.name) for one in (root / "_earlier").glob("*") if one.name.isdigit()]
    target = root / "_earlier" / str(max(taken, default=0) + 1)
    for file in old:
        place = target / file.parent.name
        place.mkdir(parents=True, exist_ok=True)
        os.replace(file, place / file.name)
    logger.warning("%s held files of an earlier run; its episodes and evaluations are in %s now.", root, target)
    return target
