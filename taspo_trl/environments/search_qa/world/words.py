"""The embedded world in words: a passage for each entity, and questions about one fact or two in a row.

Pure and reproducible. A passage states every fact of its entity once, in one of two wordings, among sentences that
state none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Literal, TypeVar

from ..passages import Passage
from .facts import Dice, World
from .tables import KINDS, RELATIONS, Relation, kinds_of


NUM_QUESTIONS = 135
"""Questions of each set; every third one belongs to the test split."""

OptionT = TypeVar("OptionT")


def build_passages(world: World, seed: int = 0) -> list[Passage]:
    """The corpus of a world: passage `n` describes its `n`-th entity; ids are the positions as text."""
    dice = Dice(f"text {seed}")
    return [
        Passage(passage_id=str(position), title=name, text=_describe(world, name, dice))
        for position, name in enumerate(world.kinds)
    ]


def _describe(world: World, name: str, dice: Dice) -> str:
    kind = KINDS[world.kinds[name]]
    statements = {relation.name: relation.statements for relation in RELATIONS}
    sentences = []
    for relation, value in world.facts[name].items():
        said = world.mention(value)
        sentence = dice.pick(statements[relation])
        sentences.append(sentence.replace("{O}", said[0].upper() + said[1:]).replace("{o}", said))
    for _ in range(2):
        sentences.insert(dice.between(0, len(sentences)), dice.pick(kind.colour))
    # Drawing twice may give one sentence twice.
    return " ".join([kind.opening.format(name=name), *dict.fromkeys(sentences)])


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
    one_hop = _deal(lambda relation: _draw(world, (relation,), dice), RELATIONS)
    two_hop = _deal(lambda chain: _draw(world, chain, dice), chains)
    return {
        "train": [question for family in (one_hop, two_hop) for i, question in enumerate(family) if i % 3 != 2],
        "test": [question for family in (one_hop, two_hop) for question in family[2::3]],
    }


def _draw(world: World, chain: Sequence[Relation], dice: Dice) -> WorldQuestion | None:
    """A question along the relations of `chain`; None where a fact is missing."""
    subject = dice.pick(world.members[dice.pick(kinds_of(chain[0].subject))])
    said, evidence, value = world.mention(subject), [subject], subject
    for position, relation in enumerate(chain, 1):
        found = world.facts[value].get(relation.name)
        if found is None:
            return None
        value = found
        if position < len(chain):
            said = relation.phrase.format(s=said)
            evidence.append(value)
    last = chain[-1]
    spellings = KINDS[world.kinds[value]].spellings if value in world.kinds else ("{name}",)
    spellings += (f"{{name}} {last.unit}", "{name} km") if last.unit else ()
    return WorldQuestion(
        last.question.format(s=said),
        tuple(spelling.format(name=value) for spelling in spellings),
        "one_hop" if len(chain) == 1 else "two_hop",
        tuple(evidence),
    )


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
