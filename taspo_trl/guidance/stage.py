"""Guidance for the groups of a rollout batch: who gets it, and the work done beside the rollout.

A group's work starts when its last episode ends, while other groups still play: the construction's `prepare` once for
the group, then `build` for each target that can use guidance, spread over a few worker threads.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace

from ..analyzer.base import AnalyzerReply, AnalyzerRequest
from ..background import DaemonPool
from ..rollout.advantages import group_advantages
from ..rows import MIN_SPLICE_INDEX
from ..types import Extraction, Guidance, Trajectory, TrajectoryGroup
from .base import Construction, GuidanceContext


logger = logging.getLogger(__name__)

Call = tuple[AnalyzerRequest, AnalyzerReply]

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
    calls: tuple[Call, ...] = ()
    """What the analyzer was asked since the last batch, and what it said."""


@dataclass(frozen=True)
class Wanted:
    """Which trajectories can use guidance at all; the credit rule decides.

    Args:
        allocation (`str`, *optional*, defaults to `"action"`):
            What is a candidate: `"action"` = a turn with action tokens, `"token"` = an action token; of turns whose
            context can take guidance.
        scope (`str`, *optional*, defaults to `"action"`):
            Which tokens make a turn a candidate: `"action"` (M_it) or `"reply"` (R_it).
        min_candidates (`int`, *optional*, defaults to `2`):
            Candidates that a target needs: 2 where weights have mean one, since that of a single one is 1; else 1.
        flat_groups (`bool`, *optional*, defaults to `False`):
            Trajectories with A_i = 0 are targets too.
    """

    allocation: str = "action"
    scope: str = "action"
    min_candidates: int = 2
    flat_groups: bool = False


ANY_PAIR = Wanted()
"""TASPO's: two turns whose action can be scored."""


def targets_of(
    construction: Construction, group: TrajectoryGroup, advantages: Mapping[str, float], wanted: Wanted = ANY_PAIR
) -> tuple[list[Trajectory], dict[str, str]]:
    """The trajectories of a group that can use guidance, and why the others cannot.

    A target is usable, has A_i != 0 (unless flat groups are wanted), is not refused by the construction and holds
    enough candidates.
    """
    targets, reasons = [], {}
    for member in group.trajectories:
        if not member.is_usable:
            reasons[member.uid] = "infrastructure"
        elif advantages[member.uid] == 0 and not wanted.flat_groups:
            reasons[member.uid] = "zero_advantage"
        elif refusal := construction.refusal(group, member):
            reasons[member.uid] = refusal
        elif _num_candidates(member, wanted) < wanted.min_candidates:
            reasons[member.uid] = "no_candidate" if wanted.min_candidates == 1 else "fewer_than_two_candidates"
        else:
            targets.append(member)
    return targets, reasons


def outcome_advantages(group: TrajectoryGroup) -> list[float]:
    """A_i of a group's members in their order, for callers that have not computed them."""
    return group_advantages([[member.reward if member.is_usable else None for member in group.trajectories]])[0][0]


def _num_candidates(trajectory: Trajectory, wanted: Wanted) -> int:
    counts = [
        sum(turn.action_mask) if wanted.scope == "action" else len(turn.reply_ids)
        for turn in trajectory.turns
        if turn.splice_index is not None and turn.splice_index >= MIN_SPLICE_INDEX
    ]
    return sum(counts) if wanted.allocation == "token" else sum(count > 0 for count in counts)


@dataclass
class _Work:
    group: TrajectoryGroup
    targets: list[Trajectory]
    context: GuidanceContext
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
        wanted ([`Wanted`], *optional*):
            Which trajectories can use guidance at all.
        time_budget (`float`, *optional*):
            Seconds that [`collect`] waits at most; trajectories without guidance by then do without. What is under way
            ends in its own time, so that an analyzer can still keep an answer that was paid for. If `None`, unlimited.
        context ([`~taspo_trl.guidance.base.GuidanceContext`], *optional*):
            The analyzer, the state key and the oracle; the stage fills in what belongs to a group.
    """

    def __init__(
        self,
        construction: Construction | None,
        max_workers: int = 4,
        wanted: Wanted = ANY_PAIR,
        time_budget: float | None = None,
        context: GuidanceContext | None = None,
    ):
        self._construction = construction
        self._wanted = wanted
        self._max_workers = max_workers
        self._time_budget = time_budget
        context = context or GuidanceContext()
        self._context = replace(context, on_reply=self._note)
        self._on_reply = context.on_reply
        self._calls: list[Call] = []
        self._pool: DaemonPool | None = None
        self._is_warned = False
        self._lock = threading.RLock()  # cancelling a future runs its callback, `_build`, in the same thread
        self.unread = ""
        """Why nobody would read the guidance of what is submitted from now on: none is made and nothing paid. Empty:
        it is read."""
        self._reset()

    def _reset(self) -> None:
        self._results: dict[str, Guidance] = {}
        self._work: list[_Work] = []
        self._started: float | None = None
        self._last_answer = 0.0

    def _note(self, request: AnalyzerRequest, reply: AnalyzerReply) -> None:
        with self._lock:
            self._calls.append((request, reply))
        if self._on_reply is not None:
            self._on_reply(request, reply)

    def submit(self, group: TrajectoryGroup, advantages: Sequence[float] | None = None) -> None:
        """Start the work for a finished group.

        Args:
            group (`TrajectoryGroup`):
                With its rewards filled in.
            advantages (`Sequence[float]`, *optional*):
                A_i of its members, in their order. If `None`, computed from the rewards.
        """
        if self._construction is None or self.unread:
            name = "none" if self._construction is None else self._construction.name
            reason = "no_construction" if self._construction is None else self.unread
            for member in group.trajectories:
                self._results[member.uid] = Guidance(member.uid, name, abstain_reason=reason)
            return
        if advantages is None:
            advantages = outcome_advantages(group)
        by_uid = {member.uid: a for member, a in zip(group.trajectories, advantages, strict=True)}
        targets, reasons = targets_of(self._construction, group, by_uid, self._wanted)
        for uid, reason in reasons.items():
            self._results[uid] = Guidance(uid, self._construction.name, abstain_reason=reason)
        if not targets:
            return
        if self._pool is None:
            self._pool = DaemonPool(self._max_workers, "taspo-guidance")
        if self._started is None:
            self._started = time.monotonic()
        # Urgent: what follows from it keeps all workers busy, while nothing waits for a single target.
        context = replace(self._context, advantages=by_uid)
        prepared = self._pool.submit(self._construction.prepare, context, group, is_urgent=True)
        work = _Work(group, targets, context, prepared)
        self._work.append(work)
        if not self._construction.needs_others:
            work.prepared.add_done_callback(lambda done: self._build(work, done))

    def _build_with_others(self, deadline: float | None) -> None:
        """Queue the targets of all groups, each with what was prepared of the others."""
        done = [work for work in self._work if _is_done(work.prepared, deadline)]
        good = [work for work in done if not work.prepared.cancelled() and work.prepared.exception() is None]
        for work in done:
            if work.is_queued.is_set():
                continue
            others = tuple((one.group, one.prepared.result()) for one in good if one is not work)
            work.context = replace(work.context, others=others)
            self._build(work, work.prepared)

    def _build(self, work: _Work, prepared: Future) -> None:
        """Queue the targets of a prepared group; runs in a worker thread, which it does not block."""
        construction = self._construction
        try:
            if prepared.cancelled() or prepared.exception() is not None or construction is None:
                return
            work.context = replace(work.context, shared=prepared.result())
            with self._lock:  # no analyzer call is queued behind a cancellation
                pool = self._pool
                if pool is not None and not work.is_cancelled:
                    work.built = [
                        pool.submit(self._timed_build, construction, work, target) for target in work.targets
                    ]
        finally:
            work.is_queued.set()

    def _timed_build(self, construction: Construction, work: _Work, target: Trajectory) -> Guidance:
        guidance = construction.build(work.context, work.group, target)
        with self._lock:
            if not work.is_cancelled:
                self._last_answer = max(self._last_answer, time.monotonic())
        return guidance

    def targets(self) -> set[str]:
        """Uids of the trajectories for which guidance is being made or was made."""
        return {target.uid for work in self._work for target in work.targets}

    def of_group(self, group: TrajectoryGroup) -> dict[str, Guidance] | None:
        """The guidance of a submitted group's trajectories by uid, or None while it is not all there.

        Takes nothing away: [`collect`] gives the same, and raises what went wrong. Not of constructions that need the
        other groups.
        """
        work = next((one for one in self._work if one.group.group_id == group.group_id), None)
        built: dict[str, Guidance] = {}
        if work is not None:
            if not work.is_queued.is_set() or not _is_good(work.prepared) or not all(map(_is_good, work.built)):
                return None
            built = {target.uid: one.result() for target, one in zip(work.targets, work.built, strict=True)}
        return {t.uid: built[t.uid] if t.uid in built else self._results[t.uid] for t in group.trajectories}

    @property
    def time_budget(self) -> float | None:
        """Seconds that a step waits for guidance at most; None = unlimited."""
        return self._time_budget

    def is_done(self, timeout: float = 0.0) -> bool:
        """Whether [`collect`] would not wait, after `timeout` seconds or the time budget at most."""
        deadline = time.monotonic() + (timeout if self._time_budget is None else min(timeout, self._time_budget))
        if not all(_is_done(work.prepared, deadline) for work in self._work):
            return False
        if self._construction is not None and self._construction.needs_others:
            self._build_with_others(deadline)
        return all(
            work.is_queued.wait(_seconds_to(deadline)) and all(_is_done(one, deadline) for one in work.built)
            for work in self._work
        )

    def collect(self, waited: float = 0.0) -> GuidanceBatch:
        """Wait for all submitted groups, within the time budget.

        An exception in a construction is a bug, or an analyzer that cannot be used at all, and is raised here.

        Args:
            waited (`float`, *optional*, defaults to `0.0`):
                Seconds of the time budget that the step has waited already.
        """
        waiting_since = time.monotonic()
        deadline = None if self._time_budget is None else waiting_since + max(0.0, self._time_budget - waited)
        extractions: dict[str, Extraction] = {}
        try:
            if self._construction is not None and self._construction.needs_others:
                self._build_with_others(deadline)
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
            calls=self._taken_calls(),
        )
        if num_late:
            self._warn(num_late)
            self.cancel()
        self._reset()
        return batch

    def _taken_calls(self) -> tuple[Call, ...]:
        with self._lock:
            calls, self._calls = tuple(self._calls), []
        return calls

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


def _is_good(future: Future) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


def _is_done(future: Future, deadline: float | None) -> bool:
    return bool(wait([future], timeout=_seconds_to(deadline)).done)


def _seconds_to(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())
