"""Credit that is found in the update: a micro-batch's guided branches run between its forward and its backward.

With one optimizer step for each rollout batch no pass of log pi_old runs on which scoring could ride. The update's own
forward is then the first of the rows as they stand. It is their plain branch, the guided branches continue from its
keys without gradient, and its loss takes the weights that follow. So it is done for trajectories whose rows all stand
in one micro-batch, by rules that look at no other trajectory's scores.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..errors import InvariantError
from ..loss.batches import LossRow, logps_of, with_credit
from ..loss.plan import UpdatePlan
from ..scoring.paired import PairedLogps
from ..scoring.pairs import PairPlan, TurnKey, turn_scores
from ..types import ReplyScore
from .passes import PolicyPasses
from .riding import Riders


Weigh = Callable[[Collection[str], Mapping[TurnKey, ReplyScore]], Mapping[str, Sequence[Sequence[float]]]]
"""(uids of some trajectories, scores of their turns) -> A~_itk of each, `[turn][reply token]`."""


@dataclass
class LateCredit:
    """What a rollout batch's credit still waits for, filled in by the micro-batches of its one optimizer step.

    Args:
        plan (`UpdatePlan`):
            Of the update.
        pairs (`PairPlan`):
            What waits, of all processes.
        passes ([`~taspo_trl.training.passes.PolicyPasses`]):
            Runs the guided branches.
        weigh (`Callable`):
            The method's rule, for some trajectories.
        before (`Mapping[str, Sequence[Sequence[float]]]`):
            Uid -> A~_itk as it is without what waits: the credit of all other trajectories.
    """

    plan: UpdatePlan
    pairs: PairPlan
    passes: PolicyPasses
    weigh: Weigh
    before: Mapping[str, Sequence[Sequence[float]]]
    seconds: float = field(default=0.0, init=False)
    """What guided branches and weights took in the update."""

    def __post_init__(self) -> None:
        self._members = [members for micro in self.plan.micro_batches for members in micro]
        self._first = [0]  # of each micro-step, among all micro-batches
        for micro in self.plan.micro_batches:
            self._first.append(self._first[-1] + len(micro))
        self._riders = Riders(self._members, self.pairs)
        self._scored: dict[int, PairedLogps] = {}
        self._found: dict[str, Sequence[Sequence[float]]] = {}

    @property
    def uids(self) -> set[str]:
        """The trajectories whose credit is not known before the update."""
        return {self.plan.rows[row].traj_uid for row in self.pairs.rows}

    def of(self, micro_step: int, place: int, rows: Sequence[LossRow]) -> LateMicroBatch | None:
        """What a micro-batch of the update has to find out; None where all is known.

        Raises:
            InvariantError: its rows are not those of the plan.
        """
        k = self._first[micro_step] + place
        if not self._riders.pairs_of(k):
            return None
        if [row.ids for row in rows] != [self.plan.rows[index].ids for index in self._members[k]]:
            raise InvariantError(
                f"Micro-batch {k} of the update has other rows than its plan. This is a bug in taspo_trl."
            )
        return LateMicroBatch(self, k, rows)

    def continues(self, k: int) -> bool:
        """Whether a guided branch continues from the keys of micro-batch `k`."""
        return self.passes.continues and any(one.start for one in self._riders.branches(k))

    def found(self, k: int, rows: Sequence[LossRow], plain: Sequence[Sequence[float]], cache: Any) -> list[float]:
        """A~ of the loss tokens of micro-batch `k`.

        Args:
            k (`int`), rows (`Sequence[LossRow]`):
                The micro-batch.
            plain (`Sequence[Sequence[float]]`), cache:
                What its forward says of the loss tokens of each row, and what it kept.
        """
        guided = self.passes.guided_from(cache, rows, self._riders.branches(k))
        scored = self._riders.scored(k, rows, plain, guided)
        self._scored |= scored
        part = self.pairs.part(scored)
        uids = {self.plan.rows[row].traj_uid for row in part.rows}
        self._found |= self.weigh(uids, turn_scores(part, [scored[index] for index in sorted(scored)]))
        values: list[float] = []
        for index, row in zip(self._members[k], rows, strict=True):
            planned = self.plan.rows[index]
            is_late = planned.traj_uid in uids
            values += (with_credit(row, planned, self._found[planned.traj_uid]) if is_late else row).advantages
        return values

    def scores(self, gather: Callable[[list], list]) -> dict[TurnKey, ReplyScore]:
        """The scores of all turns that waited, of all processes.

        Raises:
            InvariantError: the update left one out.
        """
        scored = dict(gather(list(self._scored.items())))
        if len(scored) != len(self.pairs.pairs):
            raise InvariantError(
                f"The update scored {len(scored)} of {len(self.pairs.pairs)} guided rows. This is a bug in taspo_trl."
            )
        return turn_scores(self.pairs, [scored[index] for index in range(len(scored))])

    def check(self, final: Mapping[str, Sequence[Sequence[float]]], gather: Callable[[list], list]) -> None:
        """Compare what the update used with A~_itk of the whole batch.

        Raises:
            InvariantError: a rule that calls itself `per_trajectory` looked at other trajectories.
        """
        late = self.uids
        used = {**{uid: rows for uid, rows in self.before.items() if uid not in late}, **self._found}
        others = gather([uid for uid, rows in used.items() if not _same(rows, final[uid])])
        if others:
            raise InvariantError(
                f"The update gave trajectory {others[0]!r} another credit than the whole batch does. Its weight rule "
                "promises `per_trajectory`; this is a bug of the rule."
            )


def _same(one: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> bool:
    return [list(turn) for turn in one] == [list(turn) for turn in other]


@dataclass(frozen=True)
class LateMicroBatch:
    """One micro-batch of the update, whose credit follows from its own forward."""

    late: LateCredit
    k: int
    rows: Sequence[LossRow]

    @property
    def keeps_keys(self) -> bool:
        """Whether its forward has to keep keys and values."""
        return self.late.continues(self.k)

    def advantages(self, output: Any, like: torch.Tensor) -> torch.Tensor:
        """A~ of its loss tokens.

        Args:
            output ([`~taspo_trl.scoring.projection.SelectedOutput`]):
                Of its forward.
            like (`torch.Tensor` of shape `(N,)`):
                Whose type and device the result has.
        """
        plain = logps_of(output.logps.detach(), self.rows)  # waits for the forward, which is the update's time
        started = time.perf_counter()
        advantages = like.new_tensor(self.late.found(self.k, self.rows, plain, output.cache))
        self.late.seconds += time.perf_counter() - started
        return advantages
