"""The oracle that knows the hidden world: a shortest sensible plan from any state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import permutations
from typing import Any

from .catalogue import TOOLS, kind_of
from .tasks import make_task
from .wording import action_text
from .world import Action, World


def solve(task_row: Mapping[str, Any]) -> list[str]:
    """Actions that solve a dataset row from its start.

    Args:
        task_row (`Mapping`):
            A row of `HouseholdEnvironment.dataset`: `preset`, `split` and `index` are read.
    """
    return plan(World(make_task(task_row["preset"], task_row["split"], task_row["index"])))


def plan(world: World, *, careless: bool = False) -> list[str]:
    """Actions that reach the goal from the present state of `world`, which is not changed.

    Args:
        world ([`~world.World`]):
            The state to start from, all of which is known.
        careless (`bool`, *optional*, defaults to `False`):
            Skip what cleans, heats or cools: the plan then fails wherever that is asked for.
    """
    shortest = min(_routes(world, careless), key=lambda route: len(route.actions))
    return [action_text(action) for action in shortest.actions]


class _Route:
    """A sequence of actions under construction, with the part of the state that decides what a step needs."""

    def __init__(self, world: World) -> None:
        self.actions: list[Action] = []
        self.position = world.position
        self._carried = world.carried
        self._closed = set(world.closed)

    def go(self, place: str) -> None:
        if self.position != place:
            self.actions.append(Action("go to", place=place))
            self.position = place

    def reach(self, place: str) -> None:
        """Go to `place` and see to it that it is open."""
        self.go(place)
        if place in self._closed:
            self.actions.append(Action("open", place=place))
            self._closed.discard(place)

    def fetch(self, thing: str, place: str) -> None:
        """Have `thing`, which lies in `place`, in hand; what else is in hand stays there in exchange."""
        if thing == self._carried:
            return
        self.reach(place)
        if self._carried:
            self.actions.append(Action("move", self._carried, place))
        self.actions.append(Action("take", thing, place))
        self._carried = thing

    def deliver(self, place: str) -> None:
        """Leave what is in hand in `place`."""
        self.reach(place)
        self.actions.append(Action("move", self._carried, place))
        self._carried = ""

    def use(self, verb: str, thing: str, place: str) -> None:
        """A tool works with its door open or closed."""
        self.go(place)
        self.actions.append(Action(verb, thing, place))


def _routes(world: World, careless: bool) -> Iterator[_Route]:
    """One route for each way to choose things and receptacles."""
    return _look_routes(world) if world.goal.family == "look" else _delivery_routes(world, careless)


def _look_routes(world: World) -> Iterator[_Route]:
    for thing in _targets(world):
        for lamp, place in world.lamps.items():
            route = _Route(world)
            route.fetch(thing, _whereabouts(thing, world))
            route.go(place)
            if lamp not in world.lit:
                route.actions.append(Action("turn on", lamp))
            yield route


def _delivery_routes(world: World, careless: bool) -> Iterator[_Route]:
    goal = world.goal
    condition = "" if careless else goal.condition
    for place in world.places:
        if kind_of(place) != goal.receptacle:
            continue
        open_targets = [
            thing for thing in _targets(world) if thing not in world.contents[place] or not world.fits_goal(thing)
        ]
        for things in permutations(open_targets, max(0, goal.count - world.delivered(place))):
            # Whatever suitable thing is in hand goes first: to put it down elsewhere only costs turns.
            if world.carried in open_targets and things and things[0] != world.carried:
                continue
            route = _Route(world)
            for thing in things:
                route.fetch(thing, _whereabouts(thing, world))
                if condition and condition not in world.conditions_of(thing):
                    _make(route, thing, goal.family, world)
                route.deliver(place)
            yield route


def _targets(world: World) -> list[str]:
    things = [world.carried] if world.carried else []
    for contents in world.contents.values():
        things += contents
    return [thing for thing in things if kind_of(thing) == world.goal.kind]


def _whereabouts(thing: str, world: World) -> str:
    """The receptacle that holds `thing`; empty when it is in hand."""
    return next((place for place, things in world.contents.items() if thing in things), "")


def _make(route: _Route, thing: str, family: str, world: World) -> None:
    """Clean, heat or cool `thing`, where the player stands if there is a tool for it."""
    tools = [place for place in world.places if kind_of(place) == TOOLS[family]]
    route.use(family, thing, route.position if route.position in tools else tools[0])
