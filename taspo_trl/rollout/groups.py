"""One rollout batch: from dataset rows to scored groups, known on every process.

Each process plays its slice of the episodes. A group whose episodes all played here is scored and handed to the
guidance stage as soon as its last episode ends; groups that straddle processes are brought together first.
"""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from ..environments.workers import EnvironmentPool
from ..errors import RolloutError
from ..generation import Engine, SamplingSettings
from ..seeds import derive_seed
from ..types import Trajectory, TrajectoryGroup
from .advantages import centred_rewards
from .contexts import ChatRenderer
from .loop import RolloutSettings, play_episodes
from .rewards import UNRATED, RewardSettings, score_group
from .tasks import plan_groups


@dataclass(frozen=True)
class CollectedGroup:
    """A scored group, and what the user's reward functions logged about it."""

    group: TrajectoryGroup
    extra_logs: Mapping[str, list[Any]] = field(default_factory=dict)
    """Column -> one value for each trajectory (TRL's `log_extra`)."""
    extra_metrics: Mapping[str, list[float]] = field(default_factory=dict)
    """Name -> values (TRL's `log_metric`)."""
    centred: tuple[float, ...] = ()
    """r_i - mean of the group, from which A_i is scaled."""


class GroupSink(Protocol):
    """Whoever works on a group while others still play."""

    def submit(self, group: TrajectoryGroup, advantages: Sequence[float] | None = None) -> None:
        """Start on a finished, scored group; of its advantages only the signs are known yet."""

    def cancel(self) -> None:
        """Drop the batch's work: its rollout failed."""


class IdleWork(GroupSink, Protocol):
    """Work on finished groups that the thread of the rollout does where it would only wait."""

    def work(self) -> float:
        """As `meanwhile` of [`~taspo_trl.rollout.loop.play_episodes`]."""


@dataclass(frozen=True)
class Collector:
    """Plays rollout batches.

    Args:
        engine (`Engine`), pool (`EnvironmentPool`), renderer (`ChatRenderer`), rollout (`RolloutSettings`):
            As in [`~taspo_trl.rollout.loop.play_episodes`].
        rewards (`RewardSettings`):
            How r_i is made.
        guidance (`GroupSink`):
            Gets each finished group.
        num_generations (`int`):
            Episodes of a task.
        gather (`Callable`):
            All processes' lists, joined in the order of the processes.
        process_index (`int`, *optional*, defaults to `0`), num_processes (`int`, *optional*, defaults to `1`):
            Which slice of the episodes is played here.
        generating (`Callable`, *optional*):
            Gives a context manager that is entered around the episodes, on every process: an engine with a copy of the
            weights gets them, and rests afterwards.
    """

    engine: Engine
    pool: EnvironmentPool
    renderer: ChatRenderer
    rollout: RolloutSettings
    rewards: RewardSettings
    guidance: GroupSink
    num_generations: int
    gather: Callable[[list], list]
    process_index: int = 0
    num_processes: int = 1
    generating: Callable[[], AbstractContextManager[Any]] = nullcontext

    def play(
        self,
        rows: Sequence[Mapping[str, Any]],
        sampling: SamplingSettings,
        seed: int,
        rollout: int,
        reward_keywords: Mapping[str, Any] | None = None,
        on_episode_end: Callable[[Trajectory], None] | None = None,
        idle_work: IdleWork | None = None,
    ) -> list[CollectedGroup]:
        """Play one group for each row.

        Args:
            rows (`Sequence[Mapping[str, Any]]`):
                The tasks of the whole batch, the same on every process.
            sampling (`SamplingSettings`):
                How replies are sampled.
            seed (`int`), rollout (`int`):
                The run's seed and the number of this batch.
            reward_keywords (`Mapping[str, Any]`, *optional*):
                Further keywords of the user's reward functions, for example `trainer_state`.
            on_episode_end (`Callable`, *optional*):
                Called with each trajectory played here.
            idle_work ([`IdleWork`], *optional*):
                Gets each finished group after `guidance`, those that straddle processes included.

        Returns:
            `list[CollectedGroup]`: all groups in the order of `rows`, on every process.

        Raises:
            RolloutError: every episode of the batch ended through infrastructure. A batch that nobody rated goes on,
                as in TRL, with a warning.
        """
        specs = plan_groups(rows, self.num_generations, seed, rollout, f"r{rollout}", is_routed=self.pool.is_routed)
        start, stop = (len(specs) * k // self.num_processes for k in (self.process_index, self.process_index + 1))
        mine = specs[start:stop]
        finished: list[CollectedGroup] = []
        partial: list[TrajectoryGroup] = []

        instances: dict[str, Any] | None = {} if self.rewards.want_environments else None

        def finish(group: TrajectoryGroup, instances: Mapping[str, Any] | None = None) -> CollectedGroup:
            one = self._finish(group, reward_keywords, instances)
            if idle_work is not None:
                idle_work.submit(one.group, one.centred)
            return one

        def on_group_end(group: TrajectoryGroup) -> None:
            if len(group.trajectories) == self.num_generations:
                finished.append(finish(group, instances))
            else:
                partial.append(group)

        try:
            with self.generating():
                self.engine.begin(sampling, derive_seed("rollout", seed, rollout, self.process_index))
                play_episodes(
                    mine,
                    engine=self.engine,
                    pool=self.pool,
                    renderer=self.renderer,
                    settings=self.rollout,
                    on_group_end=on_group_end,
                    on_episode_end=on_episode_end,
                    instances=instances,
                    meanwhile=None if idle_work is None else idle_work.work,
                )
            if self.num_processes > 1:
                # Who is done first would only wait for the others; but groups that straddle come together before it:
                # their guidance takes time, and begins then.
                first, last = (None, idle_work) if self._some_straddle(len(specs)) else (idle_work, None)
                _work_off(first)
                finished.extend(finish(group) for group in self._my_straddling(self.gather(partial)))
                _work_off(last)
            order = {group_id: k for k, group_id in enumerate(dict.fromkeys(spec.group_id for spec in specs))}
            collected = sorted(self.gather(finished), key=lambda one: order[one.group.group_id])
            _raise_if_nothing_usable(collected)
        except BaseException:
            self.guidance.cancel()
            if idle_work is not None:
                idle_work.cancel()
            raise
        return collected

    def _finish(
        self,
        group: TrajectoryGroup,
        keywords: Mapping[str, Any] | None,
        instances: Mapping[str, Any] | None = None,
    ) -> CollectedGroup:
        logs: dict[str, list[Any]] = {}
        metrics: dict[str, list[float]] = defaultdict(list)
        extra = {
            **self.rewards.extra,
            **(keywords or {}),
            "log_extra": lambda column, values: logs.setdefault(column, []).extend(values),
            "log_metric": lambda name, value: metrics[name].append(value),
        }
        scored = score_group(group, replace(self.rewards, extra=extra), instances)
        centred = centred_rewards([t.reward if t.is_usable else None for t in scored.trajectories])
        self.guidance.submit(scored, centred)
        return CollectedGroup(scored, logs, dict(metrics), tuple(centred))

    def _some_straddle(self, num_episodes: int) -> bool:
        """Whether a process begins inside a group."""
        starts = (num_episodes * k // self.num_processes for k in range(1, self.num_processes))
        return any(start % self.num_generations for start in starts)

    def _my_straddling(self, parts: list[TrajectoryGroup]) -> list[TrajectoryGroup]:
        """Straddling groups put together, dealt to the processes in turn."""
        members: dict[str, list[Trajectory]] = defaultdict(list)
        for part in parts:
            members[part.group_id].extend(part.trajectories)
        groups = [
            TrajectoryGroup(group_id, tuple(sorted(members[group_id], key=lambda member: member.generation_idx)))
            for group_id in sorted(members)
        ]
        return groups[self.process_index :: self.num_processes]


def _work_off(idle_work: IdleWork | None) -> None:
    """Do what can be done now; what waits for guidance is left for later."""
    while idle_work is not None and idle_work.work() == 0:
        pass


def _raise_if_nothing_usable(collected: Sequence[CollectedGroup]) -> None:
    trajectories = [trajectory for one in collected for trajectory in one.group.trajectories]
    if any(trajectory.is_usable for trajectory in trajectories):
        return
    if all(trajectory.error.startswith(UNRATED) for trajectory in trajectories):
        warnings.warn(
            f"No reward function rated any of the {len(trajectories)} episodes of this rollout batch, so it teaches "
            "nothing. Give None only where a function does not apply, and a low number for what went badly.",
            UserWarning,
            stacklevel=2,
        )
        return
    causes = Counter(f"{t.stop_reason.value}: {t.error}" if t.error else t.stop_reason.value for t in trajectories)
    listed = "\n".join(f"  {count} x {cause[:500]}" for cause, count in causes.most_common(5))
    raise RolloutError(
        f"All {len(trajectories)} episodes of the rollout batch failed; nothing is left to train on. Causes:\n{listed}"
    )
