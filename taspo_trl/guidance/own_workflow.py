"""A rule-based stand-in for OPID's skills, drawn from the target's own record: a digest and up to five step lines.

Pure. Own by design. The two blocks are never meant to be shown together: a step line replaces the digest of its turn.
"""

from __future__ import annotations

from collections import Counter

from ..analyzer.quotes import collapse
from ..types import Trajectory, TrajectoryGroup
from .base import GuidanceContext, Told
from .telling import without_reasoning


MAX_STEPS = 5


def episode(context: GuidanceContext, group: TrajectoryGroup, target: Trajectory) -> Told:
    """Of a success its accepted actions in order, of a failure its refused and repeated ones."""
    if target.success:
        accepted = [said for turn in target.turns if turn.valid and (said := without_reasoning(turn))]
        lines = ["This works:", *(f"- {action}" for action in accepted)]
        return Told.whole("\n".join(lines), target) if accepted else Told.nothing("no_accepted_action", target)
    refused = {said for turn in target.turns if not turn.valid and (said := without_reasoning(turn))}
    counts = Counter(said for turn in target.turns if (said := without_reasoning(turn)))
    faults = [
        f"- {action}: " + ("refused" if action in refused else f"done {count} times")
        for action, count in counts.items()
        if action in refused or count > 1
    ]
    lines = ["Avoid:", *faults]
    return Told.whole("\n".join(lines), target) if faults else Told.nothing("nothing_to_avoid", target)


def step(context: GuidanceContext, group: TrajectoryGroup, target: Trajectory) -> Told:
    """What the action of a turn led to, for the latest five turns whose accepted action changed the observation."""
    changed = [
        t
        for t, turn in enumerate(target.turns)
        if turn.valid
        and without_reasoning(turn)
        and collapse(turn.next_observation)
        and collapse(turn.next_observation) != collapse(turn.observation)
    ]
    shown = set(changed[-MAX_STEPS:])
    texts = tuple(
        f"{without_reasoning(turn)}: {collapse(turn.next_observation)}" if t in shown else None
        for t, turn in enumerate(target.turns)
    )
    return Told(texts, "no_turn_changed_anything")
