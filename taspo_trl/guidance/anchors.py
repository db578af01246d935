"""SERL's anchor placement: what all siblings, the target included, tried in the state of a turn, and how it ended.

Pure. States are the same when the state key says so. A table line for each action: how often it was tried, in how many
episodes that succeeded, the mean, best and worst return of its episodes. The target's own action comes first, then the
most tried ones; whole lines are left out at the end until the block fits its budget.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from ..types import Trajectory, TrajectoryGroup
from .base import GuidanceContext, Source, Told
from .block import Composer
from .serl import EXAMPLES, success
from .telling import without_reasoning


@dataclass(frozen=True, slots=True)
class _Visit:
    member: Trajectory
    turn_idx: int

    @property
    def action(self) -> str:
        return without_reasoning(self.member.turns[self.turn_idx]).lower() or "(no action)"


def anchor(name: str, composer: Composer) -> Source:
    """The source of the tables, with one visit of each action as the SERL source `name` tells it.

    With `"immediate"` there is no table, only the pairs of action and feedback. A success is shown where the source
    has one and the group too.
    """
    parts = EXAMPLES[name]

    def source(context: GuidanceContext, group: TrajectoryGroup, target: Trajectory) -> Told:
        members = sorted((one for one in group.trajectories if one.is_usable), key=lambda one: one.generation_idx)
        visits: dict[Hashable, list[_Visit]] = defaultdict(list)
        for member in members:
            for t in range(len(member.turns)):
                visits[context.state_key(member, t)].append(_Visit(member, t))
        told = {member.uid: [part(context, group, member).turns for part in parts] for member in members}
        reference = success(context, group, target).turns if "success" in name else (None,) * len(target.turns)
        texts: list[str | None] = []
        left_out: list[str] = []
        for t, text in enumerate(reference):
            by_action = _by_action(visits[context.state_key(target, t)], _Visit(target, t).action)
            rows = [] if name == "immediate" else [_row(action, found) for action, found in by_action.items()]
            pairs = [_pair(action, found, told) for action, found in by_action.items()]
            shown, rest = _fitting([*rows, *(pair for pair in pairs if pair), *([text] if text else [])], composer)
            texts.append("\n".join(shown) or None)
            left_out += ["\n".join(rest)] if rest else []
        return Told(tuple(texts), "no_feedback", tuple(left_out))

    return source


def _by_action(visits: Sequence[_Visit], own: str) -> dict[str, list[_Visit]]:
    found: dict[str, list[_Visit]] = defaultdict(list)
    for visit in visits:
        found[visit.action].append(visit)
    return dict(sorted(found.items(), key=lambda item: (item[0] != own, -len(item[1]), item[0])))


def _row(action: str, visits: Sequence[_Visit]) -> str:
    returns = [visit.member.reward for visit in visits]
    solved = sum(visit.member.success for visit in visits)
    mean = math.fsum(returns) / len(returns)
    return (
        f"- {action}: tried {len(visits)}, solved {solved}, mean return {mean:.3g}, "
        f"best {max(returns):.3g}, worst {min(returns):.3g}"
    )


def _pair(action: str, visits: Sequence[_Visit], told: Mapping[str, Sequence[Sequence[str | None]]]) -> str:
    """The first visit of which every part tells something."""
    for visit in visits:
        texts = [part[visit.turn_idx] for part in told[visit.member.uid]]
        if texts and None not in texts:
            return f"{action} -> " + "\n".join(filter(None, texts))
    return ""


def _fitting(lines: Sequence[str], composer: Composer) -> tuple[Sequence[str], Sequence[str]]:
    """As many of the lines as the budget holds, and the rest; a first one that is too long is cut by the block."""
    size = len(lines)
    while size > 1 and not composer.fits("\n".join(lines[:size])):
        size -= 1
    return lines[:size], lines[size:]
