"""Says once, and aloud, that a run cannot learn: no contrast within groups, or episodes that fail."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ..types import Trajectory


logger = logging.getLogger(__name__)

PATIENCE = 3
"""Rollout batches without a contrast before it is said."""


class Alerts:
    """Watches the rollout batches of a run."""

    def __init__(self) -> None:
        self._num_flat = 0
        self._said: set[str] = set()

    def note(self, trajectories: Sequence[Trajectory], advantages: Sequence[float]) -> None:
        """Look at one batch.

        Args:
            trajectories (`Sequence[Trajectory]`):
                All episodes of the batch.
            advantages (`Sequence[float]`):
                A_i of each.
        """
        failed = [t for t in trajectories if not t.is_usable]
        for t in failed:
            self._say(
                t.stop_reason.value,
                f"An episode ended in {t.stop_reason.value} ({t.error or 'no further word'}) and does not count; "
                f"{len(failed)} of the {len(trajectories)} of this batch. Further ones are only counted: "
                "`episodes/failed_share`.",
            )
        self._num_flat = 0 if any(advantages) else self._num_flat + 1
        if self._num_flat == PATIENCE:
            usable = [t for t in trajectories if t.is_usable]
            solved = sum(t.success for t in usable)
            self._say(
                "flat",
                f"In {PATIENCE} rollout batches no group had a better and a worse episode, so nothing was learned "
                f"({solved} of {len(usable)} episodes of the last one were solved). If none is ever solved: does the "
                'environment set `info["success"]` to True, does the model keep to the reply format '
                "(`actions/invalid_share`), are the tasks too hard for it? If all are: they are too easy.",
            )

    def _say(self, what: str, text: str) -> None:
        if what not in self._said:
            self._said.add(what)
            logger.warning(text)
