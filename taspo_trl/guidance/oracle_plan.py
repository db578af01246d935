"""An oracle: the simulator's plan from the state of each turn to the goal. An upper bound, never a method.

The episode is replayed (`rollout/plans.py`); where the environment knows no exact plan the turn has no block.
"""

from __future__ import annotations

from ..analyzer.quotes import collapse
from ..types import Trajectory, TrajectoryGroup
from .base import GuidanceContext, Told


def oracle_plan(context: GuidanceContext, group: TrajectoryGroup, target: Trajectory) -> Told:
    if context.oracle is None:
        return Told.nothing("no_oracle", target)
    plans = context.oracle(target)
    texts = tuple("\n".join(f"> {collapse(action)}" for action in plan) if plan else None for plan in plans)
    return Told(texts, "no_exact_plan")
