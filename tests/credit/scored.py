"""Scored batches for the weight rules, written down by hand or drawn by hypothesis.

The plain branch is 0 everywhere, so that a shift comes back exactly as it was put in.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from taspo_trl.credit.base import Batch, Ragged
from taspo_trl.types import ReplyScore, StopReason, TrajectoryGroup
from tests import builders


@dataclass(frozen=True)
class Reply:
    """One turn: M_it, and for each block the shifts over all reply tokens; None = the block has no score here."""

    mask: tuple[bool, ...]
    shifts: Mapping[str, Sequence[float] | None]


@dataclass(frozen=True)
class Episode:
    uid: str
    advantage: float
    replies: tuple[Reply, ...]
    success: bool = False
    usable: bool = True


def actions(block: str, *shifts_T: Sequence[float]) -> tuple[Reply, ...]:
    """Turns whose replies are all action."""
    return tuple(Reply((True,) * len(one), {block: tuple(one)}) for one in shifts_T)


def batch(*groups: Sequence[Episode], scope: str = "reply", **fields: Any) -> Batch:
    """The scored batch; outside the scope all log-probabilities are NaN, as the trainer leaves them."""
    scores, outcome = {}, []
    for episode in (one for group in groups for one in group):
        outcome.append(episode.advantage if episode.usable else 0.0)
        for turn_idx, reply in enumerate(episode.replies):
            inside = [scope == "reply" or is_action for is_action in reply.mask]
            known = {block: one for block, one in reply.shifts.items() if one is not None}
            if known:
                scores[episode.uid, turn_idx] = ReplyScore(
                    tuple(0.0 if one else math.nan for one in inside),
                    {
                        block: tuple(d if one else math.nan for d, one in zip(shifts, inside, strict=True))
                        for block, shifts in known.items()
                    },
                )
    played = tuple(TrajectoryGroup(f"g{i}", tuple(map(_trajectory, group))) for i, group in enumerate(groups))
    return Batch(played, tuple(outcome), scores, **fields)


def one_group(block: str, advantage: float, *shifts_T: Sequence[float], **fields: Any) -> tuple[Batch, Ragged]:
    """A group of one episode with A_it = A_i, and its rows."""
    made = batch([Episode("a", advantage, actions(block, *shifts_T))], **fields)
    return made, rows(made)


def rows(made: Batch) -> Ragged:
    """A_it = A_i."""
    return [[a] * len(t.turns) for t, a in zip(made.trajectories, made.outcome, strict=True)]


def _trajectory(episode: Episode) -> Any:
    turns = [builders.turn(reply_ids=range(len(r.mask)), action_mask=r.mask) for r in episode.replies]
    stop = StopReason.SOLVED if episode.success else StopReason.FAILED
    return builders.trajectory(
        turns,
        episode.uid,
        success=episode.success,
        reward=float(episode.success),
        stop_reason=stop if episode.usable else StopReason.ENV_DIED,
    )


SHIFTS = st.floats(-5, 5).map(lambda x: round(x, 3))


@st.composite
def replies(draw: Any, blocks: Sequence[str], shifts: Any = SHIFTS, *, spoiled: bool = True) -> Reply:
    """A turn with any mask (none, all, some); with `spoiled` also blocks that are missing or not finite."""
    mask = tuple(draw(st.lists(st.booleans(), min_size=0 if spoiled else 1, max_size=4)))
    of_blocks: dict[str, Sequence[float] | None] = {}
    for block in blocks:
        values = draw(st.lists(shifts, min_size=len(mask), max_size=len(mask)))
        fate = draw(st.sampled_from(["", "", "", "missing", "nan", "inf"])) if spoiled else ""
        if fate in ("nan", "inf") and values:
            values[draw(st.integers(0, len(values) - 1))] = float(fate)
        of_blocks[block] = None if fate == "missing" else tuple(values)
    return Reply(mask, of_blocks)


@st.composite
def groups(draw: Any, blocks: Sequence[str], shifts: Any = SHIFTS, *, spoiled: bool = True) -> list[list[Episode]]:
    """One or two groups of up to four episodes: winners, losers, flat ones and broken ones."""
    made = []
    for g in range(draw(st.integers(1, 2))):
        high, low = draw(st.sampled_from([(0.86, -0.86), (1.5, -0.5), (0.0, 0.0), (0.013, -2.9)]))
        members = []
        for i in range(draw(st.integers(1, 4))):
            usable = not spoiled or draw(st.sampled_from([True, True, True, False]))
            turns = draw(st.lists(replies(blocks, shifts, spoiled=spoiled), min_size=1, max_size=4))
            success = draw(st.booleans()) and usable
            members.append(Episode(f"g{g}-{i}", high if success else low, tuple(turns), success, usable))
        made.append(members)
    return made
