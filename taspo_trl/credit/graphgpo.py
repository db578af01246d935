"""GraphGPO: a group's transitions as one graph, where an action is worth how near it leads to the goal."""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from .base import Batch, Needs, Ragged, normalised
from .option_checks import check_choice, check_number


StepReturn = Literal["next", "difference"]
_Edge = tuple[Hashable, Hashable]
_GOAL = object()
"""Where every success of a group ends: a node of its own, whatever is seen there."""


@dataclass(frozen=True)
class GraphGPO:
    """A_it = w_e A_i + w_s A^G_it with A^G_it = (R_it - mean R) / (sample std + 1e-6) over the turns in one state.

    R_it = 10 gamma^dist(next), where dist counts the transitions on the shortest way from the state after the action
    to the goal, over whatever the trajectories of the group did; a state without a way is one further than the
    furthest that has one. Without a success there is no goal and A^G = 0. A turn alone in its state has A^G = 0. Good
    turns of failures gain, so that signs may turn, and groups without contrast move.

    Args:
        episode_weight (`float`, *optional*, defaults to `1.0`), step_weight (`float`, *optional*, defaults to `1.0`):
            w_e and w_s, not negative.
        gamma (`float`, *optional*, defaults to `0.1`):
            gamma, in (0, 1]. A small one lets the last steps before the goal decide.
        step_return (`str`, *optional*, defaults to `"next"`):
            `"difference"`: R_it = 10 gamma^(dist(next) - dist(now) + 1).

    Raises:
        ConfigurationError: a value outside its range.
    """

    episode_weight: float = 1.0
    step_weight: float = 1.0
    gamma: float = 0.1
    step_return: StepReturn = "next"

    def __post_init__(self) -> None:
        check_number("episode_weight", self.episode_weight, "[0, inf)", "0 leaves A_i out.")
        check_number("step_weight", self.step_weight, "[0, inf)", "0 leaves the graph out.")
        check_number("gamma", self.gamma, "(0, 1]", "1 = the way to the goal does not count.")
        check_choice("step_return", self.step_return, get_args(StepReturn), "'difference' counts from now.")

    @property
    def needs(self) -> Needs:
        return Needs(state_key=True)

    def __call__(self, batch: Batch) -> Ragged:
        values = [
            [self.episode_weight * a] * len(t.turns) for t, a in zip(batch.trajectories, batch.outcome, strict=True)
        ]
        for members in batch.usable:
            edges = {(i, t): edge for i in members for t, edge in enumerate(_edges(batch, i))}
            distances = _distances(set(edges.values()))
            if not distances:
                continue
            beyond = max(distances.values()) + 1
            standing: defaultdict[Hashable, list[tuple[int, int]]] = defaultdict(list)
            for place, (now, _) in edges.items():
                standing[now].append(place)
            for now, places in standing.items():
                ahead = [distances.get(edges[place][1], beyond) for place in places]
                if self.step_return == "difference":
                    ahead = [steps - distances.get(now, beyond) + 1 for steps in ahead]
                relative = normalised([10.0 * self.gamma**steps for steps in ahead], "sample")
                for (i, t), a in zip(places, relative, strict=True):
                    values[i][t] += self.step_weight * a
        return values


def _edges(batch: Batch, i: int) -> list[_Edge]:
    """The transitions of one trajectory, one for each turn."""
    trajectory = batch.trajectories[i]
    states = [batch.state(trajectory, t) for t in range(len(trajectory.turns) + 1)]
    if trajectory.success:
        states[-1] = _GOAL
    return list(itertools.pairwise(states))


def _distances(edges: set[_Edge]) -> Mapping[Hashable, int]:
    """State -> transitions to the goal, breadth first from there; only states that have a way, none without a goal."""
    before: defaultdict[Hashable, list[Hashable]] = defaultdict(list)
    for now, following in edges:
        before[following].append(now)
    if _GOAL not in before:
        return {}
    distances: dict[Hashable, int] = {_GOAL: 0}
    waiting = deque([_GOAL])
    while waiting:
        state = waiting.popleft()
        for earlier in before[state]:
            if earlier not in distances:
                distances[earlier] = distances[state] + 1
                waiting.append(earlier)
    return distances
