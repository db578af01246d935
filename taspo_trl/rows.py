"""Trajectories to training rows: which tokens carry the loss, with which coefficient, in which micro-batch.

Pure. A row is one token sequence for one forward: a turn of a window context, or all turns of a conversation whose
contexts extend each other. Every reply token carries c_itk = 1 / (B * T_i * |R_it|), so that the loss (E8) is the same
sum over any partition into rows, micro-batches and processes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from .types import Trajectory


MIN_SPLICE_INDEX = 2
"""One token for the common prefix and one that both branches compute themselves."""


@dataclass(frozen=True, slots=True)
class RowTurn:
    """Where a turn's reply stands in its row."""

    turn_idx: int
    start: int
    """Index of the first reply token in the row's ids."""
    length: int
    """|R_it|."""


@dataclass(frozen=True, slots=True)
class Row:
    """One token sequence with one or more replies of one trajectory."""

    traj_uid: str
    ids: tuple[int, ...]
    turns: tuple[RowTurn, ...]
    splice_index: int | None
    """Where guidance goes into `ids`: the place in the row's first context."""


def build_rows(trajectory: Trajectory, merge: bool = True) -> list[Row]:
    """The rows of a trajectory; turns without reply tokens have none.

    Three turns in two rows, the prompts [1 2], [1 2 7 8] and [1 3], the replies [7], [9] and [9 9]:

        turn 0 alone:                [1 2 7]       7 in the loss
        turn 1 goes on from turn 0:  [1 2 7 8 9]   7 and 9; one row for both, `RowTurn(0, 2, 1)`, `RowTurn(1, 4, 1)`
        turn 2 begins anew:          [1 3 9 9]     9 and 9; a row of its own, `RowTurn(2, 2, 2)`

    Args:
        trajectory (`Trajectory`):
            One finished episode.
        merge (`bool`, *optional*, defaults to `True`):
            Let turns share a row when a turn's context extends the previous context + reply token for token.
    """
    rows: list[Row] = []
    for turn_idx, turn in enumerate(trajectory.turns):
        if not turn.reply_ids:
            continue
        span = RowTurn(turn_idx, len(turn.prompt_ids), len(turn.reply_ids))
        ids = turn.prompt_ids + turn.reply_ids
        last = rows[-1] if rows else None
        # The context extends the previous context + reply: then the previous row's ids are a prefix of the prompt.
        if merge and last is not None and turn.prompt_ids[: len(last.ids)] == last.ids:
            rows[-1] = Row(last.traj_uid, ids, (*last.turns, span), last.splice_index)
        else:
            rows.append(Row(trajectory.uid, ids, (span,), turn.splice_index))
    return rows


def token_coefficient(num_trajectories: int, num_turns: int, num_tokens: int) -> float:
    """c_itk = 1 / (B * T_i * |R_it|), the weight of one token's loss in E8."""
    return 1.0 / (num_trajectories * num_turns * num_tokens)


@dataclass(frozen=True, slots=True)
class Deal:
    """Which rows of a rollout batch are computed when, and where.

    Six rows of 6, 5, 4, 3, 2 and 1 tokens, one optimizer step of two micro-steps, two processes; the longest first,
    each onto the least loaded of the four shares:

        micro-step 0, process 0: rows (0,), 6 tokens     `deal.rows(step=0, micro_step=0, process=0) == (0,)`
        micro-step 0, process 1: rows (1,), 5 tokens     `deal.rows(step=0, micro_step=0, process=1) == (1,)`
        micro-step 1, process 0: rows (2, 5), 5 tokens   `deal.rows(step=0, micro_step=1, process=0) == (2, 5)`
        micro-step 1, process 1: rows (3, 4), 5 tokens   `deal.rows(step=0, micro_step=1, process=1) == (3, 4)`
    """

    num_steps: int
    """K: optimizer steps of the rollout batch."""
    num_micro_steps: int
    """Gradient accumulation steps in each of them."""
    num_processes: int
    shares: tuple[tuple[int, ...], ...]
    """Indices of rows in ascending order, for each step, in it each micro-step, in it each process."""

    def rows(self, step: int, micro_step: int, process: int) -> tuple[int, ...]:
        """What one process computes in one micro-step; empty when nothing is left for it."""
        return self.shares[(step * self.num_micro_steps + micro_step) * self.num_processes + process]

    def rows_of_step(self, step: int) -> tuple[int, ...]:
        """All rows of one optimizer step, over its micro-steps and processes."""
        size = self.num_micro_steps * self.num_processes
        return tuple(row for share in self.shares[step * size : (step + 1) * size] for row in share)

    def factor(self, step: int) -> float:
        """N_row / n_k: what the coefficients of step k are multiplied by; 0 for a step without rows."""
        num_rows = len(self.rows_of_step(step))
        return sum(map(len, self.shares)) / num_rows if num_rows else 0.0


def deal_rows(lengths: Sequence[int], num_steps: int, num_micro_steps: int, num_processes: int, seed: int) -> Deal:
    """Deal rows to optimizer steps at random, and inside a step to micro-steps and processes by tokens.

    A trajectory's rows may land in different steps: with the factor N_row / n_k on its coefficients, each step is an
    unbiased estimate of E8 (see [`Deal.factor`]). Every process computes the same deal.

    Args:
        lengths (`Sequence[int]`):
            Tokens of each row.
        num_steps (`int`), num_micro_steps (`int`), num_processes (`int`):
            K optimizer steps of the rollout batch, gradient accumulation steps in each, processes.
        seed (`int`):
            Decides which rows go to which step.

    Returns:
        `Deal`: every row in exactly one share.
    """
    order = list(range(len(lengths)))
    if num_steps > 1:
        random.Random(seed).shuffle(order)
    shares: list[tuple[int, ...]] = []
    for step in range(num_steps):
        mine = sorted(order[step::num_steps], key=lambda row: (-lengths[row], row))
        bins: list[list[int]] = [[] for _ in range(num_micro_steps * num_processes)]
        loads = [0] * len(bins)
        for row in mine:  # longest first onto the least loaded: within 4/3 of the best balance
            target = min(range(len(bins)), key=lambda b: (loads[b], b))
            bins[target].append(row)
            loads[target] += lengths[row]
        shares.extend(tuple(sorted(one)) for one in bins)
    return Deal(num_steps, num_micro_steps, num_processes, tuple(shares))


def pack_rows(lengths: Sequence[int], max_tokens: int, padding_free: bool = False) -> list[list[int]]:
    """Micro-batches of rows of similar length, each of at most `max_tokens` positions, padding included.

    Args:
        lengths (`Sequence[int]`):
            Tokens of each row.
        max_tokens (`int`):
            Bound on rows x longest row, or without padding on the tokens of all rows. A single longer row makes a
            micro-batch of its own.
        padding_free (`bool`, *optional*, defaults to `False`):
            Whether the rows of a micro-batch stand one behind the other, so that nothing is padded.

    Returns:
        `list[list[int]]`: indices of rows; the longest come first, so that a too small memory shows at once.
    """
    return pack_units([(length,) for length in lengths], max_tokens, padding_free)


def pack_units(units: Sequence[Sequence[int]], max_tokens: int, padding_free: bool = False) -> list[list[int]]:
    """As [`pack_rows`], with rows that must not be parted.

    Args:
        units (`Sequence[Sequence[int]]`):
            Tokens of each row of each unit; a unit's rows stand in one micro-batch.
        max_tokens (`int`), padding_free (`bool`, *optional*, defaults to `False`):
            As in [`pack_rows`].

    Returns:
        `list[list[int]]`: indices of units.
    """
    if max_tokens < 1:
        raise ValueError(f"`max_tokens` must be at least 1, got {max_tokens}.")
    batches: list[list[int]] = []
    sizes = [sum(unit) if padding_free else max(unit) for unit in units]
    order = sorted(range(len(units)), key=lambda k: (-sizes[k], k))
    if padding_free:
        room: list[int] = []
        for k in order:
            place = next((one for one, left in enumerate(room) if sizes[k] <= left), len(room))
            if place == len(room):
                batches.append([])
                room.append(max_tokens)
            batches[place].append(k)
            room[place] -= sizes[k]
        return batches
    width = num_rows = 0  # of the open batch, whose first member has the longest row
    for k in order:
        if batches and width * (num_rows + len(units[k])) <= max_tokens:
            batches[-1].append(k)
            num_rows += len(units[k])
        else:
            batches.append([k])
            width, num_rows = sizes[k], len(units[k])
    return batches


def num_positions(units: Sequence[Sequence[int]], max_tokens: int, padding_free: bool = False) -> int:
    """What the micro-batches of [`pack_units`] compute, padding included."""
    if padding_free:
        return sum(map(sum, units))
    packed = [[length for k in batch for length in units[k]] for batch in pack_units(units, max_tokens)]
    return sum(max(lengths) * len(lengths) for lengths in packed)


def insert_block(prompt_ids: Sequence[int], splice_index: int, block_ids: Sequence[int]) -> tuple[int, ...]:
    """The privileged context: `prompt_ids` with the guidance block spliced in; removing it gives the original back."""
    return (*prompt_ids[:splice_index], *block_ids, *prompt_ids[splice_index:])
