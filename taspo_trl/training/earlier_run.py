"""Sets aside what an earlier run left in the output folder, so that no two runs are ever read as one."""

from __future__ import annotations

import logging
import os
from pathlib import Path


logger = logging.getLogger(__name__)

PATTERNS = ("_trajectories/*", "_evaluations/*", "trainer_state.json")


def set_aside(output_dir: str | os.PathLike, before: float) -> Path | None:
    """Move recorded episodes, evaluations and logs older than `before` to `output_dir/_earlier/N`; nothing is deleted.

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
        for pattern in PATTERNS
        for file in sorted(root.glob(pattern))
        if file.is_file() and file.stat().st_mtime < before
    ]
    if not old:
        return None
    taken = [int(one.name) for one in (root / "_earlier").glob("*") if one.name.isdigit()]
    target = root / "_earlier" / str(max(taken, default=0) + 1)
    for file in old:
        place = target / file.relative_to(root)
        place.parent.mkdir(parents=True, exist_ok=True)
        os.replace(file, place)
    logger.warning("%s held files of an earlier run; its episodes and evaluations are in %s now.", root, target)
    return target
