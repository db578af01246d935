"""From scored groups to the micro-batches of the update: which rows, in which step, on which process.

Pure. Every process computes the same plan from the same groups, so that no process waits for a forward that another
does not run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ..errors import InvariantError
from ..rows import Row, build_rows, deal_rows, num_positions, pack_units
from ..types import Trajectory
from .batches import EMPTY_ROW, LossRow, loss_row


@dataclass(frozen=True)
class UpdatePlan:
    """The rows that can move the policy, and this process's micro-batches of them."""

    rows: tuple[Row, ...]
    """All contributing rows of the global batch, in canonical order."""
    loss_rows: Mapping[int, LossRow]
    """Row index -> its loss tokens, for the rows of this process."""
    micro_batches: tuple[tuple[tuple[int, ...], ...], ...]
    """For each micro-step of the rollout batch this process's micro-batches of row indices. An empty one is a zero
    row: it keeps the number of forwards equal on all processes."""

    steps: tuple[int, ...] = ()
    """The optimizer step of the rollout batch into which each row was dealt."""

    whole: frozenset[str] = frozenset()
    """Uids of the trajectories that were to stay whole and have all of their rows in one micro-batch."""

    def batches(self, values: Mapping[int, LossRow]) -> list[list[list[LossRow]]]:
        """The micro-batches with `values` in place of row indices."""
        return [
            [[values[row] for row in batch] if batch else [EMPTY_ROW] for batch in micro]
            for micro in self.micro_batches
        ]


def plan_update(
    trajectories: Sequence[Trajectory],
    moves: Sequence[Sequence[bool]],
    *,
    num_steps: int,
    num_micro_steps: int,
    max_tokens: int,
    seed: int,
    mask_truncated: bool = False,
    process_index: int = 0,
    num_processes: int = 1,
    padding_free: bool = False,
    whole: Collection[str] = (),
) -> UpdatePlan:
    """Plan the optimizer steps of a rollout batch.

    Args:
        trajectories (`Sequence[Trajectory]`):
            The global batch.
        moves (`Sequence[Sequence[bool]]`):
            `[trajectory][turn]`: whether a loss of that turn's tokens can differ from 0. Rows in which none can are
            left out; they count in B all the same.
        num_steps (`int`), num_micro_steps (`int`):
            K optimizer steps, gradient accumulation steps in each.
        max_tokens (`int`):
            Bound on rows x longest row of a micro-batch, without padding on its tokens.
        seed (`int`):
            Deals rows to optimizer steps.
        mask_truncated (`bool`, *optional*, defaults to `False`):
            See [`~taspo_trl.loss.batches.loss_row`].
        process_index (`int`, *optional*, defaults to `0`), num_processes (`int`, *optional*, defaults to `1`):
            Whose micro-batches to return.
        padding_free (`bool`, *optional*, defaults to `False`):
            As in [`~taspo_trl.rows.pack_rows`].
        whole (`Collection[str]`, *optional*):
            Uids of trajectories whose rows are to stand in one micro-batch, see [`units_of`]; with one optimizer step
            alone.
    """
    if whole and num_steps != 1:
        raise InvariantError(f"Trajectories stay whole in one optimizer step, not in {num_steps}.")
    by_uid = {t.uid: t for t in trajectories if t.is_usable}
    rows = moving_rows(trajectories, moves)
    lengths = [len(row.ids) for row in rows]
    units = units_of(rows, whole, max_tokens, padding_free, (num_micro_steps, num_processes))
    deal = deal_rows(_loads(units, lengths), num_steps, num_micro_steps, num_processes, seed)

    loss_rows: dict[int, LossRow] = {}
    steps = [0] * len(rows)
    micro_batches = []
    for step in range(num_steps):
        for row in _members(units, deal.rows_of_step(step)):
            steps[row] = step
        for micro_step in range(num_micro_steps):
            shares = [deal.rows(step, micro_step, process) for process in range(num_processes)]
            packed = [
                [
                    _members(units, [share[k] for k in batch])
                    for batch in pack_units([[lengths[r] for r in units[u]] for u in share], max_tokens, padding_free)
                ]
                for share in shares
            ]
            num_batches = max(1, *(len(batches) for batches in packed))
            mine = packed[process_index]
            micro_batches.append(tuple(mine + [()] * (num_batches - len(mine))))
            for row in _members(units, shares[process_index]):
                loss_rows[row] = loss_row(
                    rows[row],
                    by_uid[rows[row].traj_uid],
                    num_trajectories=len(by_uid),
                    factor=deal.factor(step),
                    mask_truncated=mask_truncated,
                )
    num_rows = Counter(row.traj_uid for row in rows)
    kept = {rows[unit[0]].traj_uid for unit in units if len(unit) == num_rows[rows[unit[0]].traj_uid]} & set(whole)
    return UpdatePlan(tuple(rows), loss_rows, tuple(micro_batches), tuple(steps), frozenset(kept))


def units_of(
    rows: Sequence[Row],
    whole: Collection[str],
    max_tokens: int,
    padding_free: bool = False,
    shares: tuple[int, int] = (1, 1),
) -> list[tuple[int, ...]]:
    """What is dealt and packed in one piece: a row, or all rows of a trajectory that is to stay whole.

    A trajectory whose rows do not fit into one micro-batch is parted as ever. All of them are, where padding and
    uneven shares would cost the update more than a quarter of what staying whole is for: a plain forward of their
    rows, a third of what learning from a position costs. Measured on rows of 35 to 80 tokens, half of it is no gain.

    Args:
        rows (`Sequence[Row]`):
            Of the batch, those of a trajectory one after the other.
        whole (`Collection[str]`):
            Uids of trajectories.
        max_tokens (`int`), padding_free (`bool`, *optional*, defaults to `False`):
            As in [`~taspo_trl.rows.pack_rows`].
        shares (`tuple[int, int]`, *optional*, defaults to `(1, 1)`):
            Micro-steps and processes among which the units are dealt.

    Returns:
        `list[tuple[int, ...]]`: indices into `rows`, each in one unit.
    """
    alone: list[tuple[int, ...]] = [(row,) for row in range(len(rows))]
    if not whole:
        return alone
    of: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        of.setdefault(row.traj_uid, []).append(index)
    lengths = [len(row.ids) for row in rows]
    units: list[tuple[int, ...]] = []
    num_wanted = 0
    for uid, members in of.items():
        if uid in whole and num_positions([[lengths[row] for row in members]], max_tokens, padding_free) <= max_tokens:
            units.append(tuple(members))
            num_wanted += sum(lengths[row] for row in members)
        else:
            units += [(row,) for row in members]
    num_micro_steps, num_processes = shares

    def cost(units: Sequence[tuple[int, ...]]) -> int:
        """Positions that are computed one after the other: those of the slowest process of each micro-step."""
        deal = deal_rows(_loads(units, lengths), 1, num_micro_steps, num_processes, 0)
        positions = [
            num_positions([[lengths[r] for r in units[u]] for u in share], max_tokens, padding_free)
            for share in deal.shares
        ]
        return sum(max(positions[k : k + num_processes]) for k in range(0, len(positions), num_processes))

    return units if 3 * (cost(units) - cost(alone)) < num_wanted / num_processes / 4 else alone


def _loads(units: Sequence[tuple[int, ...]], lengths: Sequence[int]) -> list[int]:
    """Tokens of each unit."""
    return [sum(lengths[row] for row in unit) for unit in units]


def _members(units: Sequence[tuple[int, ...]], chosen: Sequence[int]) -> tuple[int, ...]:
    """The rows of some units."""
    return tuple(row for unit in chosen for row in units[unit])


def moving_rows(trajectories: Sequence[Trajectory], moves: Sequence[Sequence[bool]]) -> list[Row]:
    """The rows in which a token's loss can differ from 0, in canonical order.

    Args:
        trajectories (`Sequence[Trajectory]`), moves (`Sequence[Sequence[bool]]`):
            As in [`plan_update`].
    """
    return [
        row
        for t, of_turns in zip(trajectories, moves, strict=True)
        if t.is_usable and any(of_turns)
        for row in build_rows(t)
        if any(of_turns[turn.turn_idx] for turn in row.turns)
    ]
