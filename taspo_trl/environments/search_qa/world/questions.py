"""The embedded question sets: one fact (`one_hop`) or two facts in a row (`two_hop`) of the embedded world.

Pure and reproducible.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Literal, TypeVar

from .facts import Dice, World
from .relations import RELATIONS, Relation, golden_answers, kinds_of, mention


NUM_QUESTIONS = 135
"""Questions of each set; every third one belongs to the test split."""

OptionT = TypeVar("OptionT")


@dataclass(frozen=True, slots=True)
class WorldQuestion:
    """One question with its answer and the entities whose passages hold the facts, in the order they are needed."""

    question: str
    golden_answers: tuple[str, ...]
    family: Literal["one_hop", "two_hop"]
    evidence: tuple[str, ...]


def build_questions(world: World, seed: int = 0) -> dict[str, list[WorldQuestion]]:
    """The questions of both sets by split. The kinds of question take turns, and no question is asked twice."""
    dice = Dice(f"questions {seed}")
    chains = [
        (first, second)
        for first in RELATIONS
        for second in RELATIONS
        if first.phrase and set(kinds_of(first.object)) <= set(kinds_of(second.subject))
    ]
    one_hop = _deal(lambda relation: _draw_one_hop(world, relation, dice), RELATIONS)
    two_hop = _deal(lambda chain: _draw_two_hop(world, *chain, dice), chains)
    return {
        "train": [question for family in (one_hop, two_hop) for i, question in enumerate(family) if i % 3 != 2],
        "test": [question for family in (one_hop, two_hop) for question in family[2::3]],
    }


def _draw_one_hop(world: World, relation: Relation, dice: Dice) -> WorldQuestion | None:
    subject = _pick_subject(world, relation, dice)
    value = world.facts[subject].get(relation.name)
    if value is None:
        return None
    question = relation.question.format(s=mention(world.entities[subject].kind, subject))
    return WorldQuestion(question, golden_answers(relation.object, value), "one_hop", (subject,))


def _draw_two_hop(world: World, first: Relation, second: Relation, dice: Dice) -> WorldQuestion | None:
    subject = _pick_subject(world, first, dice)
    bridge = world.facts[subject].get(first.name)
    value = world.facts[bridge].get(second.name) if bridge else None
    if bridge is None or value is None:
        return None
    phrase = first.phrase.format(s=mention(world.entities[subject].kind, subject))
    question = second.question.format(s=phrase)
    return WorldQuestion(question, golden_answers(second.object, value), "two_hop", (subject, bridge))


def _pick_subject(world: World, relation: Relation, dice: Dice) -> str:
    return dice.pick(world.of_kind(dice.pick(kinds_of(relation.subject))))


def _deal(draw: Callable[[OptionT], WorldQuestion | None], options: Sequence[OptionT]) -> list[WorldQuestion]:
    """`NUM_QUESTIONS` different questions, drawn from each option in turn; draws that find no fact are passed over."""
    found: dict[str, WorldQuestion] = {}
    for option in cycle(options):
        question = draw(option)
        if question is not None:
            found.setdefault(question.question, question)
        if len(found) == NUM_QUESTIONS:
            break
    return list(found.values())
