"""Progress of each turn by the simulator: how many steps of a plan it saved, or what the world told of it.

One definition with the methods `oracle` and `placebo` and with the records
([`~taspo_trl.rollout.plans.progress_told`]); here a world that does not come back is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..rollout.plans import progress_told
from ..types import Trajectory


Labels = dict[tuple[str, int], float]
"""(trajectory uid, turn index) -> what the turn was worth. A turn that nothing is known of is not there."""


def progress_labels(trajectories: Iterable[Trajectory], factories: Mapping[str | None, Callable[[], Any]]) -> Labels:
    """By how much each turn brought the goal nearer; a turn of which nothing is known has no label.

    What `info["progress"]` told when the episode was played: the value after the action minus the value before. Where
    it told nothing, D(before) - D(after), D being the length of the environment's plan to the goal: the episode is
    then replayed from its row, seed and actions, and refused when the world answers with other texts.

    Args:
        trajectories (`Iterable[Trajectory]`):
            Played episodes; those that ended through infrastructure are passed over.
        factories (`Mapping[str | None, Callable]`):
            Environment name -> callable that makes an instance, as a pool is given them.

    Raises:
        ReplayError: the world does not repeat an episode.
    """
    labels: Labels = {}
    for trajectory in trajectories:
        if not trajectory.is_usable:
            continue
        told = progress_told(trajectory, factories[trajectory.environment], is_strict=True)
        labels |= {(trajectory.uid, t): one for t, one in enumerate(told) if one is not None}
    return labels
