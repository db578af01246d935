"""The layouts of a room: which receptacles stand in it, dealt once and for all to training and to `valid_unseen`."""

from __future__ import annotations

from collections import Counter
from functools import cache

from .catalogue import PRESETS, RECEPTACLES, Preset, Room, kind_of
from .draws import draw_between, shuffled, stream


Layout = tuple[str, ...]
"""Names of the receptacles of a room, for example `("fridge 1", "drawer 1", "drawer 2")`."""


@cache
def room_layouts(preset_name: str, room_name: str, unseen: bool) -> tuple[Layout, ...]:
    """The layouts of a room in one preset, all different.

    `unseen=False` gives those that `train` and `valid_seen` share, `unseen=True` those of `valid_unseen`; no layout is
    in both.
    """
    preset = PRESETS[preset_name]
    room = next(room for room in preset.rooms if room.name == room_name)
    rng = stream("household", "layouts", preset_name, room_name)
    layouts: dict[Layout, None] = {}
    while len(layouts) < preset.seen_layouts + preset.unseen_layouts:
        layout = _draw_layout(rng, preset, room)
        if _suits(layout, room):
            layouts.setdefault(layout)
    ordered = tuple(layouts)
    return ordered[preset.seen_layouts :] if unseen else ordered[: preset.seen_layouts]


def _draw_layout(rng, preset: Preset, room: Room) -> Layout:
    size = draw_between(rng, *preset.places)
    extras = [kind for kind, most in room.extras.items() for _ in range(most)]
    counts = Counter([*room.fixed, *shuffled(rng, extras)[: size - len(room.fixed)]])
    # The room's own order, so that the same set of receptacles is always the same tuple.
    kinds = dict.fromkeys([*room.fixed, *room.extras])
    return tuple(f"{kind} {number}" for kind in kinds for number in range(1, counts[kind] + 1))


def _suits(layout: Layout, room: Room) -> bool:
    return not room.has_lamp or any(RECEPTACLES[kind_of(name)].holds_lamp for name in layout)
