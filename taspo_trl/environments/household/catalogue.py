"""What a household holds: kinds of receptacles, kinds of things, rooms and the presets made of them.

Plain data. A *kind* is a name without a number (`mug`, `fridge`); a *name* carries one (`mug 1`, `fridge 1`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache


FAMILIES = ("pick", "look", "clean", "heat", "cool", "two")
"""The task families, in the order in which the datasets go round them."""

CONDITIONS = {"clean": "clean", "heat": "hot", "cool": "cool"}
"""Family (and verb) -> the condition that it gives to a thing."""

TOOLS = {"clean": "sink", "heat": "microwave", "cool": "fridge"}
"""Family (and verb) -> the receptacle that does it."""

LAMP = "lamp"
"""The tool of the family `look`: it stands on a surface and cannot be carried."""


@dataclass(frozen=True, slots=True)
class Receptacle:
    """A kind of place."""

    preposition: str
    """Whether things lie "in" or "on" it."""
    is_openable: bool = False
    holds_lamp: bool = False
    """Whether a lamp may stand on it."""


RECEPTACLES: Mapping[str, Receptacle] = {
    "bathtub": Receptacle("in"),
    "bed": Receptacle("on"),
    "bin": Receptacle("in"),
    "cabinet": Receptacle("in", is_openable=True),
    "chair": Receptacle("on"),
    "counter": Receptacle("on"),
    "desk": Receptacle("on", holds_lamp=True),
    "drawer": Receptacle("in", is_openable=True),
    "fridge": Receptacle("in", is_openable=True),
    "microwave": Receptacle("in", is_openable=True),
    "nightstand": Receptacle("on", holds_lamp=True),
    "rack": Receptacle("on"),
    "safe": Receptacle("in", is_openable=True),
    "shelf": Receptacle("on", holds_lamp=True),
    "sink": Receptacle("in"),
    "sofa": Receptacle("on"),
    "stand": Receptacle("on", holds_lamp=True),
    "stove": Receptacle("on"),
    "table": Receptacle("on", holds_lamp=True),
    "wardrobe": Receptacle("in", is_openable=True),
}


@dataclass(frozen=True, slots=True)
class Thing:
    """A kind of object that can be carried."""

    homes: tuple[str, ...]
    """Kinds of receptacles where it is usually kept."""
    conditions: tuple[str, ...] = ()
    """What it can be made: clean, hot, cool."""


_FOOD = ("clean", "hot", "cool")
_DISH = ("clean", "hot", "cool")

THINGS: Mapping[str, Thing] = {
    # kitchen
    "apple": Thing(("fridge", "counter", "table"), _FOOD),
    "bottle": Thing(("fridge", "counter", "cabinet", "shelf", "bathtub"), ("clean", "cool")),
    "bowl": Thing(("cabinet", "counter", "shelf", "sink", "table"), _DISH),
    "carrot": Thing(("fridge", "counter", "sink"), _FOOD),
    "cup": Thing(("cabinet", "counter", "sink", "microwave", "desk"), _DISH),
    "egg": Thing(("fridge", "counter", "microwave"), ("hot", "cool")),
    "fork": Thing(("drawer", "sink", "table", "counter"), ("clean",)),
    "kettle": Thing(("stove", "counter", "shelf"), ("clean",)),
    "mug": Thing(("cabinet", "shelf", "microwave", "sink", "desk", "table"), _DISH),
    "pan": Thing(("stove", "cabinet", "sink", "counter"), ("clean", "cool")),
    "pear": Thing(("fridge", "table", "counter"), _FOOD),
    "plate": Thing(("cabinet", "table", "counter", "sink"), ("clean", "hot")),
    "pot": Thing(("stove", "cabinet", "shelf", "fridge"), ("clean", "cool")),
    "spatula": Thing(("drawer", "counter", "stove"), ("clean",)),
    "spoon": Thing(("drawer", "sink", "table", "counter"), ("clean",)),
    "sponge": Thing(("sink", "counter", "bathtub", "cabinet"), ("clean",)),
    # bathroom
    "candle": Thing(("shelf", "counter", "bathtub", "cabinet", "table", "stand")),
    "cloth": Thing(("rack", "sink", "bathtub", "drawer"), ("clean",)),
    "comb": Thing(("drawer", "counter", "shelf"), ("clean",)),
    "mirror": Thing(("counter", "shelf", "drawer"), ("clean",)),
    "razor": Thing(("cabinet", "sink", "counter"), ("clean",)),
    "soap": Thing(("sink", "bathtub", "cabinet", "counter")),
    "towel": Thing(("rack", "cabinet", "shelf")),
    # bedroom, living room, office
    "blanket": Thing(("bed", "sofa", "wardrobe", "chair")),
    "book": Thing(("shelf", "desk", "nightstand", "bed", "table", "sofa")),
    "card": Thing(("desk", "drawer", "table", "nightstand")),
    "clock": Thing(("nightstand", "desk", "shelf", "stand")),
    "folder": Thing(("shelf", "desk", "cabinet", "drawer")),
    "hat": Thing(("wardrobe", "chair", "bed", "rack")),
    "key": Thing(("drawer", "safe", "table", "nightstand", "desk")),
    "laptop": Thing(("desk", "bed", "sofa", "table")),
    "newspaper": Thing(("table", "sofa", "chair", "bin")),
    "notebook": Thing(("desk", "drawer", "shelf")),
    "pen": Thing(("desk", "drawer", "shelf", "table")),
    "pencil": Thing(("desk", "drawer", "shelf")),
    "phone": Thing(("desk", "nightstand", "bed", "table", "sofa")),
    "pillow": Thing(("bed", "sofa", "chair", "wardrobe")),
    "remote": Thing(("sofa", "table", "stand", "chair")),
    "ring": Thing(("safe", "drawer", "nightstand")),
    "stapler": Thing(("desk", "drawer", "shelf")),
    "vase": Thing(("table", "shelf", "stand", "cabinet")),
    "wallet": Thing(("safe", "drawer", "nightstand", "table", "chair", "sofa")),
}


@dataclass(frozen=True, slots=True)
class Room:
    """A room type: what can stand and lie in it."""

    name: str
    fixed: tuple[str, ...]
    """Receptacles of every layout."""
    extras: Mapping[str, int]
    """Further receptacles, with how many of the kind a layout may add."""
    things: tuple[str, ...]
    has_lamp: bool = False


@dataclass(frozen=True, slots=True)
class Preset:
    """A size of world. Ranges are pairs of the lowest and the highest value, both included."""

    name: str
    max_turns: int
    rooms: tuple[Room, ...]
    places: tuple[int, int]
    """Receptacles of a room."""
    things: tuple[int, int]
    """Things that the goal asks for plus kinds of other things."""
    copies: tuple[int, int]
    """Copies of each kind of other things."""
    spare_targets: tuple[int, int]
    """Things of the goal's kind beyond those that the goal asks for."""
    seen_layouts: int
    """Layouts of each room for `train` and `valid_seen`."""
    unseen_layouts: int
    """Layouts of each room for `valid_unseen`."""


SENSIBLE_SHARE = 0.8
"""Chance that a thing starts in one of its homes; otherwise it lies anywhere."""

CLOSED_SHARE = 0.9
"""Chance that an openable receptacle is closed at the start."""

_STANDARD_ROOMS = (
    Room(
        "kitchen",
        fixed=("fridge", "microwave", "sink", "counter"),
        extras={"counter": 1, "cabinet": 4, "drawer": 3, "shelf": 2, "table": 1, "stove": 1, "bin": 1},
        things=(
            *("apple", "bottle", "bowl", "carrot", "cup", "egg", "fork", "kettle", "mug", "pan"),
            *("pear", "plate", "pot", "spatula", "spoon", "sponge"),
        ),
    ),
    Room(
        "bathroom",
        fixed=("sink", "bathtub", "counter"),
        extras={"sink": 1, "cabinet": 3, "drawer": 3, "shelf": 2, "rack": 2, "bin": 1},
        things=("bottle", "candle", "cloth", "comb", "mirror", "razor", "soap", "sponge", "towel", "cup"),
    ),
    Room(
        "bedroom",
        fixed=("bed", "nightstand"),
        extras={"nightstand": 1, "desk": 1, "drawer": 4, "shelf": 2, "chair": 2, "wardrobe": 1, "safe": 1, "bin": 1},
        things=(
            *("blanket", "book", "card", "clock", "hat", "key", "laptop", "pen", "phone", "pillow"),
            *("ring", "wallet"),
        ),
        has_lamp=True,
    ),
    Room(
        "living room",
        fixed=("sofa", "table", "stand"),
        extras={"sofa": 1, "table": 1, "shelf": 3, "chair": 2, "cabinet": 2, "drawer": 3, "safe": 1, "bin": 1},
        things=(
            *("blanket", "book", "candle", "key", "laptop", "newspaper", "phone", "pillow", "remote", "vase"),
            *("wallet", "card"),
        ),
        has_lamp=True,
    ),
    Room(
        "office",
        fixed=("desk", "chair", "shelf"),
        extras={"desk": 1, "shelf": 2, "drawer": 3, "cabinet": 2, "chair": 1, "table": 1, "safe": 1, "bin": 1},
        things=(
            *("book", "card", "clock", "cup", "folder", "key", "laptop", "mug", "notebook", "pen"),
            *("pencil", "phone", "stapler"),
        ),
        has_lamp=True,
    ),
)

_SMALL_ROOMS = (
    Room(
        "kitchen",
        fixed=(),
        extras=dict.fromkeys(
            ("fridge", "microwave", "sink", "counter", "cabinet", "drawer", "shelf", "table", "stove"), 1
        ),
        things=("apple", "bowl", "cup", "egg", "fork", "mug", "pan", "pear", "plate", "spoon"),
    ),
    Room(
        "bedroom",
        fixed=("bed",),
        extras=dict.fromkeys(("nightstand", "desk", "drawer", "shelf", "chair", "safe", "table", "wardrobe"), 1),
        things=("book", "card", "clock", "key", "laptop", "pen", "phone", "pillow", "ring", "wallet"),
        has_lamp=True,
    ),
)

PRESETS: Mapping[str, Preset] = {
    "standard": Preset(
        name="standard",
        max_turns=30,
        rooms=_STANDARD_ROOMS,
        places=(8, 14),
        things=(6, 8),
        copies=(1, 2),
        spare_targets=(0, 1),
        seen_layouts=24,
        unseen_layouts=8,
    ),
    "small": Preset(
        name="small",
        max_turns=12,
        rooms=_SMALL_ROOMS,
        places=(5, 5),
        things=(4, 4),
        copies=(1, 1),
        spare_targets=(0, 0),
        seen_layouts=32,
        unseen_layouts=12,
    ),
}


@cache
def kind_of(name: str) -> str:
    """`"mug 1"` -> `"mug"`."""
    return name.rpartition(" ")[0]
