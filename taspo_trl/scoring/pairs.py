"""Guided trajectories to rows that are scored with and without their blocks, and log-probabilities back to turns.

Pure. Only what can use a score is scored: turns that have a block, whose tokens can be located and whose context can
take it. Turns of one row with the same blocks share their forwards; the plain branch is computed once for all blocks.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from ..rows import MIN_SPLICE_INDEX, Row, RowTurn
from ..types import Block, Guidance, ReplyScore, Trajectory
from .paired import PairedLogps, PairedRow


TurnKey = tuple[str, int]
"""(trajectory uid, turn index)."""


@dataclass(frozen=True)
class ScoreScope:
    """What is scored of a turn; the part of a method's needs that this stage answers.

    Args:
        blocks (`tuple[str, ...]`):
            Names of blocks, each a branch of its own. `""` is no block at all: another teacher sees the plain context.
        tokens (`str`, *optional*, defaults to `"action"`):
            `"action"` (M_it) or `"reply"` (R_it).
    """

    blocks: tuple[str, ...]
    tokens: str = "action"


@dataclass(frozen=True)
class PairPlan:
    """What to score of a batch."""

    pairs: tuple[PairedRow, ...]
    rows: tuple[int, ...]
    """For each pair the index of the row that it is of."""
    names: tuple[tuple[str, ...], ...]
    """For each pair the names of its blocks, in the order of `PairedRow.blocks`."""
    turns: tuple[tuple[tuple[TurnKey, tuple[int, ...]], ...], ...]
    """For each pair its turns in order, with the places of their scored tokens in the reply."""
    unscorable: Mapping[TurnKey, str]
    """Turn of a guided trajectory -> why nothing of it is scored."""
    missing: Mapping[TurnKey, Mapping[str, str]]
    """Turn that is scored -> block -> why not with this one."""
    num_reply_tokens: Mapping[TurnKey, int]
    """|R_it| of every turn that is scored."""

    def part(self, chosen: Collection[int]) -> PairPlan:
        """Some of the pairs, in order; what is said of turns without a pair stays."""
        kept = [index for index in range(len(self.pairs)) if index in chosen]
        return replace(
            self,
            pairs=tuple(self.pairs[k] for k in kept),
            rows=tuple(self.rows[k] for k in kept),
            names=tuple(self.names[k] for k in kept),
            turns=tuple(self.turns[k] for k in kept),
        )


def plan_pairs(
    rows: Sequence[Row],
    trajectories: Mapping[str, Trajectory],
    guidance: Mapping[str, Guidance],
    window: int | None = None,
    scope: ScoreScope | None = None,
) -> PairPlan:
    """The paired rows of all guided trajectories.

    Args:
        rows (`Sequence[Row]`):
            Rows of the batch.
        trajectories (`Mapping[str, Trajectory]`), guidance (`Mapping[str, Guidance]`):
            By trajectory uid. Trajectories without guidance are passed over, unless the plain context is asked for.
        window (`int`, *optional*):
            Positions of the model.
        scope (`ScoreScope`, *optional*):
            Which blocks and tokens. If `None`, the action under every block that a trajectory has.
    """
    made = _Maker(trajectories, window, scope)
    for index, row in enumerate(rows):
        made.add(index, row, guidance.get(row.traj_uid))
    return PairPlan(
        tuple(made.pairs),
        tuple(made.rows),
        tuple(made.names),
        tuple(made.turns),
        made.unscorable,
        made.missing,
        {key: len(trajectories[key[0]].turns[key[1]].reply_ids) for turns in made.turns for key, _ in turns},
    )


class _Maker:
    def __init__(self, trajectories: Mapping[str, Trajectory], window: int | None, scope: ScoreScope | None):
        self.trajectories, self.window, self.scope = trajectories, window, scope
        self.pairs: list[PairedRow] = []
        self.rows: list[int] = []
        self.names: list[tuple[str, ...]] = []
        self.turns: list[tuple[tuple[TurnKey, tuple[int, ...]], ...]] = []
        self.unscorable: dict[TurnKey, str] = {}
        self.missing: dict[TurnKey, dict[str, str]] = {}

    def add(self, index: int, row: Row, guidance: Guidance | None) -> None:
        blocks = dict(guidance.blocks) if guidance else {}
        wanted = tuple(blocks) if self.scope is None else self.scope.blocks
        if not blocks and "" not in wanted:
            return
        trajectory = self.trajectories[row.traj_uid]
        tokens = "action" if self.scope is None else self.scope.tokens
        # Turns whose branches have the same blocks at the same place are scored in one row.
        alike: dict[tuple, list[tuple[RowTurn, tuple[int, ...]]]] = {}
        for turn in row.turns:
            key = (row.traj_uid, turn.turn_idx)
            places = _places(trajectory, turn, tokens)
            if not places:
                self.unscorable[key] = "empty_mask"
                continue
            branches: list[tuple[str, tuple[int, ...], bool]] = []
            reasons: dict[str, str] = {}
            for name in wanted:
                block = _block_of(blocks.get(name), name, turn.turn_idx)
                reason = "no_block" if block is None else _refusal(row, turn, *block, self.window)
                if block is None or reason:
                    reasons[name] = reason
                else:
                    branches.append((name, *block))
            if not branches:
                self.unscorable[key] = next(iter(reasons.values()), "no_block")
                continue
            if reasons:
                self.missing[key] = reasons
            alike.setdefault(tuple(branches), []).append((turn, places))
        for branches_of, members in alike.items():
            for at_start in (False, True):
                self._pair(index, row, [b for b in branches_of if b[2] is at_start], members, at_start)

    def _pair(
        self,
        index: int,
        row: Row,
        branches: Sequence[tuple[str, tuple[int, ...], bool]],
        members: Sequence[tuple[RowTurn, tuple[int, ...]]],
        at_start: bool,
    ) -> None:
        if not branches:
            return
        positions = [turn.start + place for turn, places in members for place in places]
        # Nothing behind the last wanted token can change it.
        ids = row.ids[: positions[-1] + 1]
        splice_index = 0 if at_start or row.splice_index is None else row.splice_index
        self.pairs.append(PairedRow(ids, splice_index, tuple(ids for _, ids, _ in branches), tuple(positions)))
        self.rows.append(index)
        self.names.append(tuple(name for name, _, _ in branches))
        self.turns.append(tuple(((row.traj_uid, turn.turn_idx), places) for turn, places in members))


def _places(trajectory: Trajectory, turn: RowTurn, tokens: str) -> tuple[int, ...]:
    """Which reply tokens are scored, as indices into the reply."""
    if tokens == "reply":
        return tuple(range(turn.length))
    return tuple(k for k, is_action in enumerate(trajectory.turns[turn.turn_idx].action_mask) if is_action)


def _block_of(block: Block | None, name: str, turn_idx: int) -> tuple[tuple[int, ...], bool] | None:
    """(ids, whether they stand before the chat) of a turn; None where it has none."""
    if not name:
        return (), False
    ids = None if block is None else block.turns[turn_idx]
    return None if ids is None or block is None else (ids, block.place == "start")


def _refusal(row: Row, turn: RowTurn, ids: tuple[int, ...], at_start: bool, window: int | None) -> str:
    """Why a turn cannot be scored with a block; empty when it can.

    Its row's context must have a place for the block, and context, block and reply must fit the model together:
    nothing is ever cut.
    """
    if not at_start and (row.splice_index is None or row.splice_index < MIN_SPLICE_INDEX):
        return "no_splice_index"
    if window is not None and turn.start + turn.length + len(ids) > window:
        return "over_window"
    return ""


def turn_scores(plan: PairPlan, logps: Sequence[PairedLogps]) -> dict[TurnKey, ReplyScore]:
    """(trajectory uid, turn index) -> score over the reply tokens, for every turn of `plan`; NaN outside its scope.

    A turn with a log-probability that is not finite keeps its numbers and is marked `non_finite`.
    """
    plain: dict[TurnKey, tuple[float, ...]] = {}
    guided: dict[TurnKey, dict[str, tuple[float, ...]]] = {}
    broken: set[TurnKey] = set()
    for names, members, scored in zip(plan.names, plan.turns, logps, strict=True):
        offset = 0
        for key, places in members:
            part = slice(offset, offset + len(places))
            offset += len(places)
            branches = [scored.plain[part], *(one[part] for one in scored.guided)]
            if not all(math.isfinite(value) for branch in branches for value in branch):
                broken.add(key)
            spread = [_spread(branch, places, plan.num_reply_tokens[key]) for branch in branches]
            plain[key] = spread[0]
            guided.setdefault(key, {}).update(zip(names, spread[1:], strict=True))
    scores = {key: ReplyScore(unscorable=reason) for key, reason in plan.unscorable.items()}
    return scores | {
        key: ReplyScore(values, guided[key], "non_finite" if key in broken else "", dict(plan.missing.get(key, {})))
        for key, values in plain.items()
    }


def _spread(values: Sequence[float], places: Sequence[int], length: int) -> tuple[float, ...]:
    whole = [math.nan] * length
    for place, value in zip(places, values, strict=True):
        whole[place] = value
    return tuple(whole)


def scores_of(trajectory: Trajectory, scores: Mapping[TurnKey, ReplyScore]) -> list[ReplyScore]:
    """The scores of a trajectory's turns in order; a turn without reply tokens has none."""
    return [
        scores.get((trajectory.uid, turn_idx), ReplyScore(unscorable="no_reply"))
        for turn_idx in range(len(trajectory.turns))
    ]
