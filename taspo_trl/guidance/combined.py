"""Several constructions at once, for methods that score more than one block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..types import Extraction, Guidance, Trajectory, TrajectoryGroup
from .base import Construction, GuidanceContext


class Combined(Construction):
    """The blocks of all parts. A part that refuses a target leaves its blocks out; only all together abstain.

    Args:
        parts (`Sequence[Construction]`):
            At least one. What the first part with an own `prepare` prepares is shared by all: `aligned` and `shuffled`
            draw on the same evidence.
    """

    def __init__(self, parts: Sequence[Construction]):
        self._parts = tuple(parts)
        self.name = "+".join(part.name for part in parts)
        self.needs_success = all(part.needs_success for part in parts)
        self.needs_others = any(part.needs_others for part in parts)
        self._preparing = next((part for part in parts if type(part).prepare is not Construction.prepare), None)

    def refusal(self, group: TrajectoryGroup, member: Trajectory) -> str:
        refusals = [part.refusal(group, member) for part in self._parts]
        return refusals[0] if all(refusals) else ""

    def prepare(self, context: GuidanceContext, group: TrajectoryGroup) -> Extraction:
        # Without another success nobody is there who would use it, and there may be no success to draw on at all.
        is_wanted = self._preparing is not None and any(
            member.is_usable and not self._preparing.refusal(group, member) for member in group.trajectories
        )
        return self._preparing.prepare(context, group) if self._preparing and is_wanted else Extraction()

    def build(self, context: GuidanceContext, group: TrajectoryGroup, target: Trajectory) -> Guidance:
        built = []
        for part in self._parts:
            refusal = part.refusal(group, target)
            built.append(
                Guidance(target.uid, part.name, abstain_reason=refusal)
                if refusal
                else part.build(context, group, target)
            )
        blocks = {name: block for one in built for name, block in one.blocks.items()}
        return replace(
            next((one for one in built if one.statements), built[0]),
            construction=self.name,
            blocks=blocks,
            rejections=tuple(rejection for one in built for rejection in one.rejections),
            abstain_reason="" if blocks else next((one.abstain_reason for one in built if one.abstain_reason), ""),
        )
