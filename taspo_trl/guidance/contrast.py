"""What separates the successes from the failures among the siblings, as lines to do and to avoid (GRSD's stand-in).

Pure. The target's own record counts on neither side.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..types import Trajectory, TrajectoryGroup
from .base import GuidanceContext, Told, other_failures, other_successes
from .telling import without_reasoning


MAX_LINES = 8
"""Of each kind."""


def contrast(context: GuidanceContext, group: TrajectoryGroup, target: Trajectory) -> Told:
    """Accepted actions that only other successes have, and that only other failures have; most shared first."""
    good, bad = _accepted(other_successes(group, target)), _accepted(other_failures(group, target))
    parts = [("Do:", _only(good, bad)), ("Avoid:", _only(bad, good))]
    lines = [line for title, actions in parts if actions for line in (title, *(f"- {one}" for one in actions))]
    return Told.whole("\n".join(lines), target) if lines else Told.nothing("no_difference", target)


def both_outcomes(group: TrajectoryGroup, member: Trajectory) -> str:
    """The refusal of contexts that compare: the others must hold a success and a failure."""
    if not other_successes(group, member):
        return "no_other_success"
    return "" if other_failures(group, member) else "no_other_failure"


def _accepted(members: Sequence[Trajectory]) -> Counter[str]:
    """Action -> members that had it accepted, in order of first use."""
    counts: Counter[str] = Counter()
    for member in members:
        said = [without_reasoning(turn).lower() for turn in member.turns if turn.valid]
        counts.update(list(dict.fromkeys(filter(None, said))))
    return counts


def _only(mine: Counter[str], theirs: Counter[str]) -> list[str]:
    return [action for action, _ in mine.most_common() if action not in theirs][:MAX_LINES]
