"""Progress of each turn by an oracle: how many steps of a shortest plan it saved.

The episode is replayed from its row, seed and actions, and refused when the world answers with other texts.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..environments.answers import finite_number
from ..environments.base import ResetResult, StepResult, attribute
from ..rollout.replay import replay
from ..types import Trajectory


Labels = dict[tuple[str, int], float]
"""(trajectory uid, turn index) -> what the turn was worth. A turn that nothing is known of is not there."""


def progress_labels(trajectories: Iterable[Trajectory], factories: Mapping[str | None, Callable[[], Any]]) -> Labels:
    """D(before) - D(after) of every turn, D being the length of the environment's plan to the goal.

    Where the environment has no `oracle_plan` for a state, the `info["progress"]` of its answers is taken: the value
    after the action minus the value before. A turn without either has no label.

    Args:
        trajectories (`Iterable[Trajectory]`):
            Played episodes; those that ended through infrastructure are passed over.
        factories (`Mapping[str | None, Callable]`):
            Environment name -> callable that makes an instance, as a pool is given them.

    Raises:
        ReplayError: the world does not repeat an episode.
    """
    labels: Labels = {}
    environments: dict[str | None, Any] = {}
    try:
        for trajectory in trajectories:
            if not trajectory.is_usable:
                continue
            name = trajectory.environment
            if name not in environments:
                environments[name] = factories[name]()
            environment = environments[name]
            states = [_nearness(environment, result) for result in replay(trajectory, environment)]
            for t, (before, after) in enumerate(itertools.pairwise(states)):
                if before is not None and after is not None and before[0] == after[0]:
                    labels[trajectory.uid, t] = after[1] - before[1]
    finally:
        for environment in environments.values():
            environment.close()
    return labels


def _nearness(environment: Any, result: ResetResult | StepResult) -> tuple[str, float] | None:
    plan = attribute(environment, "oracle_plan")()
    if plan is not None:
        return "plan", -float(len(plan))
    progress = finite_number(result.info.get("progress"))
    return None if progress is None else ("progress", progress)
