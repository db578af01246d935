"""Guidance for the groups of a rollout batch: who gets it, and the work done beside the rollout.

A group's work starts when its last episode ends, while other groups still play: the construction's `prepare` once for
the group, then `build` for each target that can use guidance, spread over a few worker threads.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from .advantages import group_advantages
from .analyzer.constructions import Construction, verified_successes
from .scoring import MIN_SPLICE_INDEX
from .types import Extraction, Guidance, Trajectory, TrajectoryGroup


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
    """

    def __init__(self, construction: Construction | None, max_workers: int = 4, allocation: str = "action"):
        self._construction = construction
        self._allocation = allocation
        self._max_workers = max_workers
        self._executor: ThreadPoolExecutor | None = None
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
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._max_workers, thread_name_prefix="taspo-guidance")
        if self._started is None:
            self._started = time.monotonic()
        work = _Work(group, targets, self._executor.submit(self._construction.prepare, group))
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
                executor = self._executor
                if executor is not None and not work.is_cancelled:
                    work.built = [
                        executor.submit(self._timed_build, construction, work, target, shared)
                        for target in work.targets
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
        """Wait for all submitted groups. An exception in a construction is a bug and is raised here."""
        waiting_since = time.monotonic()
        try:
            for work in self._work:
                work.prepared.result()
                work.is_queued.wait()
                for future in work.built:
                    guidance = future.result()
                    self._results[guidance.traj_uid] = guidance
        except BaseException:  # Ctrl-C included: the next batch must not meet this one's work
            self.cancel()
            raise
        batch = GuidanceBatch(
            guidance=self._results,
            extractions={work.group.group_id: work.prepared.result() for work in self._work},
            work_seconds=self._last_answer - self._started if self._started is not None else 0.0,
            visible_seconds=time.monotonic() - waiting_since,
        )
        self._reset()
        return batch

    def cancel(self) -> None:
        """Drop what has not started; for a rollout that failed."""
        with self._lock:
            for work in self._work:
                work.is_cancelled = True
                for future in (work.prepared, *work.built):
                    future.cancel()
            self._reset()

    def close(self) -> None:
        """End the worker threads. May be called twice."""
        with self._lock:
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=False, cancel_futures=True)
