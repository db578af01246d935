"""Forwards of the frozen policy over a planned batch: old and reference log-probabilities, and paired scores.

Every process runs the same number of forwards, because sharded models need all processes for each; only what is run
[`alone`][PolicyPasses.alone] or inside the update ([`guided_from`][PolicyPasses.guided_from]) concerns no other
process. No gradient, no dropout; every training flag is restored.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from accelerate import Accelerator

from ..generation.frozen import frozen_mode
from ..loss.batches import LossRow, collate, logps_of, with_logps
from ..loss.distillation.compose import teacher_columns
from ..loss.plan import UpdatePlan
from ..scoring.alternatives import AlternativeTurn, num_alternative_forwards, score_turns
from ..scoring.layout import runs_without_padding
from ..scoring.paired import (
    Branch,
    Forwards,
    PairedLogps,
    PairedRow,
    branch_logps,
    continues_from_shared_keys,
    most_forwards,
    pass_keys,
    score_pairs,
    score_schedule,
)
from ..scoring.pairs import TurnKey
from ..scoring.projection import selected_forward
from ..scoring.teachers import PolicyAccess, RolloutTeacher, TeacherScorer
from ..scoring.whole import WholeRow, spliced_row
from ..types import Alternatives
from .adapters import reference_adapter
from .riding import Ride


@dataclass(frozen=True)
class PolicyPasses:
    """Runs the forwards of one trainer.

    Args:
        get_model (`Callable`):
            Gives the policy as the trainer calls it now (training may wrap it), with
            [`~taspo_trl.scoring.projection.add_selected_projection`].
        ref_model (*optional*):
            The frozen reference; None means the policy with `ref_adapter`.
        accelerator (`Accelerator`):
            Device, precision, processes.
        gather (`Callable`):
            All processes' lists, joined in the order of the processes.
        max_tokens (`int`):
            Bound on rows x longest row of a forward, without padding on its tokens.
        pad_token_id (`int`), pad_to_multiple_of (`int`, *optional*):
            As in TRL.
        temperature (`float`, *optional*, defaults to `1.0`), in_fp32 (`bool`, *optional*, defaults to `False`):
            As given to [`~taspo_trl.scoring.projection.add_selected_projection`].
    """

    get_model: Callable[[], Any]
    ref_model: Any
    accelerator: Accelerator
    gather: Callable[[list], list]
    max_tokens: int
    pad_token_id: int
    pad_to_multiple_of: int | None = None
    ref_adapter: str | None = None
    """The adapter that is the reference; None = the policy's adapters off."""
    temperature: float = 1.0
    in_fp32: bool = False
    is_alone: bool = False
    """Whether this process runs its forwards without the others."""

    @property
    def model(self) -> Any:
        return self.get_model()

    @property
    def alone(self) -> PolicyPasses:
        """The same without any exchange between processes, for whole models only: what is given is this process's."""
        if self.accelerator.num_processes == 1:
            return self
        # The wrapper of data parallelism may send buffers around, even in a forward without gradient.
        return replace(self, get_model=lambda: self.accelerator.unwrap_model(self.model), gather=list, is_alone=True)

    @property
    def _place(self) -> tuple[int, int]:
        """(this process, number of processes that share the work)."""
        return (0, 1) if self.is_alone else (self.accelerator.process_index, self.accelerator.num_processes)

    @property
    def padding_free(self) -> bool:
        """Whether rows stand one behind the other in a forward of the policy."""
        return runs_without_padding(self.accelerator.unwrap_model(self.model))

    def collate(self, rows: Sequence[LossRow], teacher: TeacherScorer | None = None) -> dict[str, Any]:
        """The tensors of a micro-batch, on the device; float64 for a float64 model.

        Args:
            rows (`Sequence[LossRow]`):
                Its rows.
            teacher (`TeacherScorer`, *optional*):
                Of a distillation term: its columns are added as `teacher`.
        """
        dtype = torch.float64 if self.model.dtype == torch.float64 else torch.float32
        tensors: dict[str, Any] = collate(
            rows,
            pad_token_id=self.pad_token_id,
            pad_to_multiple_of=self.pad_to_multiple_of,
            padding_free=self.padding_free,
            device=self.accelerator.device,
            dtype=dtype,
        )
        if teacher is not None:
            scores = [row.teacher for row in rows]
            with_head = any(one is not None and one.hidden is not None for one in scores)
            tensors["teacher"] = teacher_columns(
                scores,
                [len(row.positions) for row in rows],
                teacher.head if with_head else None,
                self.accelerator.device,
                dtype,
            )
        return tensors

    def with_logps(
        self, plan: UpdatePlan, *, old: bool, reference: bool, ride: Ride | None = None
    ) -> dict[int, LossRow]:
        """The rows of this process with log pi_old and log pi_ref, in the micro-batches of the update.

        Since the update runs the same micro-batches, its first ratio is exactly 1.

        Args:
            plan (`UpdatePlan`):
                The update.
            old (`bool`), reference (`bool`):
                What is needed.
            ride ([`~taspo_trl.training.riding.Ride`], *optional*):
                What is scored on the way of log pi_old. It keeps the keys of one micro-batch at a time.
        """
        rows = dict(plan.loss_rows)
        for made in self.each_logps(plan, old=old, reference=reference, ride=ride):
            rows |= made
        return rows

    def each_logps(
        self, plan: UpdatePlan, *, old: bool, reference: bool, ride: Ride | None = None
    ) -> Iterator[dict[int, LossRow]]:
        """As [`with_logps`], a micro-batch at a time. Between two of them the model may be used for something else."""
        if not old and not reference:
            return
        rows = plan.loss_rows
        micro_batches = [
            pair
            for micro, indices in zip(plan.batches(rows), plan.micro_batches, strict=True)
            for pair in zip(micro, indices, strict=True)
        ]
        for k in range(len(micro_batches)) if ride is None else ride.order:
            batch, members = micro_batches[k]
            with torch.no_grad():
                tensors = self.collate(batch)
                old_logps = self._old_logps(k, tensors, batch, ride) if old else None
                ref_logps = logps_of(self._reference_logps(tensors), batch) if reference else None
            yield {  # a zero row has no members
                row: with_logps(
                    rows[row],
                    old_logps=old_logps[place] if old_logps else None,
                    ref_logps=ref_logps[place] if ref_logps else None,
                )
                for place, row in enumerate(members)
            }

    def _old_logps(
        self, k: int, tensors: Mapping[str, torch.Tensor], batch: Sequence[LossRow], ride: Ride | None
    ) -> list[tuple[float, ...]]:
        branches, least = ([], (0, 0)) if ride is None else ride.branches(k)
        keep_keys = least[0] > 0 and self.continues
        with frozen_mode(self.model), self.accelerator.autocast():
            output = selected_forward(self.model, tensors, keep_keys=keep_keys)
            plain = logps_of(output.logps, batch)
            if ride is not None:
                started = time.perf_counter()
                guided = self._guided(output.cache, batch, branches, forward=self.model, least=least)
                ride.take(k, batch, plain, guided)
                ride.seconds += time.perf_counter() - started
        return plain

    @property
    def continues(self) -> bool:
        """Whether guided branches continue from the keys of a pass."""
        return continues_from_shared_keys(self.accelerator.unwrap_model(self.model))

    def guided_from(self, cache: Any, batch: Sequence[LossRow], branches: Sequence[Branch]) -> list[tuple[float, ...]]:
        """The log-probabilities of guided branches behind a forward of the update, of this process alone.

        Args:
            cache:
                What that forward kept; None computes every branch whole.
            batch (`Sequence[LossRow]`), branches (`Sequence[Branch]`):
                Its rows, and branches of them.
        """
        if not branches:
            return []
        with torch.no_grad(), frozen_mode(self.model), self.accelerator.autocast():
            return self._guided(cache, batch, branches)

    def _guided(
        self,
        cache: Any,
        batch: Sequence[LossRow],
        branches: Sequence[Branch],
        *,
        forward: Any = None,
        least: Forwards = (0, 0),
    ) -> list[tuple[float, ...]]:
        return branch_logps(
            self.accelerator.unwrap_model(self.model),
            branches,
            pass_keys(cache, [len(row.ids) for row in batch] if self.padding_free else None),
            max_tokens=self.max_tokens,
            pad_token_id=self.pad_token_id,
            forward=forward,
            least=least,
        )

    def score(self, pairs: Sequence[PairedRow], teacher: TeacherScorer | None = None) -> list[PairedLogps]:
        """Score the pairs of the global batch, each process a share of about equal tokens.

        Args:
            pairs (`Sequence[PairedRow]`):
                What to score.
            teacher (`TeacherScorer`, *optional*):
                Who plays the guided branches instead of the policy; the plain branch stays the policy's. The branches
                then share no keys, and a shift holds the difference between the two as well.
        """
        this, num_processes = self._place
        order = sorted(range(len(pairs)), key=lambda k: (-len(pairs[k].ids), k))
        shares = [order[process::num_processes] for process in range(num_processes)]
        mine = [pairs[k] for k in shares[this]]
        scored = (
            self._paired(mine, [[pairs[k] for k in share] for share in shares])
            if teacher is None
            else self._with_teacher(mine, teacher)
        )
        results = dict(self.gather(list(zip(shares[this], scored, strict=True))))
        return [results[k] for k in range(len(pairs))]

    def _paired(self, mine: Sequence[PairedRow], everybody: Sequence[Sequence[PairedRow]]) -> list[PairedLogps]:
        schedule = most_forwards([score_schedule(share, self.max_tokens, self.padding_free) for share in everybody])
        with torch.no_grad(), frozen_mode(self.model), self.accelerator.autocast():
            return score_pairs(
                self.accelerator.unwrap_model(self.model),
                mine,
                max_tokens=self.max_tokens,
                pad_token_id=self.pad_token_id,
                forward=self.model,
                schedule=schedule,
            )

    def score_alternatives(self, turns: Sequence[AlternativeTurn]) -> dict[TurnKey, Alternatives]:
        """Score what could have been done in the turns of the global batch, each process a share of them.

        Args:
            turns (`Sequence[AlternativeTurn]`):
                The same on every process.
        """
        this, num_processes = self._place
        order = sorted(turns, key=lambda one: (-one.num_prefix_tokens, one.key))
        mine = order[this::num_processes]
        model = self.accelerator.unwrap_model(self.model)
        num_forwards = max(self.gather([num_alternative_forwards(model, mine, self.max_tokens)]))
        with torch.no_grad(), frozen_mode(self.model), self.accelerator.autocast():
            scored = score_turns(
                model,
                mine,
                max_tokens=self.max_tokens,
                pad_token_id=self.pad_token_id,
                forward=self.model,
                num_forwards=num_forwards,
            )
        return dict(self.gather(list(scored.items())))

    def _with_teacher(self, mine: Sequence[PairedRow], teacher: TeacherScorer) -> list[PairedLogps]:
        rollout = RolloutTeacher(self.policy_access)
        plain = [WholeRow(pair.ids, pair.positions) for pair in mine]
        guided = [
            spliced_row(pair.ids, pair.positions, block, pair.splice_index) for pair in mine for block in pair.blocks
        ]
        num_plain = max(self.gather([rollout.num_batches(plain)]))
        num_guided = max(self.gather([teacher.num_batches(guided)]))
        ours = rollout.score(plain, num_batches=num_plain)
        theirs = iter(teacher.score(guided, num_batches=num_guided))
        return [
            PairedLogps(tuple(own.logps.tolist()), tuple(tuple(next(theirs).logps.tolist()) for _ in pair.blocks))
            for own, pair in zip(ours, mine, strict=True)
        ]

    @property
    def policy_access(self) -> PolicyAccess:
        """How a teacher reaches the policy."""
        return PolicyAccess(
            self.get_model,
            self.accelerator.unwrap_model,
            self.accelerator.autocast,
            self.max_tokens,
            self.pad_token_id,
            self.temperature,
            self.in_fp32,
        )

    def _reference_logps(self, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        if self.ref_model is not None:
            return self._logps(self.ref_model, tensors)
        adapters = self.accelerator.unwrap_model(self.model)
        with frozen_mode(self.model), reference_adapter(adapters, self.ref_adapter):
            return self._logps(self.model, tensors)

    def _logps(self, model: Any, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        with self.accelerator.autocast():
            return selected_forward(model, tensors).logps
