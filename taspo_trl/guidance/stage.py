"""Guidance for the groups of a rollout batch: who gets it, and the work done beside the rollout.

A group's work starts when its last episode ends, while other groups still play: the construction's `prepare` once for
the group, then `build` for each target that can use guidance, spread over a few worker threads.
"""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future, wait
from dataclasses import dataclass, field

from ..background import DaemonPool
from ..rollout.advantages import group_advantages
from ..rows import MIN_SPLICE_INDEX
from ..types import Extraction, Guidance, Trajectory, TrajectoryGroup
from .constructions import Construction, verified_successes


logger = logging.getLogger(__name__)

LATE = "time_budget"
"""Why a trajectory has no guidance when the step could wait no longer."""


@dataclass(frozen=True)
class GuidanceBatch:
    """What [`GuidanceStage.collect`] gives."""

    guidance: dict[str, Guidance]
    """Trajectory uid -> guidance, for every trajectory; empty ones carry their reason."""
    extractions: dict[str, Extraction]
    """Group id -> evidence, for the eligible groups."""
    work_seconds: float
    """From the first submission to the last answer."""
    visible_seconds: float
    """How long the step waited in `collect`."""


def targets_of(
    group: TrajectoryGroup, needs_success: bool, allocation: str
) -> tuple[list[Trajectory], dict[str, str]]:
    """The trajectories of a group that can use guidance, and why the others cannot.

    A target is usable, has A_i != 0, holds at least two candidate turns (or action tokens, for token-level
    allocation), and, where the construction draws on successes, has a verified success other than itself.
    """
    rewards = [member.reward if member.is_usable else None for member in group.trajectories]
    advantages = group_advantages([rewards])[0][0]
    successes = {success.uid for success in verified_successes(group)}
    targets, reasons = [], {}
    for member, advantage in zip(group.trajectories, advantages, strict=True):
        if not member.is_usable:
            reasons[member.uid] = "infrastructure"
        elif advantage == 0:
            reasons[member.uid] = "zero_advantage"
        elif needs_success and not successes - {member.uid}:
            reasons[member.uid] = "no_other_success"
        elif _num_candidates(member, allocation) < 2:
            reasons[member.uid] = "fewer_than_two_candidates"
        else:
            targets.append(member)
    return targets, reasons


def _num_candidates(trajectory: Trajectory, allocation: str) -> int:
    counts = [
        sum(turn.action_mask)
        for turn in trajectory.turns
        if turn.splice_index is not None and turn.splice_index >= MIN_SPLICE_INDEX
    ]
    return sum(counts) if allocation == "token" else sum(count > 0 for count in counts)


@dataclass
class _Work:
    group: TrajectoryGroup
    targets: list[Trajectory]
    prepared: Future
    built: list[Future] = field(default_factory=list)
    is_queued: threading.Event = field(default_factory=threading.Event)
    """Set once `built` is complete, or never will be."""
    is_cancelled: bool = False


class GuidanceStage:
    """Runs one construction over the groups of a rollout batch.

    Args:
        construction (`Construction`, *optional*):
            How guidance is made; None makes none, which is plain GRPO.
        max_workers (`int`, *optional*, defaults to `4`):
            Threads, and so analyzer requests in flight.
        allocation (`str`, *optional*, defaults to `"action"`):
            `"action"` or `"token"`: decides which trajectories can use guidance.
        time_budget (`float`, *optional*):
            Seconds that [`collect`] waits at most; trajectories without guidance by then do without. What is under way
            ends in its own time, so that an analyzer can still keep an answer that was paid for. If `None`, unlimited.
    """

    def __init__(
        self,
        construction: Construction | None,
        max_workers: int = 4,
        allocation: str = "action",
        time_budget: float | None = None,
    ):
        self._construction = construction
        self._allocation = allocation
        self._max_workers = max_workers
        self._time_budget = time_budget
        self._pool: DaemonPool | None = None
        self._is_warned = False
        self._lock = threading.RLock()  # cancelling a future runs its callback, `_build`, in the same thread
        self._reset()

    def _reset(self) -> None:
        self._results: dict[str, Guidance] = {}
        self._work: list[_Work] = []
        self._started: float | None = None
        self._last_answer = 0.0

    def submit(self, group: TrajectoryGroup) -> None:
        """Start the work for a finished group. Its rewards must be filled in."""
        if self._construction is None:
            for member in group.trajectories:
                self._results[member.uid] = Guidance(member.uid, "none", abstain_reason="no_construction")
            return
        targets, reasons = targets_of(group, self._construction.needs_success, self._allocation)
        for uid, reason in reasons.items():
            self._results[uid] = Guidance(uid, self._construction.name, abstain_reason=reason)
        if not targets:
            return
        if self._pool is None:
            self._pool = DaemonPool(self._max_workers, "taspo-guidance")
        if self._started is None:
            self._started = time.monotonic()
        # Urgent: what follows from it keeps all workers busy, while nothing waits for a single target.
        prepared = self._pool.submit(self._construction.prepare, group, is_urgent=True)
        work = _Work(group, targets, prepared)
        self._work.append(work)
        work.prepared.add_done_callback(lambda done: self._build(work, done))

    def _build(self, work: _Work, prepared: Future) -> None:
        """Queue the targets of a prepared group; runs in a worker thread, which it does not block."""
        construction = self._construction
        try:
            if prepared.cancelled() or prepared.exception() is not None or construction is None:
                return
            shared = prepared.result()
            with self._lock:  # no analyzer call is queued behind a cancellation
                pool = self._pool
                if pool is not None and not work.is_cancelled:
                    work.built = [
                        pool.submit(self._timed_build, construction, work, target, shared) for target in work.targets
                    ]
        finally:
            work.is_queued.set()

    def _timed_build(
        self, construction: Construction, work: _Work, target: Trajectory, extraction: Extraction
    ) -> Guidance:
        guidance = construction.build(work.group, target, extraction)
        with self._lock:
            if not work.is_cancelled:
                self._last_answer = max(self._last_answer, time.monotonic())
        return guidance

    def collect(self) -> GuidanceBatch:
        """Wait for all submitted groups, within the time budget.

        An exception in a construction is a bug, or an analyzer that cannot be used at all, and is raised here.
        """
        waiting_since = time.monotonic()
        deadline = None if self._time_budget is None else waiting_since + self._time_budget
        extractions: dict[str, Extraction] = {}
        try:
            for work in self._work:
                extractions[work.group.group_id] = self._collect_group(work, deadline)
        except BaseException:  # Ctrl-C included: the next batch must not meet this one's work
            self.cancel()
            raise
        now = time.monotonic()
        num_late = sum(one.abstain_reason == LATE for one in self._results.values())
        last_answer = now if num_late else self._last_answer
        batch = GuidanceBatch(
            guidance=self._results,
            extractions=extractions,
            work_seconds=last_answer - self._started if self._started is not None else 0.0,
            visible_seconds=now - waiting_since,
        )
        if num_late:
            self._warn(num_late)
            self.cancel()
        self._reset()
        return batch

    def _collect_group(self, work: _Work, deadline: float | None) -> Extraction:
        """Take a group's results as they come in; at the deadline the missing ones are late."""
        if not _is_done(work.prepared, deadline) or not work.is_queued.wait(_seconds_to(deadline)):
            for target in work.targets:
                self._results[target.uid] = self._late(target)
            return Extraction(fault=LATE)
        extraction = work.prepared.result()
        for target, future in zip(work.targets, work.built, strict=True):
            self._results[target.uid] = future.result() if _is_done(future, deadline) else self._late(target)
        return extraction

    def _late(self, target: Trajectory) -> Guidance:
        return Guidance(target.uid, self._construction.name if self._construction else "none", abstain_reason=LATE)

    def _warn(self, num_late: int) -> None:
        if not self._is_warned:
            self._is_warned = True
            logger.warning(
                "The analyzer was not done within `analyzer_time_budget=%g` seconds: %d trajectories of this step "
                "train with plain GRPO weights. Raise it, raise `analyzer_workers`, or use a faster analyzer. From "
                "here on such trajectories are only counted (`guidance/none/%s`).",
                self._time_budget,
                num_late,
                LATE,
            )

    def cancel(self) -> None:
        """Drop what has not started; for a rollout that failed."""
        with self._lock:
            for work in self._work:
                work.is_cancelled = True
                for future in (work.prepared, *work.built):
                    future.cancel()
            self._reset()
        self.close()  # what is under way must not keep the next batch waiting: it gets threads of its own

    def close(self) -> None:
        """End the worker threads. May be called twice."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.retire()


def _is_done(future: Future, deadline: float | None) -> bool:
    return bool(wait([future], timeout=_seconds_to(deadline)).done)


def _seconds_to(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())
