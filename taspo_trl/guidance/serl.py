"""SERL's feedback sources and their combinations, turn by turn.

Pure. A combination with "and" needs all its parts: a turn that lacks one has no block. What belongs to the turn comes
before the whole success, so that the budget cuts the success.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..types import Trajectory, TrajectoryGroup
from .base import GuidanceContext, Source, Told, other_successes
from .feedback import immediate, next_state
from .futures import later_replies
from .telling import reply_lines


def success(context: GuidanceContext, group: TrajectoryGroup, target: Trajectory) -> Told:
    """The replies of the group's first success other than the target, without reasoning and observations."""
    siblings = other_successes(group, target)
    if not siblings:
        return Told.nothing("no_other_success", target)
    lines = reply_lines(siblings[0].turns)
    return (
        Told.whole("\n".join(["A success:", *lines]), target)
        if lines
        else Told.nothing("success_said_nothing", target)
    )


def either(first: Source, second: Source) -> Source:
    """The source of `first` where it has a text, else of `second`."""

    def source(context: GuidanceContext, group: TrajectoryGroup, target: Trajectory) -> Told:
        one, two = first(context, group, target), second(context, group, target)
        pairs = zip(one.turns, two.turns, strict=True)
        return Told(tuple(b if a is None else a for a, b in pairs), one.reason or two.reason)

    return source


def together(*parts: Source) -> Source:
    """The source of all parts below each other in the turns that have every part."""

    def source(context: GuidanceContext, group: TrajectoryGroup, target: Trajectory) -> Told:
        told = [part(context, group, target) for part in parts]
        turns = zip(*(one.turns for one in told), strict=True)
        texts = tuple("\n".join(filter(None, turn)) if None not in turn else None for turn in turns)
        return Told(texts, next((one.reason for one in told if not one), "parts_never_together"))

    return source


SOURCES: Mapping[str, Source] = {
    "immediate": immediate,
    "next": next_state,
    "future": later_replies,
    "success": success,
    "success_or_immediate": either(success, immediate),
    "success_and_immediate": together(immediate, success),
    "success_and_next": together(next_state, success),
    "success_and_future": together(later_replies, success),
    "success_and_future_immediate": together(immediate, later_replies, success),
    "success_and_future_next": together(next_state, later_replies, success),
}
"""Name behind `serl_` -> source."""
EXAMPLES: Mapping[str, tuple[Source, ...]] = {
    "immediate": (immediate,),
    "next": (next_state,),
    "future": (later_replies,),
    "success": (),
    "success_or_immediate": (immediate,),
    "success_and_immediate": (immediate,),
    "success_and_next": (next_state,),
    "success_and_future": (later_replies,),
    "success_and_future_immediate": (immediate, later_replies),
    "success_and_future_next": (next_state, later_replies),
}
"""Name behind `serl_anchor_` -> what a visit to the state adds to the table; a success is added where there is one."""
