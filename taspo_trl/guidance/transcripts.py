"""A sibling's actions and observations as they are, cut to the block's budget.

Pure.
"""

from __future__ import annotations

import difflib
import random

from ..types import Trajectory, TrajectoryGroup
from .base import GuidanceContext, Told, other_failures, other_successes
from .telling import transcript


def random_success(context: GuidanceContext, group: TrajectoryGroup, target: Trajectory) -> Told:
    """A random one, the same at each run."""
    siblings = other_successes(group, target)
    if not siblings:
        return Told.nothing("no_other_success", target)
    return Told.whole(transcript(random.Random(target.uid).choice(siblings)), target)


def nearest_success(context: GuidanceContext, group: TrajectoryGroup, target: Trajectory) -> Told:
    """The one whose actions are most similar; ties go to the lowest index."""
    siblings = other_successes(group, target)
    if not siblings:
        return Told.nothing("no_other_success", target)
    actions = [turn.action for turn in target.turns]

    def distance(sibling: Trajectory) -> float:
        theirs = [turn.action for turn in sibling.turns]
        return -difflib.SequenceMatcher(None, actions, theirs, autojunk=False).ratio()

    return Told.whole(transcript(min(siblings, key=distance)), target)


def first_success(context: GuidanceContext, group: TrajectoryGroup, target: Trajectory) -> Told:
    """The first generated one (StepOPSD; with [`failures_only`] for failures alone)."""
    siblings = other_successes(group, target)
    return Told.whole(transcript(siblings[0]), target) if siblings else Told.nothing("no_other_success", target)


def first_failure(context: GuidanceContext, group: TrajectoryGroup, target: Trajectory) -> Told:
    """The first generated failure, the wrong half of `right_wrong`."""
    siblings = other_failures(group, target)
    return Told.whole(transcript(siblings[0]), target) if siblings else Told.nothing("no_other_failure", target)


def failures_only(group: TrajectoryGroup, member: Trajectory) -> str:
    """The refusal of `first_success_failed_only`."""
    if member.success:
        return "not_failed"
    return "" if other_successes(group, member) else "no_other_success"
