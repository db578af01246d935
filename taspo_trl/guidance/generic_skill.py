"""A fixed text for the task family, usually the environment's `generic_skill`; needs no success.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable

from ..types import Trajectory, TrajectoryGroup
from .base import GuidanceContext, Source, Told


def generic_skill(skill_of: Callable[[Trajectory], str]) -> Source:
    """The source over trajectory -> text; an empty text means none."""

    def source(context: GuidanceContext, group: TrajectoryGroup, target: Trajectory) -> Told:
        text = skill_of(target)
        return Told.whole(text, target) if text.strip() else Told.nothing("no_skill_for_family", target)

    return source
