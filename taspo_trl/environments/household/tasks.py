"""From (preset, split, index) to one task: a goal and the hidden world in which it is played.

Tasks are numbered so that no two can be equal. The index goes round the families, then round the rooms that suit the
family, then round the *cells* of the room: every (layout, kind of thing, kind of receptacle) once, in shuffled order.
Each further round gives a cell its next *slot*, a number that picks another set of other things. `train` and
`valid_seen` share the layouts and own different slots; `valid_unseen` owns other layouts. Where the things lie is
drawn from the task's own random stream.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import comb
from numbers import Integral
from typing import NamedTuple

from ...errors import ConfigurationError
from .catalogue import (
    CLOSED_SHARE,
    CONDITIONS,
    FAMILIES,
    LAMP,
    PRESETS,
    RECEPTACLES,
    SENSIBLE_SHARE,
    THINGS,
    TOOLS,
    Preset,
    Room,
    kind_of,
)
from .draws import combination, draw, draw_between, scattered, shuffled, stream
from .layouts import Layout, room_layouts


DEFAULT_SIZES: Mapping[str, int] = {"train": 3000, "valid_seen": 144, "valid_unseen": 138}
"""Split -> tasks in the dataset, unless another size is asked for."""

SPLITS = tuple(DEFAULT_SIZES)

_SEEN_EVERY = 8
"""Of the slots of a cell, every eighth belongs to `valid_seen` and the others to `train`."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What must hold at the end: `count` things of a kind in one receptacle of a kind, or one held to a lit lamp."""

    family: str
    kind: str
    receptacle: str = ""
    """Kind of receptacle; empty for the family `look`."""
    condition: str = ""
    """Condition that the thing must be in: clean, hot, cool, or empty."""
    count: int = 1


@dataclass(frozen=True, slots=True)
class Task:
    """One task with everything that is hidden from the player."""

    preset: str
    split: str
    index: int
    room: str
    layout: Layout
    goal: Goal
    contents: Mapping[str, tuple[str, ...]]
    """Receptacle -> names of the things in it; every receptacle of the layout has an entry."""
    lamps: Mapping[str, str]
    """Lamp -> the receptacle that it stands on."""
    closed: tuple[str, ...]
    """Receptacles that are closed at the start."""

    @property
    def task_id(self) -> str:
        return task_id(self.preset, self.split, self.index)


class _Cell(NamedTuple):
    layout: Layout
    kind: str
    receptacle: str


def task_id(preset: str, split: str, index: int) -> str:
    """The name of a task, for example `household/standard/valid_seen/17`."""
    return f"household/{preset}/{split}/{index}"


def family_of(index: int) -> str:
    """The family of a task: every run of six indices holds each once, so every prefix of a split is balanced."""
    return FAMILIES[index % len(FAMILIES)]


@cache
def capacity(preset: str, split: str) -> int:
    """How many different tasks a split can number."""
    rounds = min(_room_capacity(preset, split, family) for family in FAMILIES)
    return rounds * len(FAMILIES)


def make_task(preset: str, split: str, index: int) -> Task:
    """The task with this number: the same on every machine, whatever was made before.

    Args:
        preset (`str`):
            `"standard"` or `"small"`.
        split (`str`):
            `"train"`, `"valid_seen"` or `"valid_unseen"`.
        index (`int`):
            Number within the split, from 0 to `capacity(preset, split) - 1`.
    """
    check_task(preset, split, index)
    settings, family = PRESETS[preset], family_of(index)
    rooms = _rooms_for(preset, family)
    turn = index // len(FAMILIES)
    room = rooms[turn % len(rooms)]
    cells = _cells(preset, split == "valid_unseen", family, room.name)
    visit, cell_idx = divmod(turn // len(rooms), len(cells))
    layout, kind, receptacle = cells[cell_idx]
    goal = Goal(family, kind, receptacle, CONDITIONS.get(family, ""), 2 if family == "two" else 1)
    rng = stream("household", preset, split, index)
    # Sets of different sizes differ anyway, so the size is free to be drawn.
    size = draw_between(rng, *settings.things) - goal.count
    others = _other_things(settings, room, cells[cell_idx], family, size, _slot(split, visit))
    contents = _place_things(rng, settings, layout, goal, others)
    return Task(
        preset=preset,
        split=split,
        index=index,
        room=room.name,
        layout=layout,
        goal=goal,
        contents=contents,
        lamps=_place_lamp(rng, room, layout),
        closed=tuple(
            place for place in layout if RECEPTACLES[kind_of(place)].is_openable and rng.random() < CLOSED_SHARE
        ),
    )


def check_task(preset: str, split: str, index: int) -> None:
    """Raise [`~taspo_trl.errors.ConfigurationError`] unless (preset, split, index) names a task."""
    check_preset(preset)
    check_split(split)
    if not isinstance(index, Integral) or isinstance(index, bool):
        raise ConfigurationError(f"`index` ({index!r}) must be a whole number, as in the dataset's rows.")
    if not 0 <= index < capacity(preset, split):
        raise ConfigurationError(
            f"`index` ({index}) must lie from 0 to {capacity(preset, split) - 1}: the household split {split!r} of "
            f"preset {preset!r} numbers {capacity(preset, split)} tasks. Ask for fewer tasks or take another split."
        )


def check_preset(preset: str) -> None:
    if preset not in PRESETS:
        raise ConfigurationError(f"`preset` ({preset!r}) must be one of {', '.join(map(repr, PRESETS))}.")


def check_split(split: str) -> None:
    if split not in SPLITS:
        raise ConfigurationError(f"`split` ({split!r}) must be one of {', '.join(map(repr, SPLITS))}.")


@cache
def _rooms_for(preset: str, family: str) -> tuple[Room, ...]:
    return tuple(room for room in PRESETS[preset].rooms if _cells(preset, False, family, room.name))


@cache
def _cells(preset: str, unseen: bool, family: str, room_name: str) -> tuple[_Cell, ...]:
    """All goals of a family in a room, over its layouts, in shuffled order."""
    room = next(room for room in PRESETS[preset].rooms if room.name == room_name)
    cells = [
        _Cell(layout, kind, receptacle)
        for layout in room_layouts(preset, room_name, unseen)
        if _is_playable(family, room, layout)
        for kind in room.things
        if family not in CONDITIONS or CONDITIONS[family] in THINGS[kind].conditions
        for receptacle in _goal_receptacles(family, kind, layout)
    ]
    return tuple(shuffled(stream("household", "cells", preset, unseen, family, room_name), cells))


def _is_playable(family: str, room: Room, layout: Layout) -> bool:
    if family == "look":
        return room.has_lamp
    return family not in TOOLS or f"{TOOLS[family]} 1" in layout


def _goal_receptacles(family: str, kind: str, layout: Layout) -> list[str]:
    """Where a thing of `kind` may be asked for: anywhere, but in a tool only where it is at home and not just used."""
    if family == "look":
        return [""]
    kinds = dict.fromkeys(kind_of(place) for place in layout)
    tools = set(TOOLS.values())
    return [
        receptacle
        for receptacle in kinds
        if receptacle not in tools or (receptacle in THINGS[kind].homes and receptacle != TOOLS.get(family))
    ]


def _room_capacity(preset: str, split: str, family: str) -> int:
    """How many tasks of a family a split can number; the rooms take turns, so the poorest one decides."""
    settings, rooms = PRESETS[preset], _rooms_for(preset, family)
    count = 2 if family == "two" else 1
    return len(rooms) * min(
        len(_cells(preset, split == "valid_unseen", family, room.name))
        * _slot_count(split, min(comb(len(room.things) - 1, things - count) for things in settings.things))
        for room in rooms
    )


def _slot_count(split: str, slots: int) -> int:
    """How many of the numbers below `slots` belong to `split`."""
    for_seen = -(-slots // _SEEN_EVERY)
    return {"train": slots - for_seen, "valid_seen": for_seen, "valid_unseen": slots}[split]


def _slot(split: str, visit: int) -> int:
    """The slot that a cell uses on its visit number `visit`, counted from 0."""
    if split == "train":
        return visit + visit // (_SEEN_EVERY - 1) + 1
    return visit * _SEEN_EVERY if split == "valid_seen" else visit


def _other_things(preset: Preset, room: Room, cell: _Cell, family: str, size: int, slot: int) -> tuple[str, ...]:
    """The kinds of the things that the goal does not ask for: another set for every slot of the cell."""
    rng = stream("household", "others", preset.name, family, *cell.layout, cell.kind, cell.receptacle)
    kinds = shuffled(rng, [kind for kind in room.things if kind != cell.kind])
    return combination(scattered(rng, slot, comb(len(kinds), size)), kinds, size)


def _place_things(
    rng: random.Random, preset: Preset, layout: Layout, goal: Goal, others: tuple[str, ...]
) -> dict[str, tuple[str, ...]]:
    copies = {goal.kind: goal.count + draw_between(rng, *preset.spare_targets)}
    copies |= {kind: draw_between(rng, *preset.copies) for kind in others}
    names = [f"{kind} {number}" for kind, most in copies.items() for number in range(1, most + 1)]
    contents: dict[str, list[str]] = {place: [] for place in layout}
    # Shuffled, so that the order in a receptacle says nothing about the goal.
    for name in shuffled(rng, names):
        avoided = goal.receptacle if kind_of(name) == goal.kind else ""
        contents[_draw_place(rng, layout, kind_of(name), avoided)].append(name)
    return {place: tuple(things) for place, things in contents.items()}


def _draw_place(rng: random.Random, layout: Layout, kind: str, avoided: str) -> str:
    """Where a thing starts: mostly at home, never in the goal's receptacles."""
    anywhere = [place for place in layout if kind_of(place) != avoided]
    homes = [place for place in anywhere if kind_of(place) in THINGS[kind].homes]
    return draw(rng, homes if homes and rng.random() < SENSIBLE_SHARE else anywhere)


def _place_lamp(rng: random.Random, room: Room, layout: Layout) -> dict[str, str]:
    if not room.has_lamp:
        return {}
    return {f"{LAMP} 1": draw(rng, [place for place in layout if RECEPTACLES[kind_of(place)].holds_lamp])}
