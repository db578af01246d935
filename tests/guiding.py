"""A construction with the context that the guidance stage would give it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from taspo_trl.analyzer.base import Analyzer
from taspo_trl.guidance.aligned import AlignedConstruction
from taspo_trl.guidance.base import Construction, GuidanceContext
from taspo_trl.guidance.block import Composer
from taspo_trl.types import Extraction, Guidance, Trajectory, TrajectoryGroup


class Guide:
    """Prepares and builds without a stage."""

    def __init__(self, construction: Construction, context: GuidanceContext | None = None):
        self.construction = construction
        self.context = context or GuidanceContext()

    def prepare(self, group: TrajectoryGroup) -> Extraction:
        return self.construction.prepare(self.context, group)

    def build(self, group: TrajectoryGroup, target: Trajectory, shared: Extraction | None = None) -> Guidance:
        """With what was prepared, or preparing it first."""
        shared = self.prepare(group) if shared is None else shared
        return self.construction.build(replace(self.context, shared=shared), group, target)


def aligned_guide(
    analyzer: Analyzer, composer: Composer, *, on_reply: Callable[..., None] | None = None, **limits: Any
) -> Guide:
    return Guide(AlignedConstruction(composer, **limits), GuidanceContext(analyzer, on_reply))
