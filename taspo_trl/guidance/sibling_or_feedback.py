"""SDPO's context: the first successful sibling's transcript, and for want of one the environment's last answer.

Pure. The answer is the target's own (own by design); its transcript is not shown.
"""

from __future__ import annotations

from ..types import Trajectory, TrajectoryGroup
from .base import GuidanceContext, Told
from .feedback import closing
from .transcripts import first_success


def sibling_or_feedback(context: GuidanceContext, group: TrajectoryGroup, target: Trajectory) -> Told:
    told = first_success(context, group, target)
    if told:
        return told
    text = closing(target)
    return Told.whole(f"Feedback: {text}", target) if text else Told.nothing("no_feedback", target)
