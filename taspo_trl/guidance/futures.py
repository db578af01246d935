"""The target's own later turns as hindsight for each turn (TurnSight's horizons, SERL's future).

Pure. Own by design: TurnSight's block shows the very action that is scored.
"""

from __future__ import annotations

from ..types import Trajectory, TrajectoryGroup
from .base import GuidanceContext, Source, Told
from .telling import reply_lines, steps


def own_future(horizon: int) -> Source:
    """The source of the actions and answers of turns t..t+D-1, D = `horizon`; late turns have fewer."""
    if horizon < 1:
        raise ValueError(f"`horizon` must be at least 1, got {horizon}.")

    def source(context: GuidanceContext, group: TrajectoryGroup, target: Trajectory) -> Told:
        turns = range(len(target.turns))
        return Told(tuple("\n".join(steps(target.turns[t : t + horizon])) or None for t in turns), "no_record")

    return source


def later_replies(context: GuidanceContext, group: TrajectoryGroup, target: Trajectory) -> Told:
    """SERL's future: the replies after turn t, without reasoning and observations; none in the last turn."""
    lines = [reply_lines(target.turns[t + 1 :]) for t in range(len(target.turns))]
    texts = tuple("\n".join(["Later:", *one]) if one else None for one in lines)
    return Told(texts, "last_turn_only" if len(target.turns) < 2 else "no_later_reply")
