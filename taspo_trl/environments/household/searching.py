"""The player that demonstrations are made from: it sees only texts, and searches where things are usually kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .catalogue import LAMP, RECEPTACLES, THINGS, TOOLS, kind_of
from .draws import shuffled, stream
from .reading import Seen, Sight, read_observation, read_task
from .wording import NOTHING_HAPPENS


_IDLE = "look"


class SearchingOracle:
    """Plays a household task from what a player sees: task text, observations and admissible actions.

    ```python
    oracle = SearchingOracle(seed=0)
    oracle.begin(result.info["task"], result.observation, result.info["admissible_actions"])
    while not done:
        action = oracle.choose()  # or any other action: the oracle copes with what is really done
        result = environment.step(action)
        oracle.note(action, result.observation, result.info["admissible_actions"])
    ```

    Args:
        careless (`bool`, *optional*, defaults to `False`):
            Skip the step that cleans, heats or cools, and believe that the task is done all the same.
        seed (`int`, *optional*, defaults to `0`):
            Decides between places that are equally likely.
    """

    def __init__(self, *, careless: bool = False, seed: int = 0) -> None:
        self.careless = careless
        self.seed = seed

    def begin(self, task: str, observation: str, admissible_actions: Sequence[str]) -> None:
        """Start an episode."""
        self._goal = read_task(task)
        self._condition = "" if self.careless else self._goal.condition
        self._known: dict[str, list[Seen]] = {}
        """Place -> what was last seen in it; places never seen open have no entry."""
        self._position = ""
        self._carried: Seen | None = None
        self._lit = False
        self._admissible = list(admissible_actions)
        places = [action.removeprefix("go to ") for action in admissible_actions if action.startswith("go to ")]
        self._places = shuffled(stream("household", "searching", self.seed, task, observation), places)
        self._learn(read_observation(observation))

    def note(self, action: str, observation: str, admissible_actions: Sequence[str]) -> None:
        """Take in what `action` (the oracle's own or another) led to."""
        self._admissible = list(admissible_actions)
        if observation == NOTHING_HAPPENS:
            return
        verb, _, rest = " ".join(action.lower().split()).partition(" ")
        sight = read_observation(observation)
        if verb == "take":
            thing, _, place = rest.partition(" from ")
            self._known[place] = [seen for seen in self._known.get(place, []) if seen.name != thing]
        elif verb == "move" and self._carried is not None:
            self._known.setdefault(rest.partition(" to ")[2], []).append(self._carried)
        elif verb == "turn":
            self._lit = True
        self._learn(sight)

    def _learn(self, sight: Sight) -> None:
        self._position = sight.place or self._position
        if sight.contents is not None:
            self._known[self._position] = list(sight.contents)
        if sight.carried is not None or sight.hands_empty:
            self._carried = sight.carried

    @property
    def believes_done(self) -> bool:
        """Whether the player thinks that the task is fulfilled; a careless one can be wrong."""
        goal = self._goal
        if goal.family == "look":
            return self._lit and self._holds_target and self._position == self._lamp_place()
        return any(self._delivered(place) >= goal.count for place in self._goal_places())

    def choose(self) -> str:
        """The next action; "look" once the player believes that the task is done."""
        if self.believes_done:
            return _IDLE
        if self._carried is not None and not self._holds_target:
            return self._put_down()
        if self._holds_target:
            return self._examine() if self._goal.family == "look" else self._deliver()
        for place, contents in self._known.items():
            for seen in contents:
                if self._is_wanted(seen, place):
                    return self._approach(place, f"take {seen.name} from {place}")
        return self._search(THINGS[self._goal.kind].homes)

    @property
    def _holds_target(self) -> bool:
        return self._carried is not None and kind_of(self._carried.name) == self._goal.kind

    def _is_wanted(self, seen: Seen, place: str) -> bool:
        """Whether a thing seen in `place` still has to be brought somewhere."""
        if kind_of(seen.name) != self._goal.kind:
            return False
        is_delivered = self._goal.family != "look" and place == self._destination()
        return not is_delivered or self._lacks_condition(seen)

    def _lacks_condition(self, seen: Seen) -> bool:
        return bool(self._condition) and self._condition not in seen.words

    def _examine(self) -> str:
        place = self._lamp_place()
        if place is None:
            return self._search([kind for kind, receptacle in RECEPTACLES.items() if receptacle.holds_lamp])
        return self._approach(place, f"turn on {LAMP} 1")

    def _lamp_place(self) -> str | None:
        lamp = f"{LAMP} 1"
        return next((place for place, things in self._known.items() if any(s.name == lamp for s in things)), None)

    def _deliver(self) -> str:
        thing = self._carried
        assert thing is not None
        if self._lacks_condition(thing):
            verb = self._goal.family
            tool = next(place for place in self._places if kind_of(place) == TOOLS[verb])
            return self._approach(tool, f"{verb} {thing.name} with {tool}")
        place = self._destination()
        return self._approach(place, f"move {thing.name} to {place}")

    def _destination(self) -> str:
        """The receptacle to deliver to: the one that holds most already, then one that is known to be open."""
        return max(self._goal_places(), key=lambda place: (self._delivered(place), place in self._known))

    def _goal_places(self) -> list[str]:
        return [place for place in self._places if kind_of(place) == self._goal.receptacle]

    def _delivered(self, place: str) -> int:
        return sum(
            kind_of(seen.name) == self._goal.kind and not self._lacks_condition(seen)
            for seen in self._known.get(place, [])
        )

    def _put_down(self) -> str:
        assert self._carried is not None
        place = self._position or self._places[0]
        return self._approach(place, f"move {self._carried.name} to {place}")

    def _search(self, likely: Iterable[str]) -> str:
        """Look into the likeliest place not yet seen: homes first, surfaces before doors, the goal's kind last."""
        homes = set(likely)
        unseen = [place for place in self._places if place not in self._known]
        if not unseen:
            return _IDLE

        def unlikeliness(place: str) -> tuple[bool, bool, bool]:
            kind = kind_of(place)
            return kind == self._goal.receptacle, kind not in homes, RECEPTACLES[kind].is_openable

        return self._approach(min(unseen, key=unlikeliness), "")

    def _approach(self, place: str, action: str) -> str:
        """`action` where it is possible now, else the step towards it: go to `place`, open it."""
        for step in (action, f"go to {place}", f"open {place}"):
            if step in self._admissible:
                return step
        return _IDLE
