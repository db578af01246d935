"""One rollout batch, whole: played, guided, scored, weighed, and dealt into the micro-batches of its updates."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..analyzer.base import AnalyzerReply, AnalyzerRequest
from ..credit.taspo import assign_credit
from ..generation import SamplingSettings
from ..guidance.stage import GuidanceBatch, GuidanceStage
from ..loss.batches import LossRow, with_credit
from ..loss.importance import ImportanceSettings, corrected_rows, correction_metrics, correction_sums
from ..loss.plan import UpdatePlan, plan_update
from ..records import TrajectoryRecord, write_records
from ..reporting.metrics import rollout_report
from ..rollout.advantages import group_advantages
from ..rollout.groups import CollectedGroup, Collector
from ..rollout.tasks import group_id_of
from ..scoring.pairs import plan_pairs, scores_of, turn_scores
from ..seeds import derive_seed
from ..types import Credit, Trajectory
from .checkpoint import Buffer
from .passes import PolicyPasses


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class UpdateLayout:
    """How a rollout batch is spread over updates.

    Args:
        num_steps (`int`), num_micro_steps (`int`):
            Optimizer steps that one rollout batch feeds, and micro-steps that it feeds in each.
        share (`float`, *optional*, defaults to `1.0`):
            The batch's share of an optimizer step, when several rollout batches feed one step.
        is_off_policy (`bool`, *optional*, defaults to `False`):
            Whether the policy changes while the batch is used, so that log pi_old is needed.
    """

    num_steps: int
    num_micro_steps: int
    share: float = 1.0
    is_off_policy: bool = False


@dataclass(frozen=True)
class ExperienceSettings:
    """What decides weights and updates, beside the stages themselves.

    Args:
        credit (`Mapping[str, Any]`):
            Keywords of [`~taspo_trl.credit.assign_credit`].
        scale_rewards (`str`), mask_truncated (`bool`):
            TRL's fields.
        has_reference (`bool`), has_entropy_bonus (`bool`):
            Whether beta and the entropy coefficient are not 0: every trajectory then moves the policy.
        max_tokens (`int`):
            Bound on rows x longest row of a micro-batch.
        model_window (`int`, *optional*):
            Positions of the model.
        correction (`ImportanceSettings`, *optional*):
            Correct for an engine that samples from other probabilities than are scored; None = no correction.
        records_folder (`Path`, *optional*):
            Where trajectories are written; None writes none.
        records_with_prompt_ids (`bool`):
            See [`~taspo_trl.records.write_records`].
    """

    credit: Mapping[str, Any]
    max_tokens: int
    scale_rewards: str = "group"
    mask_truncated: bool = False
    has_reference: bool = False
    has_entropy_bonus: bool = False
    model_window: int | None = None
    correction: ImportanceSettings | None = None
    records_folder: Path | None = None
    records_with_prompt_ids: bool = False


@dataclass(frozen=True)
class Experience:
    """What a rollout batch came to."""

    micro_batches: Buffer
    """For each micro-step this process's micro-batches of rows."""
    collected: list[CollectedGroup]
    advantages: list[float]
    """A_i in the order of the groups' trajectories."""
    metrics: dict[str, float]
    records: list[TrajectoryRecord]
    """The trajectories with their guidance and weights, in the same order."""


@dataclass
class ExperienceMaker:
    """Runs the stages of a rollout batch in their order. Every process calls it at the same time."""

    collector: Collector
    guidance: GuidanceStage
    passes: PolicyPasses
    settings: ExperienceSettings
    calls: list[tuple[AnalyzerRequest, AnalyzerReply]] = field(default_factory=list)
    """Analyzer calls since the last batch; the construction appends to it."""

    def make(
        self,
        rows: Sequence[Mapping[str, Any]],
        *,
        sampling: SamplingSettings,
        seed: int,
        rollout: int,
        step: int,
        layout: UpdateLayout,
        num_steps: int = 0,
        reward_keywords: Mapping[str, Any] | None = None,
        on_episode_end: Callable[[Trajectory], None] | None = None,
    ) -> Experience:
        """Play one group for each row and prepare the updates.

        Args:
            rows (`Sequence[Mapping[str, Any]]`):
                The tasks of the whole batch.
            sampling, seed, rollout, reward_keywords, on_episode_end:
                As in [`~taspo_trl.rollout.groups.Collector.play`].
            step (`int`):
                `global_step`, for the records.
            layout (`UpdateLayout`):
                Which updates the batch feeds.
            num_steps (`int`, *optional*, defaults to `0`):
                Updates of the whole run, for schedules; 0 = unknown.
        """
        seconds: dict[str, float] = {}
        played: list[Trajectory] = []

        def on_end(trajectory: Trajectory) -> None:
            played.append(trajectory)
            if on_episode_end is not None:
                on_episode_end(trajectory)

        try:
            with _timed(seconds, "time/rollout"):
                collected = self.collector.play(rows, sampling, seed, rollout, reward_keywords, on_end)
        except BaseException:
            self._keep_interrupted(played, rollout, step)
            raise
        trajectories = [member for one in collected for member in one.group.trajectories]
        rewards = [[t.reward if t.is_usable else None for t in one.group.trajectories] for one in collected]
        advantages_G, flat_G = group_advantages(rewards, self.settings.scale_rewards)
        advantages = [advantage for group in advantages_G for advantage in group]
        guided: GuidanceBatch | None = None
        credits: dict[str, Credit] = {}
        try:
            plan = self._plan(trajectories, advantages, derive_seed("deal", seed, rollout), layout)
            # What needs no guidance is computed while the analyzer still works.
            with _timed(seconds, "time/logps"):
                loss_rows = self.passes.with_logps(
                    plan,
                    old=layout.is_off_policy or self.settings.correction is not None,
                    reference=self.settings.has_reference,
                )
                loss_rows, sampling_report = self._correct(plan, loss_rows, trajectories)
            with _timed(seconds, "time/analyzer_visible"):
                guided = self._collect_guidance()
            with _timed(seconds, "time/scoring"):
                credits = self._credit(trajectories, advantages, plan, guided)
        except BaseException:
            self.guidance.cancel()
            raise
        finally:
            # Rollouts and analyzer answers are paid for: they are written even if what follows fails.
            records = self._records(collected, guided, credits, rollout, step)
            self._write_records(records, rollout)
        calls, self.calls[:] = self.collector.gather(list(self.calls)), []
        report = rollout_report(collected, advantages, flat_G, guided, list(credits.values()), calls)
        abandoned = sum(self.collector.gather([self.collector.pool.num_abandoned]))
        metrics = report | sampling_report | seconds | {"environments/abandoned": float(abandoned)}
        return Experience(_weighted(plan, loss_rows, credits), collected, advantages, metrics, records)

    def _plan(
        self, trajectories: Sequence[Trajectory], advantages: Sequence[float], seed: int, layout: UpdateLayout
    ) -> UpdatePlan:
        return plan_update(
            trajectories,
            advantages,
            num_steps=layout.num_steps,
            num_micro_steps=layout.num_micro_steps,
            share=layout.share,
            max_tokens=self.settings.max_tokens,
            seed=seed,
            all_contribute=self.settings.has_reference or self.settings.has_entropy_bonus,
            mask_truncated=self.settings.mask_truncated,
            process_index=self.collector.process_index,
            num_processes=self.collector.num_processes,
        )

    def _correct(
        self, plan: UpdatePlan, loss_rows: dict[int, LossRow], trajectories: Sequence[Trajectory]
    ) -> tuple[dict[int, LossRow], dict[str, float]]:
        """The rows with their importance ratios, and TRL's metrics of them over all processes."""
        settings = self.settings.correction
        if settings is None:
            return loss_rows, {}
        by_uid = {t.uid: t for t in trajectories}
        corrected = corrected_rows(loss_rows, plan.rows, by_uid, settings)
        sums = correction_sums(corrected, plan.rows, by_uid, settings)
        return corrected, correction_metrics(self.collector.gather([sums]))

    def _collect_guidance(self) -> GuidanceBatch:
        """The guidance of all groups, known on every process."""
        shared = self.collector.gather([self.guidance.collect()])
        return GuidanceBatch(
            guidance={uid: one for part in shared for uid, one in part.guidance.items()},
            extractions={group_id: one for part in shared for group_id, one in part.extractions.items()},
            work_seconds=max(part.work_seconds for part in shared),
            visible_seconds=max(part.visible_seconds for part in shared),
        )

    def _credit(
        self,
        trajectories: Sequence[Trajectory],
        advantages: Sequence[float],
        plan: UpdatePlan,
        guided: GuidanceBatch,
    ) -> dict[str, Credit]:
        """Shifts, support and weights of every trajectory of the global batch."""
        by_uid = {t.uid: t for t in trajectories}
        pairs = plan_pairs(plan.rows, by_uid, guided.guidance, self.settings.model_window)
        scores = turn_scores(pairs, self.passes.score(pairs.pairs), by_uid)
        return {
            t.uid: assign_credit(
                t.uid,
                advantage,
                scores_of(t, scores) if guided.guidance[t.uid] else (),
                [turn.action_mask for turn in t.turns],
                no_guidance="" if guided.guidance[t.uid] else guided.guidance[t.uid].abstain_reason or "unexplained",
                **self.settings.credit,
            )
            for t, advantage in zip(trajectories, advantages, strict=True)
        }

    @staticmethod
    def _records(
        collected: Sequence[CollectedGroup],
        guided: GuidanceBatch | None,
        credits: Mapping[str, Credit],
        rollout: int,
        step: int,
    ) -> list[TrajectoryRecord]:
        return [
            TrajectoryRecord(
                trajectory=t,
                group_id=one.group.group_id,
                rollout=rollout,
                step=step,
                extraction=guided.extractions.get(one.group.group_id) if guided else None,
                guidance=guided.guidance.get(t.uid) if guided else None,
                credit=credits.get(t.uid),
            )
            for one in collected
            for t in one.group.trajectories
        ]

    def _write_records(self, records: Sequence[TrajectoryRecord], rollout: int) -> None:
        if self.settings.records_folder is None or self.collector.process_index != 0:
            return
        path = self.settings.records_folder / f"rollout_{rollout:06d}.jsonl"
        write_records(path, records, with_prompt_ids=self.settings.records_with_prompt_ids)

    def _keep_interrupted(self, played: Sequence[Trajectory], rollout: int, step: int) -> None:
        """Write the episodes of a batch that broke off (an interrupt, a bug in a reward function): they are paid for.

        Their file ends in `.partial`: readers of the folder leave it alone, and it can be read by its name.
        """
        if self.settings.records_folder is None or not played:
            return
        name = f"rollout_{rollout:06d}-process{self.collector.process_index}.jsonl.partial"
        records = [TrajectoryRecord(t, group_id_of(t.uid), rollout=rollout, step=step) for t in played]
        path = self.settings.records_folder / name
        write_records(path, records, with_prompt_ids=self.settings.records_with_prompt_ids)
        logger.warning("The rollout batch broke off; its %d finished episodes are in %s.", len(played), path)


def _weighted(plan: UpdatePlan, loss_rows: Mapping[int, LossRow], credits: Mapping[str, Credit]) -> Buffer:
    """The micro-batches with the weights applied."""
    return plan.batches(
        {k: with_credit(row, plan.rows[k], credits[plan.rows[k].traj_uid]) for k, row in loss_rows.items()}
    )


@contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    seconds[name] = time.perf_counter() - started
