"""Placebos: a block that holds nothing, and one that was made for another task.

Whatever a method gains with these is not gained through what guidance says.
"""

from __future__ import annotations

import random
from dataclasses import replace

from ..types import Block, Extraction, Guidance, Trajectory, TrajectoryGroup
from .aligned import AlignedConstruction
from .base import Construction, GuidanceContext, Told


MAX_TRIES = 4
"""Donors that are tried at most: each may cost an analyzer call."""


def empty(context: GuidanceContext, group: TrajectoryGroup, target: Trajectory) -> Told:
    """The empty block: both branches are the same, so every shift is exactly 0."""
    return Told.whole("", target)


class Shuffled(Construction):
    """The aligned block of a trajectory of another task of the batch, the same at each run.

    Donors are the other groups on this process whose task differs in words. Its quotes and statements are kept, so
    that the record shows whose they are.

    Args:
        aligned ([`~taspo_trl.guidance.aligned.AlignedConstruction`]):
            Makes the block.
    """

    name = "shuffled"
    needs_success = True
    needs_others = True

    def __init__(self, aligned: AlignedConstruction):
        self._aligned = aligned

    def prepare(self, context: GuidanceContext, group: TrajectoryGroup) -> Extraction:
        return self._aligned.prepare(context, group)

    def build(self, context: GuidanceContext, group: TrajectoryGroup, target: Trajectory) -> Guidance:
        donors = [
            (other, shared, member)
            for other, shared in sorted(context.others, key=lambda pair: pair[0].group_id)
            if other.task_text != group.task_text
            for member in other.trajectories
            if member.is_usable and not self._aligned.refusal(other, member)
        ]
        random.Random(target.uid).shuffle(donors)
        for other, shared, member in donors[:MAX_TRIES]:
            given = self._aligned.build(replace(context, shared=shared), other, member)
            if given:
                block = Block.whole(given.block_ids, len(target.turns), given.text)
                return replace(given, traj_uid=target.uid, construction=self.name, blocks={self.name: block})
        reason = "no_other_task" if not donors else "donors_have_none"
        return Guidance(target.uid, self.name, abstain_reason=reason)
