"""The embedded world's entities and facts: consistent in time and space, the same on every machine.

Pure. People are born before they work and after their teachers, presses and shipyards exist before what they make, a
town's river runs on the town's island.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .names import NameBook
from .relations import PEOPLE


ENTITY_COUNTS: dict[str, int] = {
    "island": 12,
    "river": 30,
    "town": 60,
    **dict.fromkeys(PEOPLE, 20),
    "press": 10,
    "shipyard": 12,
    "novel": 48,
    "suite": 36,
    "bridge": 36,
    "ship": 30,
    "museum": 24,
    "plant": 30,
    "painting": 36,
}
"""How many entities of each kind a world of scale 1 has; each has one passage."""

_TRADES = (
    *("sailcloth", "slate", "smoked eel", "candles", "rope", "blue pottery", "cider", "barrels", "lace"),
    *("sea salt", "clocks", "honey", "lenses", "parchment", "dried pears", "saddles", "fiddles", "tin"),
)
_COLOURS = ("white", "yellow", "violet", "crimson", "pale blue", "orange", "green")


@dataclass(frozen=True, slots=True)
class Entity:
    name: str
    kind: str


@dataclass(frozen=True)
class World:
    """Entities by name, and the facts of each: relation name -> object, an entity's name or a plain value."""

    entities: dict[str, Entity] = field(default_factory=dict)
    facts: dict[str, dict[str, str]] = field(default_factory=dict)

    def of_kind(self, kind: str) -> list[str]:
        return [entity.name for entity in self.entities.values() if entity.kind == kind]


class Dice:
    """Draws that stay the same on every Python version: only `random()` is promised to."""

    def __init__(self, seed: str):
        self._random = random.Random(seed)

    def between(self, low: int, high: int) -> int:
        """A whole number from `low` to `high`, both included."""
        return low + int(self._random.random() * (high - low + 1))

    def pick(self, options: Sequence[str]) -> str:
        return options[self.between(0, len(options) - 1)]


def build_world(scale: int = 1, seed: int = 0) -> World:
    """An archipelago.

    Args:
        scale (`int`, *optional*, defaults to `1`):
            Multiplies the number of entities; a scale of 1 has 464 of them.
        seed (`int`, *optional*, defaults to `0`):
            Another seed gives another world.
    """
    world = World()
    names = NameBook(f"names {seed}")
    for kind, count in ENTITY_COUNTS.items():
        for _ in range(count * scale):
            name = _name(names, kind)
            world.entities[name] = Entity(name, kind)
            world.facts[name] = {}
    dice = Dice(f"facts {seed}")
    for add_facts in (_add_geography, _add_people, _add_firms, _add_works, _add_nature):
        add_facts(world, dice, names)
    return world


def _name(names: NameBook, kind: str) -> str:
    if kind in PEOPLE:
        return names.person()
    by_kind: dict[str, Callable[[], str]] = {
        "novel": names.title,
        "painting": names.title,
        "suite": names.suite,
        "ship": names.ship,
        "bridge": lambda: names.called("Bridge"),
        "museum": lambda: names.called("Museum"),
        "press": lambda: names.called("Press"),
        "shipyard": lambda: names.called("Shipyard"),
        "plant": lambda: names.called("lily"),
    }
    return by_kind.get(kind, names.word)()


def _add_geography(world: World, dice: Dice, names: NameBook) -> None:
    islands, rivers = world.of_kind("island"), world.of_kind("river")
    for island in islands:
        world.facts[island]["peak"] = f"Mount {names.word()}"
    rivers_of: dict[str, list[str]] = {island: [] for island in islands}
    for index, river in enumerate(rivers):
        island = islands[index % len(islands)]  # in turn, so that every island has a river
        rivers_of[island].append(river)
        world.facts[river] |= {"river_island": island, "length": str(dice.between(11, 240))}
    for town in world.of_kind("town"):
        island = dice.pick(islands)
        world.facts[town] |= {
            "island": island,
            "founded": str(dice.between(1120, 1590)),
            "trade": dice.pick(_TRADES),
            "river": dice.pick(rivers_of[island]),
        }


def _add_people(world: World, dice: Dice, names: NameBook) -> None:
    towns = world.of_kind("town")
    for profession in PEOPLE:
        births: dict[str, int] = {}
        for person in world.of_kind(profession):
            birth = dice.between(1700, 1850)
            world.facts[person] |= {"birthplace": dice.pick(towns), "birth_year": str(birth)}
            births[person] = birth
        for person, birth in births.items():
            elders = [other for other, year in births.items() if 20 <= birth - year <= 50]
            if elders:
                world.facts[person]["teacher"] = dice.pick(elders)


def _add_firms(world: World, dice: Dice, names: NameBook) -> None:
    towns, engineers = world.of_kind("town"), world.of_kind("engineer")
    for press in world.of_kind("press"):
        # Before 1715, so that every press exists when the first novelist, born in 1700 at the earliest, needs one.
        world.facts[press] |= {"press_town": dice.pick(towns), "press_founded": str(dice.between(1640, 1714))}
    for yard in world.of_kind("shipyard"):
        founder = dice.pick(engineers)
        year = _working_year(world, founder, dice)
        world.facts[yard] |= {"yard_town": dice.pick(towns), "founder": founder, "yard_founded": year}
    for museum in world.of_kind("museum"):
        architect = dice.pick(engineers)
        year = _working_year(world, architect, dice)
        world.facts[museum] |= {"museum_town": dice.pick(towns), "architect": architect, "museum_opened": year}


def _add_works(world: World, dice: Dice, names: NameBook) -> None:
    kinds = ("town", "press", "river", "museum", "shipyard", "novelist", "composer", "engineer", "painter")
    known = {kind: world.of_kind(kind) for kind in kinds}
    for novel in world.of_kind("novel"):
        author = dice.pick(known["novelist"])
        world.facts[novel] |= {
            "author": author,
            "published": _working_year(world, author, dice),
            "setting": dice.pick(known["town"]),
            "publisher": dice.pick(known["press"]),
        }
    for suite in world.of_kind("suite"):
        composer = dice.pick(known["composer"])
        year = _working_year(world, composer, dice)
        world.facts[suite] |= {"composer": composer, "performed": year, "premiere_town": dice.pick(known["town"])}
    for bridge in world.of_kind("bridge"):
        engineer = dice.pick(known["engineer"])
        year = _working_year(world, engineer, dice)
        world.facts[bridge] |= {
            "bridge_engineer": engineer,
            "crosses": dice.pick(known["river"]),
            "bridge_opened": year,
        }
    for ship in world.of_kind("ship"):
        yard = dice.pick(known["shipyard"])
        age = dice.between(1, 60)
        world.facts[ship] |= {"yard": yard, "launched": str(int(world.facts[yard]["yard_founded"]) + age)}
    for painting in world.of_kind("painting"):
        painter = dice.pick(known["painter"])
        year = _working_year(world, painter, dice)
        world.facts[painting] |= {"painter": painter, "museum": dice.pick(known["museum"]), "painted": year}


def _add_nature(world: World, dice: Dice, names: NameBook) -> None:
    botanists, islands = world.of_kind("botanist"), world.of_kind("island")
    for plant in world.of_kind("plant"):
        world.facts[plant] |= {
            "describer": dice.pick(botanists),
            "habitat": dice.pick(islands),
            "colour": dice.pick(_COLOURS),
        }


def _working_year(world: World, person: str, dice: Dice) -> str:
    return str(int(world.facts[person]["birth_year"]) + dice.between(22, 60))
