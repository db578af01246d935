"""The embedded world's entities and facts: consistent in time and space, the same on every machine.

Pure. People are born before they work and after their teachers; a town's river runs on the town's island.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from .tables import KINDS, RELATIONS, WORDS, Relation, kinds_of


@dataclass(frozen=True)
class World:
    """Entities and what is true of them."""

    kinds: dict[str, str] = field(default_factory=dict)
    """Name -> kind; all names differ."""
    facts: dict[str, dict[str, str]] = field(default_factory=dict)
    """Name -> relation -> object, an entity's name or a plain value."""
    members: dict[str, list[str]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    """Kind -> names."""

    def mention(self, name: str) -> str:
        """How a text speaks of an entity or a plain value."""
        return KINDS[self.kinds[name]].mention.format(name=name) if name in self.kinds else name


class Dice:
    """Draws that stay the same on every Python version: only `random()` is promised to."""

    def __init__(self, seed: str):
        self._random = random.Random(seed)

    def between(self, low: int, high: int) -> int:
        """A whole number from `low` to `high`, both included."""
        return low + int(self._random.random() * (high - low + 1))

    def pick(self, options: Sequence[str]) -> str:
        return options[self.between(0, len(options) - 1)]


class NameBook:
    """Draws names and never gives the same one twice, whatever it is for."""

    def __init__(self, seed: str):
        self._dice = Dice(seed)
        self._used: set[str] = set()

    def draw(self, pattern: str) -> str:
        """A name of `pattern`, longer where the short ones run out; a place in it stands for nothing else."""
        for attempt in range(1000):
            is_long = attempt >= 20
            word = partial(self._word, with_link=is_long)
            parts = {"place": word("place"), "first": self._word("first", False), "last": word("last")}
            parts |= {part: self._dice.pick(WORDS[part]) for part in ("adjective", "noun", "bird")}
            name = pattern.format(**parts)
            if is_long and "{adjective}" in pattern:
                name = f"{name} of {parts['place']}"
            key = (parts["place"] if "{place}" in pattern else name).lower()
            if key not in self._used:
                self._used.add(key)
                return name
        raise AssertionError("the invented words are used up; make a smaller world")

    def _word(self, ending: str, with_link: bool) -> str:
        link = self._dice.pick(WORDS["link"]) if with_link else ""
        return self._dice.pick(WORDS["stem"]) + link + self._dice.pick(WORDS[ending])


def build_world(scale: int = 1, seed: int = 0) -> World:
    """An archipelago.

    Args:
        scale (`int`, *optional*, defaults to `1`):
            Multiplies the number of entities; a scale of 1 has 464 of them.
        seed (`int`, *optional*, defaults to `0`):
            Another seed gives another world.
    """
    world, names, dice = World(), NameBook(f"names {seed}"), Dice(f"facts {seed}")
    for kind, of in KINDS.items():
        for _ in range(of.count * scale):
            name = names.draw(of.pattern)
            world.kinds[name] = kind
            world.facts[name] = {}
            world.members[kind].append(name)
    for relation in RELATIONS:
        for kind in kinds_of(relation.subject):
            for subject in world.members[kind]:
                value = _draw(world, relation, subject, dice, names)
                if value is not None:
                    world.facts[subject][relation.name] = value
    return world


def _draw(world: World, relation: Relation, subject: str, dice: Dice, names: NameBook) -> str | None:
    """The object of `relation` for `subject`; None where nothing fits."""
    facts = world.facts
    if relation.pattern:
        return names.draw(relation.pattern)
    if relation.options:
        return dice.pick(relation.options)
    if relation.numbers:
        start = int(facts[facts[subject][relation.after]]["birth_year"]) if relation.after else 0
        return str(start + dice.between(*relation.numbers))
    fitting = world.members[world.kinds[subject] if relation.object == "person" else relation.object]
    if relation.same:
        mine, theirs = relation.same
        fitting = [one for one in fitting if facts[one][theirs] == facts[subject][mine]]
    if relation.older:
        least, most = relation.older
        born = int(facts[subject]["birth_year"])
        fitting = [one for one in fitting if least <= born - int(facts[one]["birth_year"]) <= most]
    return dice.pick(fitting) if fitting else None
