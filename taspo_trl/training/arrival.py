"""When the guidance of a rollout batch is there: asked and taken at the same places by every process, waits timed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from ..guidance.stage import GuidanceBatch, GuidanceStage


GRACE_SECONDS = 1.0
"""How long the pass of log pi_old waits for guidance. Analyzers that answer at once and cached answers are in time for
the whole batch, so that a run's last bits do not hang on the moment at which a thread ended."""


@dataclass
class Arrival:
    """The guidance of a batch, known on every process; taken once."""

    stage: GuidanceStage
    gather: Callable[[list], list]
    taken: GuidanceBatch | None = None
    seconds: float = 0.0
    """What the step waited for it."""
    _paused: float = 0.0
    _has_asked: bool = False

    def targets(self) -> set[str]:
        """Uids of the trajectories that may be guided."""
        return {uid for part in self.gather([sorted(self.stage.targets())]) for uid in part}

    def if_done(self) -> GuidanceBatch | None:
        """The guidance, if no process would wait for it; the first time that is asked, after a moment of grace."""
        if self.taken is None:
            started = time.perf_counter()
            is_done = self.stage.is_done(0.0 if self._has_asked else GRACE_SECONDS)
            self._has_asked = True
            is_done_everywhere = all(self.gather([is_done]))
            self.seconds += time.perf_counter() - started
            if not is_done_everywhere:
                return None
        return self.wait()

    def pause(self, seconds: float) -> bool:
        """Wait a moment for this process's guidance; whether waiting longer is of any use."""
        started = time.perf_counter()
        is_done = self.stage.is_done(seconds)
        paused = time.perf_counter() - started
        self._paused += paused
        self.seconds += paused
        return not is_done and (self.stage.time_budget is None or self._paused < self.stage.time_budget)

    def wait(self) -> GuidanceBatch:
        if self.taken is None:
            started = time.perf_counter()
            shared = self.gather([self.stage.collect(self._paused)])
            self.taken = GuidanceBatch(
                guidance={uid: one for part in shared for uid, one in part.guidance.items()},
                extractions={group_id: one for part in shared for group_id, one in part.extractions.items()},
                work_seconds=max(part.work_seconds for part in shared),
                visible_seconds=max(part.visible_seconds for part in shared),
                calls=tuple(call for part in shared for call in part.calls),
            )
            self.seconds += time.perf_counter() - started
        return self.taken
