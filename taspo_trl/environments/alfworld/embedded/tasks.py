"""Draws the self-made games: a layout, a task that can be done in it, and a place for every object.

Pure and deterministic: a game is a function of its split, task type and number.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from .rooms import CLEANER, COOLER, HEATER, KINDS, LAMP, ROOMS, TASK_ROOMS, Room


@dataclass(frozen=True, slots=True)
class Split:
    """How many games of each family, and in which layouts of a room."""

    num_per_family: int
    layouts: tuple[int, ...]


SPLITS = {
    "train": Split(20, layouts=(0, 1, 2)),
    "valid_seen": Split(4, layouts=(0, 1, 2)),
    "valid_unseen": Split(4, layouts=(3, 4)),
}


@dataclass(frozen=True, slots=True)
class Receptacle:
    id: str
    kind: str
    location: str


@dataclass(frozen=True, slots=True)
class Thing:
    id: str
    kind: str
    place: Receptacle


@dataclass(frozen=True, slots=True)
class Setup:
    """A game before anything has been done."""

    task_type: str
    target: str
    """Kind of the object that the task is about."""
    destination: str
    """Kind of receptacle where it must end; the lamp for `look_at_obj_in_light`."""
    scene: int
    trial: str
    receptacles: tuple[Receptacle, ...]
    things: tuple[Thing, ...]
    phrasing: float
    """In [0, 1): which of the sentences for this type of task is used."""

    @property
    def task_name(self) -> str:
        return f"{self.task_type}-{self.target}-None-{self.destination}-{self.scene}"


def games_of(split: str) -> Iterator[Setup]:
    """All games of `split`, task type by task type."""
    for type_idx, (task_type, rooms) in enumerate(TASK_ROOMS.items()):
        scenes = [(ROOMS[room], layout) for layout in SPLITS[split].layouts for room in rooms]
        for number in range(SPLITS[split].num_per_family):
            room, layout = scenes[number % len(scenes)]
            rng = random.Random(f"{split}/{task_type}/{number}")
            trial = f"trial_T20260101_{type_idx:06d}_{number:06d}"
            yield _draw(task_type, room, room.first_scene + layout, trial, rng)


def _draw(task_type: str, room: Room, scene: int, trial: str, rng: random.Random) -> Setup:
    receptacles = _furnish(room, scene)
    present = {receptacle.kind for receptacle in receptacles}
    target, destination = rng.choice(_feasible(task_type, room, present))
    num_targets = rng.choice((2, 3)) if task_type == "pick_two_obj_and_place" else rng.choice((1, 2))
    others = rng.sample([kind for kind in room.contents if kind != target], k=4)
    kinds = [target] * num_targets + [kind for kind in others for _ in range(rng.choice((1, 1, 2)))]
    things = []
    for kind in kinds:
        # No target lies where it must go: the game would be won, or half won, before it begins.
        barred = {destination} if kind == target else set()
        things.append((kind, rng.choice([r for r in receptacles if r.kind in KINDS[kind].homes - barred])))
    if room.lamp_stands:
        things.append((LAMP, rng.choice([r for r in receptacles if r.kind in room.lamp_stands])))
    ids = [_id(kind, x=rng.randrange(-400, 400), number=number) for number, (kind, _) in enumerate(things)]
    return Setup(
        task_type=task_type,
        target=target,
        destination=destination,
        scene=scene,
        trial=trial,
        receptacles=receptacles,
        things=tuple(Thing(id_, kind, place) for id_, (kind, place) in zip(ids, things, strict=True)),
        phrasing=rng.random(),
    )


def _furnish(room: Room, scene: int) -> tuple[Receptacle, ...]:
    """The same furniture for every game in `scene`."""
    rng = random.Random(f"scene/{scene}")
    kinds = [kind for kind, (least, most) in room.furniture.items() for _ in range(rng.randint(least, most))]
    return tuple(
        Receptacle(_id(kind, x=rng.randrange(-400, 400), number=number), kind, f"loc_bar_{number}_bar_1_bar_0_bar_60")
        for number, kind in enumerate(kinds)
    )


def _feasible(task_type: str, room: Room, present: set[str]) -> list[tuple[str, str]]:
    """The (target, destination) pairs that make a task of this type in a room with the furniture `present`."""
    if task_type == "look_at_obj_in_light":
        return [(kind, LAMP) for kind in room.contents]
    needs = {
        "pick_clean_then_place_in_recep": ("is_cleanable", CLEANER),
        "pick_heat_then_place_in_recep": ("is_heatable", HEATER),
        "pick_cool_then_place_in_recep": ("is_coolable", COOLER),
    }
    ability, tool = needs.get(task_type, ("homes", ""))
    return [
        (kind, destination)
        for kind in room.contents
        if getattr(KINDS[kind], ability)
        for destination in sorted(KINDS[kind].homes & present - {tool})
        if KINDS[kind].homes & present - {destination}
    ]


def _id(kind: str, x: int, number: int) -> str:
    """An id of the form that ALFWorld reads names from; `number` makes it unique."""
    for whole in ("Sink", "Bathtub"):
        if kind == f"{whole}Basin":
            return f"{_id(whole, x, number)}_bar_{kind}"
    position = "_bar_".join(_coordinate(value) for value in (x, 90, 10 * number))
    return f"{kind}_bar_{position}"


def _coordinate(centimetres: int) -> str:
    sign = "minus" if centimetres < 0 else "plus"
    return f"_{sign}_{abs(centimetres) // 100:02d}_dot_{abs(centimetres) % 100:02d}"
