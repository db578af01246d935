"""The world of the self-made games as tables: what stands in a room, what lies around, and what can be done with it.

Pure data, in ALFWorld's names.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object."""

    homes: frozenset[str]
    """Kinds of receptacles that can hold it."""
    is_cleanable: bool = False
    is_heatable: bool = False
    is_coolable: bool = False
    is_sliceable: bool = False


def _kind(homes: str, abilities: str = "") -> Kind:
    able = abilities.split()
    return Kind(frozenset(homes.split()), "clean" in able, "heat" in able, "cool" in able, "slice" in able)


OPENABLE = frozenset({"Cabinet", "Drawer", "Fridge", "Microwave", "Safe"})
CLEANER, HEATER, COOLER = "SinkBasin", "Microwave", "Fridge"
LAMP = "DeskLamp"

KINDS = {
    "Apple": _kind("CounterTop DiningTable Fridge GarbageCan Microwave SinkBasin", "clean heat cool slice"),
    "Bread": _kind("CounterTop DiningTable Fridge GarbageCan Microwave", "heat cool slice"),
    "Cup": _kind("Cabinet CounterTop DiningTable Fridge Microwave Shelf SinkBasin", "clean heat cool"),
    "Egg": _kind("CounterTop DiningTable Fridge GarbageCan Microwave SinkBasin", "clean heat cool"),
    "Fork": _kind("CounterTop DiningTable Drawer SinkBasin", "clean"),
    "Knife": _kind("CounterTop DiningTable Drawer SinkBasin", "clean"),
    "Lettuce": _kind("CounterTop DiningTable Fridge GarbageCan SinkBasin", "clean cool slice"),
    "Mug": _kind("Cabinet CoffeeMachine CounterTop DiningTable Microwave Shelf SinkBasin", "clean heat cool"),
    "Pan": _kind("Cabinet CounterTop DiningTable Fridge SinkBasin StoveBurner", "clean cool"),
    "Plate": _kind("Cabinet CounterTop DiningTable Fridge Microwave Shelf SinkBasin", "clean heat cool"),
    "Potato": _kind("CounterTop DiningTable Fridge GarbageCan Microwave SinkBasin", "clean heat cool slice"),
    "SaltShaker": _kind("Cabinet CounterTop DiningTable Drawer Shelf"),
    "Spoon": _kind("CounterTop DiningTable Drawer SinkBasin", "clean"),
    "Tomato": _kind("CounterTop DiningTable Fridge GarbageCan Microwave SinkBasin", "clean heat cool slice"),
    "AlarmClock": _kind("Desk Dresser Shelf SideTable"),
    "Book": _kind("ArmChair Bed CoffeeTable Desk Drawer Dresser Shelf SideTable Sofa"),
    "CD": _kind("Desk Drawer Dresser GarbageCan Safe Shelf SideTable"),
    "CellPhone": _kind("ArmChair Bed CoffeeTable Desk Drawer Dresser SideTable Sofa"),
    "CreditCard": _kind("ArmChair CoffeeTable Desk Drawer Dresser Shelf SideTable Sofa"),
    "KeyChain": _kind("ArmChair CoffeeTable Desk Drawer Dresser Safe Shelf SideTable Sofa"),
    "Laptop": _kind("ArmChair Bed CoffeeTable Desk Sofa"),
    "Newspaper": _kind("ArmChair CoffeeTable Drawer GarbageCan SideTable Sofa"),
    "Pen": _kind("Desk Drawer Dresser GarbageCan Shelf SideTable"),
    "Pencil": _kind("Desk Drawer Dresser GarbageCan Shelf SideTable"),
    "Pillow": _kind("ArmChair Bed Sofa"),
    "RemoteControl": _kind("ArmChair CoffeeTable Drawer SideTable Sofa TVStand"),
    "Vase": _kind("CoffeeTable Safe Shelf SideTable TVStand"),
    "Watch": _kind("CoffeeTable Drawer Dresser Safe Shelf SideTable TVStand"),
    "Candle": _kind("BathtubBasin Cabinet CounterTop Drawer Shelf Toilet"),
    "Cloth": _kind("BathtubBasin Cabinet CounterTop Drawer GarbageCan SinkBasin", "clean"),
    "SoapBar": _kind("BathtubBasin Cabinet CounterTop GarbageCan SinkBasin Toilet", "clean"),
    "SprayBottle": _kind("Cabinet CounterTop Drawer GarbageCan Shelf Toilet"),
    "ToiletPaper": _kind("Cabinet CounterTop Drawer GarbageCan Shelf Toilet"),
}


@dataclass(frozen=True, slots=True)
class Room:
    """A kind of room."""

    first_scene: int
    """Its layouts are numbered from here, like ALFRED's scenes of the same kind but beyond the last of them."""
    furniture: dict[str, tuple[int, int]]
    """Kind of receptacle -> how many of them there are, at least and at most."""
    contents: tuple[str, ...]
    """Kinds of objects that may lie in it."""
    lamp_stands: tuple[str, ...] = ()
    """Where the lamp may stand; empty = the room has none."""


ROOMS = {
    "kitchen": Room(
        first_scene=51,
        furniture={
            "Cabinet": (2, 4),
            "CoffeeMachine": (1, 1),
            "CounterTop": (1, 2),
            "DiningTable": (1, 1),
            "Drawer": (1, 3),
            "Fridge": (1, 1),
            "GarbageCan": (1, 1),
            "Microwave": (1, 1),
            "Shelf": (0, 2),
            "SinkBasin": (1, 1),
            "StoveBurner": (1, 2),
        },
        contents=(
            *("Apple", "Bread", "Cup", "Egg", "Fork", "Knife", "Lettuce"),
            *("Mug", "Pan", "Plate", "Potato", "SaltShaker", "Spoon", "Tomato"),
        ),
    ),
    "living room": Room(
        first_scene=251,
        furniture={
            "ArmChair": (1, 2),
            "CoffeeTable": (1, 1),
            "Drawer": (1, 3),
            "GarbageCan": (1, 1),
            "Safe": (0, 1),
            "Shelf": (1, 3),
            "SideTable": (1, 2),
            "Sofa": (1, 1),
            "TVStand": (1, 1),
        },
        contents=(
            *("Book", "CellPhone", "CreditCard", "KeyChain", "Laptop", "Newspaper"),
            *("Pillow", "RemoteControl", "Vase", "Watch"),
        ),
        lamp_stands=("SideTable",),
    ),
    "bedroom": Room(
        first_scene=351,
        furniture={
            "Bed": (1, 1),
            "Desk": (1, 2),
            "Drawer": (2, 4),
            "Dresser": (0, 1),
            "GarbageCan": (1, 1),
            "Safe": (0, 1),
            "Shelf": (1, 3),
            "SideTable": (1, 2),
        },
        contents=(
            "AlarmClock",
            "Book",
            "CD",
            "CellPhone",
            "CreditCard",
            "KeyChain",
            "Laptop",
            "Pen",
            "Pencil",
            "Pillow",
        ),
        lamp_stands=("Desk", "SideTable"),
    ),
    "bathroom": Room(
        first_scene=451,
        furniture={
            "BathtubBasin": (1, 1),
            "Cabinet": (2, 3),
            "CounterTop": (1, 1),
            "Drawer": (0, 2),
            "GarbageCan": (1, 1),
            "Shelf": (1, 2),
            "SinkBasin": (1, 2),
            "Toilet": (1, 1),
        },
        contents=("Candle", "Cloth", "SoapBar", "SprayBottle", "ToiletPaper"),
    ),
}

TASK_ROOMS = {
    "pick_and_place_simple": ("kitchen", "living room", "bedroom", "bathroom"),
    "look_at_obj_in_light": ("living room", "bedroom"),
    "pick_clean_then_place_in_recep": ("kitchen", "bathroom"),
    "pick_heat_then_place_in_recep": ("kitchen",),
    "pick_cool_then_place_in_recep": ("kitchen",),
    "pick_two_obj_and_place": ("kitchen", "living room", "bedroom", "bathroom"),
}
"""Task type -> the rooms in which it can be done."""
