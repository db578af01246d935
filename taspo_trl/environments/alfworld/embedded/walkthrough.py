"""Wins a self-made game, as somebody does who knows where everything lies.

Pure: a setup and the installed grammar's wording in, commands out.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..names import display_names
from .language import Language
from .rooms import CLEANER, COOLER, HEATER, LAMP, OPENABLE
from .tasks import Receptacle, Setup, Thing


def walkthrough(setup: Setup, language: Language) -> Iterator[str]:
    """Commands that win the game, by somebody who knows where everything lies."""
    walker = _Walker(setup, language)
    targets = [thing for thing in setup.things if thing.kind == setup.target]
    if setup.task_type == "look_at_obj_in_light":
        lamp = next(thing for thing in setup.things if thing.kind == LAMP)
        yield from walker.take(targets[0])
        yield from walker.go_to(lamp.place)
        yield walker.say("ToggleObject", o=lamp)
        return
    tools = {
        "pick_clean_then_place_in_recep": ("CleanObject", CLEANER),
        "pick_heat_then_place_in_recep": ("HeatObject", HEATER),
        "pick_cool_then_place_in_recep": ("CoolObject", COOLER),
    }
    destination = walker.first(setup.destination)
    for target in targets[: 2 if setup.task_type == "pick_two_obj_and_place" else 1]:
        yield from walker.take(target)
        if setup.task_type in tools:
            action, kind = tools[setup.task_type]
            yield from walker.go_to(walker.first(kind))
            yield walker.say(action, o=target, r=walker.first(kind))
        yield from walker.open(destination)
        yield walker.say("PutObject", o=target, r=destination)


class _Walker:
    """Knows where it stands and which doors it has opened."""

    def __init__(self, setup: Setup, language: Language):
        self._setup = setup
        self._language = language
        self._here: Receptacle | None = None
        self._opened: set[str] = set()
        # The engine folds all names to lower case, and numbers things in the order of the folded ids.
        ids = [receptacle.id for receptacle in setup.receptacles] + [thing.id for thing in setup.things]
        self._names = display_names(id_.lower() for id_ in ids)

    def say(self, action: str, **entities: Receptacle | Thing) -> str:
        names = {role: self._name(entity) for role, entity in entities.items()}
        return self._language.command(action, **names)

    def first(self, kind: str) -> Receptacle:
        return next(receptacle for receptacle in self._setup.receptacles if receptacle.kind == kind)

    def go_to(self, receptacle: Receptacle) -> Iterator[str]:
        if receptacle != self._here:
            self._here = receptacle
            yield f"go to {self._name(receptacle)}"

    def open(self, receptacle: Receptacle) -> Iterator[str]:
        yield from self.go_to(receptacle)
        if receptacle.kind in OPENABLE and receptacle.id not in self._opened:
            self._opened.add(receptacle.id)
            yield self.say("OpenObject", r=receptacle)

    def take(self, thing: Thing) -> Iterator[str]:
        yield from self.open(thing.place)
        yield self.say("PickupObject", o=thing, r=thing.place)

    def _name(self, entity: Receptacle | Thing) -> str:
        return self._names[entity.id.lower()]
