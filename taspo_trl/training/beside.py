"""Scoring beside the rollout: what the frozen policy says of finished groups, computed while others still play.

A group is computed by itself, in micro-batches that it alone decides, whether that happens during the rollout or after
it: no number depends on who finished first, or on how fast an engine, a world or an analyzer answers.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..guidance.stage import GuidanceStage
from ..loss.batches import LossRow, loss_row, with_logps
from ..loss.plan import UpdatePlan, moving_rows
from ..rollout.tasks import group_id_of
from ..rows import Row, pack_rows
from ..scoring.pairs import PairPlan, TurnKey, turn_scores
from ..scoring.teachers import TeacherScorer
from ..types import Guidance, ReplyScore, Trajectory, TrajectoryGroup
from .passes import PolicyPasses
from .riding import Ride


PIECE_TOKENS = 2048
"""Bound on rows x longest row of a forward, if `micro_batch_tokens` is not smaller. An episode whose reply arrives
during a piece of work waits for its end, and so many tokens keep a device busy already."""
POLL_SECONDS = 0.02
"""How often guidance that is being made is looked for."""

RowKey = tuple[str, int]
"""(trajectory uid, first turn of the row)."""


def key_of(row: Row) -> RowKey:
    return row.traj_uid, row.turns[0].turn_idx


@dataclass
class GroupScoring:
    """Scores the groups of one rollout batch; a [`~taspo_trl.rollout.groups.IdleWork`] of its rollout.

    Args:
        passes (`PolicyPasses`):
            The forwards, [`alone`][PolicyPasses.alone].
        stage (`GuidanceStage`):
            Has been given every group that comes here.
        moves (`Callable`):
            (group, r_i - mean of each member) -> `[trajectory][turn]`: which turns the update will presumably want.
            What it wants beyond that is computed in [`finish`], what it does not want was in vain.
        pairs (`Callable`, *optional*):
            (rows, trajectories by uid, guidance by uid) -> what to score; None = nothing.
        old (`bool`), reference (`bool`):
            Whether log pi_old and log pi_ref are needed. Scoring then rides on the pass of the former.
        teacher (`TeacherScorer`, *optional*):
            Who plays the guided branches, if not the policy.
    """

    passes: PolicyPasses
    stage: GuidanceStage
    moves: Callable[[TrajectoryGroup, Sequence[float]], list[list[bool]]]
    pairs: Callable[[Sequence[Row], Mapping[str, Trajectory], Mapping[str, Guidance]], PairPlan] | None
    old: bool
    reference: bool
    teacher: TeacherScorer | None = None
    logps_seconds: float = field(default=0.0, init=False)
    scoring_seconds: float = field(default=0.0, init=False)
    """What was computed since the rollout took."""
    hidden_seconds: float = field(default=0.0, init=False)
    """What was computed during the rollout took."""

    def __post_init__(self) -> None:
        self._max_tokens = min(self.passes.max_tokens, PIECE_TOKENS)
        self.passes = replace(self.passes, max_tokens=self._max_tokens)
        self._pending: list[tuple[TrajectoryGroup, Sequence[float]]] = []
        self._current: Iterator[None] | None = None
        self._logps: dict[RowKey, tuple[tuple[float, ...] | None, tuple[float, ...] | None]] = {}
        self._scores: dict[TurnKey, ReplyScore] = {}

    # ---- during the rollout ----------------------------------------------------------------------------------------

    def submit(self, group: TrajectoryGroup, advantages: Sequence[float] | None = None) -> None:
        """Take on a finished group.

        Args:
            group (`TrajectoryGroup`), advantages (`Sequence[float]`):
                As in [`~taspo_trl.guidance.stage.GuidanceStage.submit`]; only signs count.
        """
        self._pending.append((group, advantages or ()))

    def work(self) -> float:
        """One forward, or the few of one micro-batch, for a group that is guided.

        Returns:
            `float`: 0 = there may be more to do; else seconds until guidance is worth another look, infinite where
            every group is done.
        """
        if self._current is None:
            self._current = self._next_group()
        if self._current is None:
            return POLL_SECONDS if self._pending else math.inf
        if next(self._current, _END) is _END:
            self._current = None
        return 0.0

    def cancel(self) -> None:
        """Drop everything: the rollout failed."""
        self._pending.clear()
        self._current = None

    def _next_group(self) -> Iterator[None] | None:
        for k, (group, advantages) in enumerate(self._pending):
            guidance = self.stage.of_group(group)
            if guidance is not None:
                del self._pending[k]
                return self._whole(group, advantages, guidance)
        return None

    # ---- after the rollout -----------------------------------------------------------------------------------------

    def drain(self, pause: Callable[[float], bool]) -> None:
        """Score what is guided while the rest of the guidance is made.

        Args:
            pause (`Callable`):
                Waits for guidance, so many seconds at most; False where waiting is of no more use.
        """
        self.hidden_seconds += self.logps_seconds + self.scoring_seconds
        self.logps_seconds = self.scoring_seconds = 0.0
        while (again := self.work()) < math.inf:
            if again and not pause(again):
                return

    def finish(
        self,
        plan: UpdatePlan,
        trajectories: Mapping[str, Trajectory],
        guidance: Mapping[str, Guidance],
        gather: Callable[[list], list],
        place: tuple[int, int] = (0, 1),
    ) -> tuple[dict[int, LossRow], dict[TurnKey, ReplyScore]]:
        """Compute what is left; what all processes found for the rows of an update.

        Args:
            plan (`UpdatePlan`):
                The update.
            trajectories (`Mapping[str, Trajectory]`), guidance (`Mapping[str, Guidance]`):
                Of the whole batch, by uid.
            gather (`Callable`):
                All processes' lists, joined in the order of the processes.
            place (`tuple[int, int]`, *optional*, defaults to `(0, 1)`):
                (this process, number of processes).

        Returns:
            `tuple[dict[int, LossRow], dict[TurnKey, ReplyScore]]`: this process's rows with their log-probabilities,
            and the scores of all turns of the plan's rows.
        """
        for _ in self._current or ():
            pass
        for group, advantages in self._pending:
            for _ in self._whole(group, advantages, guidance):
                pass
        self.cancel()
        self._share(gather)
        missing: dict[str, list[Row]] = defaultdict(list)
        for row in plan.rows:
            if key_of(row) not in self._logps:
                missing[group_id_of(row.traj_uid)].append(row)
        this, num_processes = place
        for group_id in list(missing)[this::num_processes]:
            for _ in self._pieces(missing[group_id], trajectories, guidance):
                pass
        if missing:
            self._share(gather)
        found = {k: self._logps[key_of(plan.rows[k])] for k in plan.loss_rows}
        rows = {k: with_logps(row, old_logps=found[k][0], ref_logps=found[k][1]) for k, row in plan.loss_rows.items()}
        wanted = [(row.traj_uid, turn.turn_idx) for row in plan.rows for turn in row.turns]
        return rows, {key: self._scores[key] for key in wanted if key in self._scores}

    def _share(self, gather: Callable[[list], list]) -> None:
        self._logps = dict(gather(list(self._logps.items())))
        self._scores = dict(gather(list(self._scores.items())))

    # ---- one group -------------------------------------------------------------------------------------------------

    def _whole(
        self, group: TrajectoryGroup, advantages: Sequence[float], guidance: Mapping[str, Guidance]
    ) -> Iterator[None]:
        rows = moving_rows(group.trajectories, self.moves(group, advantages))
        return self._pieces(rows, {t.uid: t for t in group.trajectories}, guidance)

    def _pieces(
        self, rows: Sequence[Row], trajectories: Mapping[str, Trajectory], guidance: Mapping[str, Guidance]
    ) -> Iterator[None]:
        """Compute some rows of a group, a micro-batch at a time. No mode of torch lasts over a pause."""
        plan = self._plan(rows, trajectories)
        pairs = None if self.pairs is None else self.pairs(rows, trajectories, guidance)
        ride = None
        if self.old and pairs is not None and self.teacher is None:
            ride = Ride(plan, set(trajectories), lambda: pairs, list, self._max_tokens)
        loss_rows = dict(plan.loss_rows)
        started, ridden = time.perf_counter(), 0.0
        for made in self.passes.each_logps(plan, old=self.old, reference=self.reference, ride=ride):
            loss_rows |= made
            on_the_way = ride.seconds - ridden if ride else 0.0
            ridden += on_the_way
            self.scoring_seconds += on_the_way
            self.logps_seconds += time.perf_counter() - started - on_the_way
            yield
            started = time.perf_counter()
        self._logps |= {key_of(row): (loss_rows[k].old_logps, loss_rows[k].ref_logps) for k, row in enumerate(rows)}
        if pairs is None:
            return
        scored = {} if ride is None else ride.scored()
        left = [k for k in range(len(pairs.pairs)) if k not in scored]
        for batch in self._packed([len(pairs.pairs[k].ids) for k in left]):
            started = time.perf_counter()
            members = [left[k] for k in batch]
            made_of = self.passes.score([pairs.pairs[k] for k in members], self.teacher)
            scored |= zip(members, made_of, strict=True)
            self.scoring_seconds += time.perf_counter() - started
            yield
        self._scores |= turn_scores(pairs, [scored[k] for k in range(len(pairs.pairs))])

    def _plan(self, rows: Sequence[Row], trajectories: Mapping[str, Trajectory]) -> UpdatePlan:
        """Micro-batches of some rows; their coefficients mean nothing."""
        loss_rows = {
            k: loss_row(row, trajectories[row.traj_uid], num_trajectories=1, factor=1.0) for k, row in enumerate(rows)
        }
        micro_batches = tuple(tuple(batch) for batch in self._packed([len(row.ids) for row in rows]))
        return UpdatePlan(tuple(rows), loss_rows, (micro_batches,), (0,) * len(rows))

    def _packed(self, lengths: Sequence[int]) -> list[list[int]]:
        return pack_rows(lengths, self._max_tokens, self.passes.padding_free)


_END = object()
