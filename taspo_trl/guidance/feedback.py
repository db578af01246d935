"""What the environment answered to the target's own action in each turn (SERL's immediate feedback and next state).

Pure. Own by design: the block of a turn shows what the turn's action led to.
"""

from __future__ import annotations

from ..analyzer.quotes import collapse
from ..types import Trajectory, TrajectoryGroup, Turn
from .base import GuidanceContext, Told


def immediate(context: GuidanceContext, group: TrajectoryGroup, target: Trajectory) -> Told:
    """r_t: the answer to the turn's action."""
    return Told(tuple(feedback_of(turn) for turn in target.turns), "no_feedback")


def next_state(context: GuidanceContext, group: TrajectoryGroup, target: Trajectory) -> Told:
    """s_(t+1): what the next prompt newly shows, its observation and its admissible actions; none in the last turn.

    What both prompts share (the task, the older history) is not repeated; the block's budget would go to it alone.
    """
    following = [_prompted(turn) or None for turn in target.turns[1:]]
    return Told((*following, None), "last_turn_only" if len(target.turns) < 2 else "no_next_observation")


def closing(target: Trajectory) -> str:
    """The last answer that is not empty: what the environment said of the whole attempt."""
    return next((text for turn in reversed(target.turns) if (text := collapse(turn.next_observation))), "")


def feedback_of(turn: Turn) -> str | None:
    text = collapse(turn.next_observation)
    return f"Feedback: {text}" if text else None


def _prompted(turn: Turn) -> str:
    lines = [f"Next: {text}"] if (text := collapse(turn.observation)) else []
    if turn.admissible_actions:
        lines.append("You can: " + ", ".join(collapse(action) for action in turn.admissible_actions))
    return "\n".join(lines)
