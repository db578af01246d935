"""Scoring that rides on a pass over the update's micro-batches: which guided branches continue from which of them.

No forward is run here. A [`Ride`] asks and counts at the same places on every process, so that all run the same
forwards.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from ..loss.batches import LossRow
from ..loss.plan import UpdatePlan
from ..scoring.paired import Branch, Forwards, PairedLogps, branches_of, most_forwards, num_branch_forwards
from ..scoring.pairs import PairPlan


class Riders:
    """The pairs whose rows a process has, by the micro-batch that computes their plain branch.

    Args:
        members (`Sequence[Sequence[int]]`):
            For each micro-batch its rows.
        pairs ([`~taspo_trl.scoring.pairs.PairPlan`]):
            What is scored; pairs of rows that this process does not have are passed over.
    """

    def __init__(self, members: Sequence[Sequence[int]], pairs: PairPlan):
        self._members, self._pairs = members, pairs
        of_row: dict[int, list[int]] = {}
        for index, row in enumerate(pairs.rows):
            of_row.setdefault(row, []).append(index)
        self._branches: list[list[tuple[int, list[Branch | None]]]] = [
            [
                (index, branches_of(pairs.pairs[index], place))
                for place, row in enumerate(rows)
                for index in of_row.get(row, ())
            ]
            for rows in members
        ]

    def pairs_of(self, k: int) -> list[int]:
        """The pairs that ride on micro-batch `k`."""
        return [index for index, _ in self._branches[k]]

    def branches(self, k: int) -> list[Branch]:
        """The branches to be computed from micro-batch `k`."""
        return [one for _, of_pair in self._branches[k] for one in of_pair if one is not None]

    def scored(
        self, k: int, rows: Sequence[LossRow], plain: Sequence[Sequence[float]], guided: Sequence[tuple[float, ...]]
    ) -> dict[int, PairedLogps]:
        """Index of each pair of micro-batch `k` -> its scores.

        Args:
            k (`int`), rows (`Sequence[LossRow]`):
                The micro-batch.
            plain (`Sequence[Sequence[float]]`):
                log-probabilities of the loss tokens of each row.
            guided (`Sequence[tuple[float, ...]]`):
                Of the branches, in their order.
        """
        values = iter(guided)
        members = {row: place for place, row in enumerate(self._members[k])}
        found = {}
        for index, of_pair in self._branches[k]:
            place = members[self._pairs.rows[index]]
            at = dict(zip(rows[place].positions, plain[place], strict=True))
            own = tuple(at[p] for p in self._pairs.pairs[index].positions)
            found[index] = PairedLogps(own, tuple(own if one is None else next(values) for one in of_pair))
        return found


@dataclass
class Ride:
    """One pass over the micro-batches of an update, and the pairs that it can score on its way.

    Micro-batches without a row that may be guided come first. Once guidance is there, the rest is scored on its way; a
    micro-batch that runs before that is left to [`~taspo_trl.training.passes.PolicyPasses.score`], so that the
    pass never stands still for the analyzer.

    Args:
        plan (`UpdatePlan`):
            Of the update.
        targets (`Collection[str]`):
            Uids of all trajectories that may be guided, the same on every process.
        ask (`Callable`):
            The pairs of the batch, or None while guidance is being made; called on every process at the same time.
        gather (`Callable`):
            All processes' lists, joined in the order of the processes.
        max_tokens (`int`):
            As in [`~taspo_trl.scoring.paired.branch_logps`].
    """

    plan: UpdatePlan
    targets: Collection[str]
    ask: Callable[[], PairPlan | None]
    gather: Callable[[list], list]
    max_tokens: int
    seconds: float = field(default=0.0, init=False)
    """What its guided branches took."""

    def __post_init__(self) -> None:
        self._members = [members for micro in self.plan.micro_batches for members in micro]
        mine = [any(self.plan.rows[row].traj_uid in self.targets for row in members) for members in self._members]
        self._waits = [any(one) for one in zip(*self.gather([mine]), strict=True)]
        self._riders: Riders | None = None
        self._schedule: list[Forwards] = []
        self._scored: dict[int, PairedLogps] = {}

    @property
    def order(self) -> list[int]:
        """The micro-batches in the order in which the pass takes them."""
        return sorted(range(len(self._members)), key=lambda k: self._waits[k])

    def branches(self, k: int) -> tuple[list[Branch], Forwards]:
        """What rides on micro-batch `k`, and the number of forwards that every process makes of it."""
        if self._riders is None and self._waits[k]:
            self._open()
        if self._riders is None:
            return [], (0, 0)
        return self._riders.branches(k), self._schedule[k]

    def take(self, k: int, rows: Sequence[LossRow], plain: Sequence[Sequence[float]], guided: Sequence) -> None:
        """Note what micro-batch `k` came to, as in [`Riders.scored`]."""
        if self._riders is not None:
            self._scored |= self._riders.scored(k, rows, plain, guided)

    def scored(self) -> dict[int, PairedLogps]:
        """Index of a pair -> its scores, of all processes."""
        return dict(self.gather(list(self._scored.items())))

    def _open(self) -> None:
        pairs = self.ask()
        if pairs is None:
            return
        self._riders = Riders(self._members, pairs)
        mine = [num_branch_forwards(self._riders.branches(k), self.max_tokens) for k in range(len(self._members))]
        self._schedule = most_forwards(self.gather([mine]))
