"""The teacher's scores of a rollout batch, at the rows that learn from them: what a distillation term needs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..loss.batches import LossRow
from ..loss.distillation.base import DistillTerm
from ..loss.distillation.coefficients import distill_coefficients
from ..loss.distillation.compose import row_scores
from ..loss.plan import UpdatePlan
from ..rows import Row
from ..scoring.paired import PairedRow
from ..scoring.pairs import PairPlan, ScoreScope, TurnKey, plan_pairs
from ..scoring.teachers import TeacherScorer, score_for_term
from ..scoring.whole import TokenScores, WholeRow, spliced_row
from ..types import FinishReason, Guidance, Trajectory


@dataclass(frozen=True)
class Distilling:
    """Asks the teacher, and lays its answers beside the loss tokens.

    Args:
        term (`DistillTerm`):
            What is learned.
        teacher (`TeacherScorer`), rollout (`TeacherScorer`):
            Who plays the guided branch, and pi_old.
        gather (`Callable`):
            All processes' lists, joined in the order of the processes.
        mask_truncated (`bool`):
            TRL's `mask_truncated_completions`.
        model_window (`int`, *optional*):
            Positions of the model.
    """

    term: DistillTerm
    teacher: TeacherScorer
    rollout: TeacherScorer
    gather: Callable[[list], list]
    mask_truncated: bool = False
    model_window: int | None = None

    def rows(
        self,
        plan: UpdatePlan,
        loss_rows: Mapping[int, LossRow],
        trajectories: Mapping[str, Trajectory],
        guidance: Mapping[str, Guidance],
        updates: Iterable[int],
    ) -> tuple[dict[int, LossRow], dict[TurnKey, float]]:
        """The rows of this process with the teacher's columns and m_k; and m_k by turn, of the whole batch.

        Where the term's share is 0 in all updates the teacher is not asked, and every m_k is 0.

        Args:
            plan (`UpdatePlan`), loss_rows (`Mapping[int, LossRow]`):
                The planned batch, and this process's rows of it.
            trajectories (`Mapping[str, Trajectory]`), guidance (`Mapping[str, Guidance]`):
                By uid.
            updates (`Iterable[int]`):
                n of the updates that the batch feeds.
        """
        if all(self.term.share(n) == 0 for n in updates):
            return dict(loss_rows), {}
        needs = self.term.needs
        scope = ScoreScope(("",) if needs.plain_only else needs.blocks, "reply")
        mine = sorted(loss_rows)
        pairs = plan_pairs([plan.rows[k] for k in mine], trajectories, guidance, self.model_window, scope)
        scores, failed = self._scored(pairs)
        everywhere = plan_pairs(plan.rows, trajectories, guidance, self.model_window, scope)
        scored = {key for turns in everywhere.turns for key, _ in turns} - set(self.gather(sorted(failed)))
        coefficients = distill_coefficients(
            plan.rows,
            plan.steps,
            scored,
            reduction=self.term.reduction,
            masked=self._masked(plan, trajectories) if self.mask_truncated else (),
        )
        made = {}
        for k in mine:
            row = plan.rows[k]
            answered = {turn.turn_idx: scores.get((row.traj_uid, turn.turn_idx)) for turn in row.turns}
            turns = {turn_idx: one for turn_idx, one in answered.items() if one is not None}
            made[k] = replace(loss_rows[k], distill_coefficients=coefficients[k], teacher=row_scores(row, turns))
        of_turns = {
            (row.traj_uid, turn.turn_idx): coefficients[k][start]
            for k, row in enumerate(plan.rows)
            for turn, start in zip(row.turns, _starts(row), strict=True)
            if turn.length
        }
        return made, of_turns

    def _scored(self, pairs: PairPlan) -> tuple[dict[TurnKey, TokenScores], set[TurnKey]]:
        """The teacher's scores of each turn, and the turns for which it has none that can be used."""
        needs = self.term.needs
        plain = [WholeRow(pair.ids, pair.positions) for pair in pairs.pairs]
        guided = [_guided(pair) for pair in pairs.pairs]
        answers = score_for_term(
            self.teacher,
            self.rollout,
            guided,
            plain,
            vocabulary=needs.vocabulary,
            top_of=needs.top_of,
            temperature=needs.temperature if needs.vocabulary else None,
            num_batches=(self._most(self.teacher, guided), self._most(self.rollout, plain)),
        )
        scores: dict[TurnKey, TokenScores] = {}
        failed: set[TurnKey] = set()
        for members, answer in zip(pairs.turns, answers, strict=True):
            start = 0
            for key, places in members:
                one = answer.at(slice(start, start + len(places)))
                start += len(places)
                if answer.reason or not all(map(math.isfinite, one.logps.tolist())):
                    failed.add(key)
                else:
                    scores[key] = one
        return scores, failed

    def _most(self, teacher: TeacherScorer, rows: Sequence[WholeRow]) -> int:
        return max(self.gather([teacher.num_batches(rows)]))

    @staticmethod
    def _masked(plan: UpdatePlan, trajectories: Mapping[str, Trajectory]) -> Collection[TurnKey]:
        return {
            (row.traj_uid, turn.turn_idx)
            for row in plan.rows
            for turn in row.turns
            if trajectories[row.traj_uid].turns[turn.turn_idx].finish_reason is FinishReason.LENGTH
        }


def _starts(row: Row) -> list[int]:
    """Where the tokens of each turn begin among the row's sampled tokens."""
    return [0, *itertools.accumulate(turn.length for turn in row.turns)][:-1]


def _guided(pair: PairedRow) -> WholeRow:
    return spliced_row(pair.ids, pair.positions, pair.blocks[0], pair.splice_index)
