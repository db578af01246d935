"""What a player can tell from the texts alone: the inverse of `wording`, without a look at the world."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .catalogue import CONDITIONS
from .tasks import Goal


_DELIVERY = re.compile(
    rf"Put (?:an?|(?P<two>two)) (?:(?P<condition>{'|'.join(CONDITIONS.values())}) )?(?P<kind>\w+?)(?(two)s) "
    r"(?:in|on) a (?P<receptacle>\w+)\."
)
_EXAMINATION = re.compile(r"Examine an? (?P<kind>\w+) under a lit lamp\.")
_PLACE = re.compile(r"You (?:are at|open|close|take .+ from|move .+ to|\w+ .+ with) (?P<place>\w+ \d+)\.")
_SEEN = re.compile(r"You see (?P<things>[^.]+)\.")
_CARRIED = re.compile(r"You carry (?P<thing>[^.]+)\.")
_FAMILIES = {condition: family for family, condition in CONDITIONS.items()}


@dataclass(frozen=True, slots=True)
class Seen:
    """A name as a text shows it, with the words before it."""

    name: str
    words: tuple[str, ...] = ()
    """Conditions of a thing, or "lit" for a lamp."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What one observation tells; None = it says nothing about it."""

    place: str | None = None
    """Where the player stands."""
    contents: tuple[Seen, ...] | None = None
    """Everything that is at `place`; None also while it is closed."""
    carried: Seen | None = None
    hands_empty: bool = False


def read_task(text: str) -> Goal:
    """The goal that a task text states."""
    examination = _EXAMINATION.fullmatch(text)
    if examination:
        return Goal("look", examination["kind"])
    delivery = _DELIVERY.fullmatch(text)
    if delivery is None:
        raise ValueError(f"{text!r} is no household task: it must read like 'Put a clean mug in a cabinet.'.")
    condition = delivery["condition"] or ""
    family = "two" if delivery["two"] else _FAMILIES.get(condition, "pick")
    return Goal(family, delivery["kind"], delivery["receptacle"], condition, 2 if delivery["two"] else 1)


def read_observation(text: str) -> Sight:
    """What an observation tells about the place, what lies there and the player's hands."""
    place, carried = _PLACE.search(text), _CARRIED.search(text)
    in_hand = None if carried is None or carried["thing"] == "nothing" else _read_name(carried["thing"])
    return Sight(
        place=place["place"] if place else None,
        contents=_read_contents(text) if place else None,
        carried=in_hand,
        hands_empty=carried is not None and in_hand is None,
    )


def _read_contents(text: str) -> tuple[Seen, ...] | None:
    seen = _SEEN.search(text)
    if seen is None:
        return None
    return () if seen["things"] == "nothing" else tuple(_read_name(part) for part in seen["things"].split(", "))


def _read_name(text: str) -> Seen:
    *words, kind, number = text.split()
    return Seen(f"{kind} {number}", tuple(words))
