"""How the task ends when it is solved: the last answer of a success (HCAPO's hindsight).

Pure. A success is shown its own ending (own by design), a failure that of the first success.
"""

from __future__ import annotations

from ..types import Trajectory, TrajectoryGroup
from .base import GuidanceContext, Told, other_successes, verified_successes
from .feedback import closing


def outcome(context: GuidanceContext, group: TrajectoryGroup, target: Trajectory) -> Told:
    successes = [target] if target.success else other_successes(group, target)
    if not successes:
        return Told.nothing("no_success", target)
    text = closing(successes[0])
    return Told.whole(f"The solved task ends with: {text}", target) if text else Told.nothing("no_feedback", target)


def needs_a_success(group: TrajectoryGroup, member: Trajectory) -> str:
    """Its refusal: the member's own success will do."""
    return "" if verified_successes(group) else "no_success"
