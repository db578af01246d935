"""The rules of the world: what may be done now, what an action changes, and whether the goal holds."""

from __future__ import annotations

from typing import NamedTuple

from .catalogue import CONDITIONS, RECEPTACLES, THINGS, TOOLS, kind_of
from .tasks import Task


class Action(NamedTuple):
    """One thing a player can do."""

    verb: str
    """go, open, close, take, move, clean, heat, cool, turn on, look or inventory."""
    thing: str = ""
    """What is handled: a thing or a lamp."""
    place: str = ""
    """The receptacle involved."""


_TOOL_VERBS = {receptacle: verb for verb, receptacle in TOOLS.items()}
_OPPOSITE = {"hot": "cool", "cool": "hot"}
_LOOK = Action("look")
_INVENTORY = Action("inventory")


class World:
    """One room while it is played. Hands hold one thing at a time; a closed receptacle hides what it holds.

    Args:
        task ([`~tasks.Task`]):
            Where everything starts; it is not changed.
    """

    def __init__(self, task: Task) -> None:
        self.goal = task.goal
        self.room = task.room
        self.places = task.layout
        self.position = ""
        """The receptacle where the player stands; empty = the middle of the room."""
        self.carried = ""
        """The thing in hand; empty = nothing."""
        self.contents = {place: list(things) for place, things in task.contents.items()}
        self.lamps = dict(task.lamps)
        """Lamp -> the receptacle that it stands on."""
        self.closed = set(task.closed)
        self.lit: set[str] = set()
        self.conditions: dict[str, tuple[str, ...]] = {}
        """Thing -> what it has been made; things without an entry are as they were found."""

    def actions(self) -> list[Action]:
        """Everything that can be done now; what is not in this list is not accepted."""
        here = self.position
        actions = [Action("go to", place=place) for place in self.places if place != here]
        if here:
            if RECEPTACLES[kind_of(here)].is_openable:
                actions.append(Action("open" if here in self.closed else "close", place=here))
            if here not in self.closed:
                actions += self._handling(here)
            if self.carried:
                actions += self._tool_uses(here)
        actions += (_LOOK, _INVENTORY)
        return actions

    def _handling(self, here: str) -> list[Action]:
        lamps = [Action("turn on", lamp) for lamp in self.lamps_at(here) if lamp not in self.lit]
        if self.carried:
            return [Action("move", self.carried, here), *lamps]
        return [*(Action("take", thing, here) for thing in self.contents[here]), *lamps]

    def _tool_uses(self, here: str) -> list[Action]:
        """At most one: a tool works on what is carried, once, and with its door open or closed."""
        verb = _TOOL_VERBS.get(kind_of(here))
        if verb is None:
            return []
        condition = CONDITIONS[verb]
        can_become = condition in THINGS[kind_of(self.carried)].conditions
        if not can_become or condition in self.conditions_of(self.carried):
            return []
        return [Action(verb, self.carried, here)]

    def apply(self, action: Action) -> None:
        """Do one of `actions()`."""
        verb, thing, place = action
        if verb == "go to":
            self.position = place
        elif verb == "open":
            self.closed.discard(place)
        elif verb == "close":
            self.closed.add(place)
        elif verb == "take":
            self.contents[place].remove(thing)
            self.carried = thing
        elif verb == "move":
            self.contents[place].append(thing)
            self.carried = ""
        elif verb == "turn on":
            self.lit.add(thing)
        elif verb in CONDITIONS:
            self._condition(thing, CONDITIONS[verb])

    def _condition(self, thing: str, condition: str) -> None:
        kept = {old for old in self.conditions_of(thing) if old != _OPPOSITE.get(condition)}
        self.conditions[thing] = tuple(sorted(kept | {condition}))

    def conditions_of(self, thing: str) -> tuple[str, ...]:
        """What a thing has been made, in alphabetical order."""
        return self.conditions.get(thing, ())

    def lamps_at(self, place: str) -> list[str]:
        return [lamp for lamp, where in self.lamps.items() if where == place]

    def state(self) -> tuple:
        """Everything that actions change, in one canonical form: equal for the same state of the room."""
        return (
            self.position,
            self.carried,
            tuple(sorted((place, *sorted(things)) for place, things in self.contents.items())),
            tuple(sorted(self.closed)),
            tuple(sorted(self.lit)),
            tuple(sorted(self.conditions.items())),
        )

    def is_solved(self) -> bool:
        """Whether the goal holds now."""
        goal = self.goal
        if goal.family == "look":
            return kind_of(self.carried) == goal.kind and any(
                lamp in self.lit for lamp in self.lamps_at(self.position)
            )
        return any(self.delivered(place) >= goal.count for place in self.places if kind_of(place) == goal.receptacle)

    def delivered(self, place: str) -> int:
        """How many things in `place` are what the goal asks for."""
        return sum(self.fits_goal(thing) for thing in self.contents[place])

    def fits_goal(self, thing: str) -> bool:
        """Whether a thing is of the goal's kind and in the goal's condition."""
        goal = self.goal
        return kind_of(thing) == goal.kind and (not goal.condition or goal.condition in self.conditions_of(thing))
