"""Writes one self-made game in ALFWorld's format: the task's sentence and its PDDL problem beside the shared texts.

Pure: a setup and the installed package's language in, text out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from .language import Language
from .rooms import CLEANER, COOLER, HEATER, KINDS, LAMP, OPENABLE
from .tasks import Setup
from .walkthrough import walkthrough


_START = "loc_bar_99_bar_99_bar_0_bar_30"  # no receptacle's place: the game begins in the middle of the room

_DOMAIN_CONSTANTS = {"rtype": {CLEANER, HEATER, COOLER}, "otype": {"Knife", "ButterKnife"}}
"""Types that the domain's actions name, so that every problem has to declare them."""


def game_json(setup: Setup, language: Language) -> str:
    """The content of the setup's `game.tw-pddl`."""
    goal = language.goals[setup.task_type]
    sentence = goal["templates"][int(setup.phrasing * len(goal["templates"]))]
    words = _goal_words(setup)
    task = sentence.format(**{name: word.lower() for name, word in words.items()})
    return json.dumps(
        {
            "pddl_domain": language.domain,
            "grammar": language.grammar.replace("UNKNOWN GOAL", task),
            "pddl_problem": _problem(setup, goal["pddl"].format(**words).replace("#", "-")),
            "solvable": True,
            "walkthrough": list(walkthrough(setup, language)),
        }
    )


def _goal_words(setup: Setup) -> dict[str, str]:
    is_look = setup.task_type == "look_at_obj_in_light"
    return {
        "obj": setup.target,
        "recep": "" if is_look else setup.destination,
        "toggle": setup.destination if is_look else "",
        "mrecep": "",
    }


def _problem(setup: Setup, goal: str) -> str:
    lines = [f"(define (problem plan_{setup.trial})", "(:domain alfred)", "(:objects"]
    lines += _indented(_declarations(setup))
    lines += [")", "(:init"]
    lines += _indented(f"({fact})" for fact in _facts(setup))
    return "\n".join([*lines, ")", goal])


def _declarations(setup: Setup) -> Iterator[str]:
    yield "agent1 - agent"
    receptacle_kinds, thing_kinds = _kinds(setup)
    yield from (f"{kind}Type - rtype" for kind in sorted(receptacle_kinds | _DOMAIN_CONSTANTS["rtype"]))
    yield from (f"{kind}Type - otype" for kind in sorted(thing_kinds | _DOMAIN_CONSTANTS["otype"]))
    yield from (f"{receptacle.id} - receptacle" for receptacle in setup.receptacles)
    yield from (f"{thing.id} - object" for thing in setup.things)
    yield from (f"{location} - location" for location in (*(r.location for r in setup.receptacles), _START))


def _facts(setup: Setup) -> Iterator[str]:
    yield f"atLocation agent1 {_START}"
    for receptacle in setup.receptacles:
        yield f"receptacleType {receptacle.id} {receptacle.kind}Type"
        yield f"receptacleAtLocation {receptacle.id} {receptacle.location}"
        if receptacle.kind in OPENABLE:
            yield f"openable {receptacle.id}"
    receptacle_kinds, thing_kinds = _kinds(setup)
    for kind in sorted(thing_kinds - {LAMP}):
        yield from (f"canContain {home}Type {kind}Type" for home in sorted(KINDS[kind].homes & receptacle_kinds))
    for thing in setup.things:
        yield f"objectType {thing.id} {thing.kind}Type"
        yield f"inReceptacle {thing.id} {thing.place.id}"
        yield f"objectAtLocation {thing.id} {thing.place.location}"
        yield from (f"{ability} {thing.id}" for ability in _abilities(thing.kind))


def _abilities(kind: str) -> Iterator[str]:
    if kind == LAMP:
        yield "toggleable"
        return
    yield "pickupable"
    for ability in ("cleanable", "heatable", "coolable", "sliceable"):
        if getattr(KINDS[kind], f"is_{ability}"):
            yield ability


def _kinds(setup: Setup) -> tuple[set[str], set[str]]:
    return {receptacle.kind for receptacle in setup.receptacles}, {thing.kind for thing in setup.things}


def _indented(lines: Iterator[str]) -> list[str]:
    return [f"    {line}" for line in lines]
