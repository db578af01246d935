"""One rollout batch, whole: played, guided, scored, weighed, and dealt into the micro-batches of its updates."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from ..credit.base import Batch
from ..credit.states import state_key
from ..files import spared, write_text
from ..generation import SamplingSettings
from ..guidance.stage import GuidanceBatch, GuidanceStage
from ..loss.batches import LossRow, with_credit
from ..loss.importance import ImportanceSettings, corrected_rows, correction_metrics, correction_sums
from ..loss.plan import UpdatePlan, plan_update
from ..methods import Assigned, Recipe
from ..methods.facts import facts_of
from ..records import METHOD_FILE, TrajectoryRecord, write_records
from ..redaction import without_secrets
from ..reporting.idle import without_idle
from ..reporting.metrics import rollout_report
from ..rollout.advantages import scaled_advantages
from ..rollout.groups import CollectedGroup, Collector
from ..rollout.tasks import group_id_of
from ..rows import Row
from ..scoring.pairs import PairPlan, ScoreScope, TurnKey, plan_pairs, turn_scores
from ..scoring.teachers import TeacherScorer
from ..seeds import derive_seed
from ..types import Credit, Guidance, ReplyScore, Trajectory, TrajectoryGroup
from .alternatives import AlternativeScoring
from .arrival import Arrival
from .beside import GroupScoring
from .checkpoint import Buffer
from .distilling import Distilling
from .late_credit import LateCredit
from .passes import PolicyPasses
from .riding import Ride
from .simulator import Simulator


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class UpdateLayout:
    """How a rollout batch is spread over updates.

    Args:
        num_steps (`int`), num_micro_steps (`int`):
            Optimizer steps that one rollout batch feeds, and micro-steps that it feeds in each.
        num_iterations (`int`, *optional*, defaults to `1`):
            How often each of them is made.
        is_off_policy (`bool`, *optional*, defaults to `False`):
            Whether the policy changes while the batch is used, so that log pi_old is needed.
    """

    num_steps: int
    num_micro_steps: int
    num_iterations: int = 1
    is_off_policy: bool = False

    def updates(self, step: int) -> range:
        """n of the updates that a batch feeds which is made after `step` of them."""
        return range(step, step + self.num_steps * self.num_iterations)


@dataclass(frozen=True)
class ExperienceSettings:
    """What decides weights and updates, beside the stages themselves.

    Args:
        recipe (`Recipe`):
            The method: what is scored, and how credit is made of it.
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
        waits_for_guidance (`bool`):
            Whether the pass of log pi_old waits for guidance that is late. What is scored on its way then never
            depends on how fast the analyzer answers.
        scores_during_rollout (`bool`):
            Whether finished groups are scored while others still play, see [`~taspo_trl.training.beside`].
        scores_in_update (`bool`):
            Whether the forward of a single update may be the plain branch, see [`~taspo_trl.training.late_credit`].
    """

    recipe: Recipe
    max_tokens: int
    scale_rewards: str = "group"
    mask_truncated: bool = False
    has_reference: bool = False
    has_entropy_bonus: bool = False
    model_window: int | None = None
    correction: ImportanceSettings | None = None
    records_folder: Path | None = None
    records_with_prompt_ids: bool = False
    waits_for_guidance: bool = False
    scores_during_rollout: bool = False
    scores_in_update: bool = False

    @property
    def moves_all(self) -> bool:
        """Whether every usable trajectory has its rows in the update; else those alone whose advantage is not 0."""
        rule = self.recipe
        is_regularized = self.has_reference or self.has_entropy_bonus
        return is_regularized or rule.needs.flat_groups or rule.distill is not None


@dataclass(frozen=True)
class Played:
    """A rollout batch and what was made for it, before its credit.

    Args:
        collected (`list[CollectedGroup]`), guided (`GuidanceBatch`):
            Its groups and their guidance.
        batch (`Batch`):
            As the method sees it, with the scores that are known.
        flat_G (`list[bool]`):
            Which groups have no advantage.
        rollout (`int`), step (`int`), num_steps (`int`):
            As in [`ExperienceMaker.make`].
        report (`dict[str, float]`):
            Numbers of the stages so far.
    """

    collected: list[CollectedGroup]
    guided: GuidanceBatch
    batch: Batch
    flat_G: list[bool]
    rollout: int
    step: int
    num_steps: int
    report: dict[str, float]


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
    late: LateCredit | None = None
    """Of what the update has to find out itself. [`ExperienceMaker.completed`] must follow the update then: numbers
    and records lack it."""
    played: Played | None = None


@dataclass
class ExperienceMaker:
    """Runs the stages of a rollout batch in their order. Every process calls it at the same time."""

    collector: Collector
    guidance: GuidanceStage
    passes: PolicyPasses
    settings: ExperienceSettings
    teacher: TeacherScorer | None = None
    """Who plays the guided branch, where it is not the policy itself."""
    distilling: Distilling | None = None
    """Where the method has a distillation term."""
    simulator: Simulator | None = None
    """Where the method asks for what only the simulator knows."""
    alternatives: AlternativeScoring | None = None
    """Where the method compares actions with what else could have been done."""
    _has_told_method: bool = field(default=False, init=False)

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
        needs_old = layout.is_off_policy or self.settings.correction is not None
        empty = self._batch([], [], step, num_steps)  # schedules look at nothing but the steps
        is_read = self.settings.recipe.reads_guidance(empty, layout.updates(step))
        self.guidance.unread = "" if is_read else "zero_share"
        beside = self._beside(needs_old, empty) if self.settings.scores_during_rollout else None

        def on_end(trajectory: Trajectory) -> None:
            played.append(trajectory)
            if on_episode_end is not None:
                on_episode_end(trajectory)

        try:
            with _timed(seconds, "time/rollout"):
                collected = self.collector.play(rows, sampling, seed, rollout, reward_keywords, on_end, beside)
        except BaseException:
            self._keep_interrupted(played, rollout, step)
            raise
        trajectories = [member for one in collected for member in one.group.trajectories]
        rewards = [[t.reward if t.is_usable else None for t in one.group.trajectories] for one in collected]
        centred_G = [one.centred for one in collected]
        advantages_G = scaled_advantages(centred_G, rewards, self.settings.scale_rewards)
        flat_G = [not any(centred) for centred in centred_G]
        advantages = [advantage for group in advantages_G for advantage in group]
        arrival = Arrival(self.guidance, self.collector.gather)
        credits: Mapping[str, Credit] = {}
        late: LateCredit | None = None
        try:
            batch = self._batch([one.group for one in collected], advantages, step, num_steps)
            if self.simulator is not None:
                with _timed(seconds, "time/simulator"):
                    simulator_seed = derive_seed("simulator", seed, rollout)
                    batch, costs = self.simulator.told(batch, self.collector, sampling, simulator_seed)
                    seconds |= costs
            is_late = self._scores_in_update(layout, needs_old, empty)
            late_uids = _with_words(arrival.wait()) if is_late else set()
            plan = self._plan(batch, derive_seed("deal", seed, rollout), layout, late_uids)
            waiting: PairPlan | None = None
            if beside is None:
                loss_rows, scores, waiting = self._after_rollout(batch, plan, arrival, needs_old, seconds)
            else:
                loss_rows, scores = self._rest_of(beside, batch, plan, arrival, seconds)
            guided = arrival.wait()
            seconds["time/analyzer_visible"] = arrival.seconds
            with _timed(seconds, "time/logps"):
                loss_rows, sampling_report = self._correct(plan, loss_rows, trajectories)
            if self.alternatives is not None:
                with _timed(seconds, "time/alternatives"):
                    others_seed = derive_seed("alternatives", seed, rollout)
                    others, costs = self.alternatives.scored(
                        batch, guided.guidance, self.collector, sampling, others_seed
                    )
                    batch = replace(batch, alternatives=others)
                    seconds |= costs
            with _timed(seconds, "time/scoring"):
                unguided = {
                    uid: one.abstain_reason or "unexplained" for uid, one in guided.guidance.items() if not one
                }
                batch = replace(batch, scores=scores, unguided=unguided)
                assigned = self.settings.recipe.assign(batch)
                if waiting is not None:
                    weigh = partial(self.settings.recipe.weighed_part, batch, assigned.advantages)
                    late = LateCredit(plan, waiting, self.passes, weigh, _by_uid(batch, assigned))
                not_yet = late.uids if late is not None else set()
                credits = {uid: credit for uid, credit in assigned.credits.items() if uid not in not_yet}
                if self.distilling is not None:
                    by_uid = {t.uid: t for t in trajectories}
                    loss_rows, coefficients = self.distilling.rows(
                        plan, loss_rows, by_uid, guided.guidance, layout.updates(step)
                    )
                    credits = _with_coefficients(credits, trajectories, coefficients)
        except BaseException:
            self.guidance.cancel()
            raise
        finally:
            # Rollouts and analyzer answers are paid for: they are written even if what follows fails.
            records = self._records(collected, arrival.taken, credits, rollout, step)
            self._write_records(records, rollout, num_steps)
        abandoned = sum(self.collector.gather([self.collector.pool.num_abandoned]))
        so_far = {**sampling_report, **seconds, "environments/abandoned": float(abandoned)}
        before_credit = Played(collected, guided, batch, flat_G, rollout, step, num_steps, so_far)
        micro_batches = _weighted(plan, loss_rows, batch, assigned)
        report = self._report(before_credit, assigned, credits) if late is None else {}
        return Experience(micro_batches, collected, advantages, report, records, late, before_credit)

    def completed(self, experience: Experience) -> Experience:
        """A rollout batch after its update, which found the credit that was missing.

        Raises:
            InvariantError: the update used another credit than the whole batch has; a bug of the rule.
        """
        late, played = experience.late, experience.played
        if late is None or played is None:
            return experience
        scores = {**played.batch.scores, **late.scores(self.collector.gather)}
        batch = replace(played.batch, scores=scores)
        assigned = self.settings.recipe.assign(batch)
        late.check(_by_uid(batch, assigned), self.collector.gather)
        records = self._records(played.collected, played.guided, assigned.credits, played.rollout, played.step)
        self._write_records(records, played.rollout, played.num_steps)
        scoring = played.report["time/scoring"] + late.seconds
        played = replace(played, batch=batch, report={**played.report, "time/scoring": scoring})
        report = self._report(played, assigned, assigned.credits)
        return replace(experience, metrics=report, records=records, late=None, played=None)

    def _report(self, played: Played, assigned: Assigned, credits: Mapping[str, Credit]) -> dict[str, float]:
        """All numbers of a rollout batch whose credit is known."""
        advantages, guided = list(played.batch.outcome), played.guided
        report = rollout_report(
            played.collected, advantages, played.flat_G, guided, list(credits.values()), guided.calls
        )
        return without_idle({**report, **assigned.weighed.metrics, **played.report}, self.settings.recipe)

    def _scores_in_update(self, layout: UpdateLayout, needs_old: bool, empty: Batch) -> bool:
        """Whether the update's own forward may be the plain branch: it is the first that runs the rows, and runs them
        once."""
        is_first = not needs_old and layout.num_iterations == 1
        return self.settings.scores_in_update and is_first and self.settings.recipe.reads_scores(empty)

    def _batch(
        self, groups: Sequence[TrajectoryGroup], advantages: Sequence[float], step: int, num_steps: int
    ) -> Batch:
        recipe = self.settings.recipe
        key = None if recipe.knows_world else state_key(recipe.state_key)
        return Batch(tuple(groups), tuple(advantages), step=step, num_steps=num_steps, state_key=key)

    def _beside(self, needs_old: bool, empty: Batch) -> GroupScoring:
        """What scores the groups of one rollout batch while others play."""

        def moves(group: TrajectoryGroup, centred: Sequence[float]) -> list[list[bool]]:
            if self.simulator is not None:  # it tells what the rule needs when all have played
                return [[True] * len(t.turns) for t in group.trajectories]
            return self._moves(replace(empty, groups=(group,), outcome=tuple(centred)))

        return GroupScoring(
            self.passes.alone,
            self.guidance,
            moves,
            self._pairs if self.settings.recipe.reads_scores(empty) else None,
            old=needs_old,
            reference=self.settings.has_reference,
            teacher=self.teacher,
        )

    def _rest_of(
        self, beside: GroupScoring, batch: Batch, plan: UpdatePlan, arrival: Arrival, seconds: dict[str, float]
    ) -> tuple[dict[int, LossRow], dict[TurnKey, ReplyScore]]:
        """This process's rows and all scores, where groups were computed as they came in."""
        beside.drain(arrival.pause)
        guidance = arrival.wait().guidance
        place = (self.collector.process_index, self.collector.num_processes)
        by_uid = {t.uid: t for t in batch.trajectories}
        found = beside.finish(plan, by_uid, guidance, self.collector.gather, place)
        seconds |= {"time/logps": beside.logps_seconds, "time/scoring": beside.scoring_seconds}
        seconds["time/beside_rollout"] = beside.hidden_seconds
        return found

    def _after_rollout(
        self, batch: Batch, plan: UpdatePlan, arrival: Arrival, needs_old: bool, seconds: dict[str, float]
    ) -> tuple[dict[int, LossRow], dict[TurnKey, ReplyScore], PairPlan | None]:
        """The same, computed at once, what needs no guidance while the analyzer still works; and what is left to the
        update."""
        ride, waited = self._ride(batch, plan, arrival) if needs_old else None, arrival.seconds
        with _timed(seconds, "time/logps"):
            rows = self.passes.with_logps(plan, old=needs_old, reference=self.settings.has_reference, ride=ride)
        on_the_way = ride.seconds if ride else 0.0
        seconds["time/logps"] -= arrival.seconds - waited + on_the_way
        guided = arrival.wait()
        with _timed(seconds, "time/scoring"):
            scores, waiting = self._scores(batch, plan, guided, ride)
        seconds["time/scoring"] += on_the_way
        return rows, scores, waiting

    def _plan(self, batch: Batch, seed: int, layout: UpdateLayout, whole: Collection[str]) -> UpdatePlan:
        return plan_update(
            batch.trajectories,
            self._moves(batch),
            padding_free=self.passes.padding_free,
            whole=whole,
            num_steps=layout.num_steps,
            num_micro_steps=layout.num_micro_steps,
            max_tokens=self.settings.max_tokens,
            seed=seed,
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

    def _moves(self, batch: Batch) -> list[list[bool]]:
        """Which turns can carry a loss. Rows are planned before anything is scored: what a rule makes of the scores is
        not known yet, only whether it moves trajectories without an advantage."""
        if self.settings.moves_all:
            return [[True] * len(t.turns) for t in batch.trajectories]
        return [[a != 0 for a in row] for row in self.settings.recipe.advantage(batch)]

    def _ride(self, batch: Batch, plan: UpdatePlan, arrival: Arrival) -> Ride | None:
        """Scoring on the way of log pi_old, where the policy itself plays the guided branch."""
        if self.teacher is not None or not self.settings.recipe.reads_scores(batch):
            return None

        def ask() -> PairPlan | None:
            guided = arrival.wait() if self.settings.waits_for_guidance else arrival.if_done()
            by_uid = {t.uid: t for t in batch.trajectories}
            return None if guided is None else self._pairs(plan.rows, by_uid, guided.guidance)

        return Ride(plan, arrival.targets(), ask, self.collector.gather, self.passes.max_tokens)

    def _pairs(
        self, rows: Sequence[Row], trajectories: Mapping[str, Trajectory], guidance: Mapping[str, Guidance]
    ) -> PairPlan:
        needs = self.settings.recipe.rule_needs
        scope = ScoreScope(("",) if needs.plain_only else needs.blocks, needs.scope)
        return plan_pairs(rows, trajectories, guidance, self.settings.model_window, scope)

    def _scores(
        self, batch: Batch, plan: UpdatePlan, guided: GuidanceBatch, ride: Ride | None
    ) -> tuple[dict[TurnKey, ReplyScore], PairPlan | None]:
        """The log-probabilities that the method needs, and the pairs that the update is to score."""
        if not self.settings.recipe.reads_scores(batch):
            return {}, None
        pairs = self._pairs(plan.rows, {t.uid: t for t in batch.trajectories}, guided.guidance)
        late = {k for k, row in enumerate(pairs.rows) if plan.rows[row].traj_uid in plan.whole}
        logps = {} if ride is None else ride.scored()
        rest = [k for k in range(len(pairs.pairs)) if k not in logps and k not in late]
        logps |= zip(rest, self.passes.score([pairs.pairs[k] for k in rest], self.teacher), strict=True)
        known = turn_scores(pairs.part(logps), [logps[k] for k in sorted(logps)])
        return known, pairs.part(late) if late else None

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

    def _write_records(self, records: Sequence[TrajectoryRecord], rollout: int, num_steps: int) -> None:
        if self.settings.records_folder is None or self.collector.process_index != 0:
            return
        if not self._has_told_method:
            path = self.settings.records_folder / METHOD_FILE
            with spared("descriptions of the method", path):
                facts = without_secrets(facts_of(self.settings.recipe, num_steps))
                write_text(path, json.dumps(facts, indent=1) + "\n")
                self._has_told_method = True
        path = self.settings.records_folder / f"rollout_{rollout:06d}.jsonl"
        with spared("records of episodes", path):
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
        with spared("records of episodes", path):
            write_records(path, records, with_prompt_ids=self.settings.records_with_prompt_ids)
            logger.warning("The rollout batch broke off; its %d finished episodes are in %s.", len(played), path)


def _weighted(plan: UpdatePlan, loss_rows: Mapping[int, LossRow], batch: Batch, assigned: Assigned) -> Buffer:
    """The micro-batches with the credit applied."""
    tokens = _by_uid(batch, assigned)
    return plan.batches(
        {k: with_credit(row, plan.rows[k], tokens[plan.rows[k].traj_uid]) for k, row in loss_rows.items()}
    )


def _by_uid(batch: Batch, assigned: Assigned) -> dict[str, list[list[float]]]:
    """A~_itk of each trajectory."""
    return {t.uid: row for t, row in zip(batch.trajectories, assigned.weighed.advantages, strict=True)}


def _with_words(guided: GuidanceBatch) -> set[str]:
    """Uids of the trajectories with a block that is not empty.

    Empty ones shift nothing. Their rows stay where plain GRPO has them: an update with nothing else is then GRPO's to
    the last bit.
    """
    return {
        uid for uid, one in guided.guidance.items() if any(ids for block in one.blocks.values() for ids in block.turns)
    }


def _with_coefficients(
    credits: Mapping[str, Credit], trajectories: Sequence[Trajectory], coefficients: Mapping[TurnKey, float]
) -> dict[str, Credit]:
    """The credit with m_k of each turn, for the records."""
    return {
        t.uid: replace(
            credits[t.uid], distill=tuple(coefficients.get((t.uid, turn), 0.0) for turn in range(len(t.turns)))
        )
        for t in trajectories
        if t.uid in credits
    }


@contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - started
