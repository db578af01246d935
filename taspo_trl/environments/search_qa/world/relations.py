"""What can be said and asked in the embedded world: one table, used by the facts, the passages and the questions.

Pure data. Every relation is a function: a subject has at most one object, so each question has one answer.
"""

from __future__ import annotations

from dataclasses import dataclass


PEOPLE = ("novelist", "composer", "botanist", "engineer", "painter")
"""Kinds of entity that are people: relations of the subject kind "person" hold for all of them."""


@dataclass(frozen=True, slots=True)
class Relation:
    """One kind of fact."""

    name: str
    subject: str
    """Kind of the subject; "person" stands for all of [`PEOPLE`]."""
    object: str
    """Kind of the object, or `"year"`, `"number"`, `"word"` for a plain value."""
    statements: tuple[str, ...]
    """Sentences of the subject's passage; `{o}` is the object's mention."""
    question: str
    """`{s}` is the subject's mention, or a phrase that stands for it."""
    phrase: str = ""
    """A noun phrase that stands for the object and can be the subject of another question. Empty = never used so."""


RELATIONS: tuple[Relation, ...] = (
    Relation(
        "peak",
        "island",
        "word",
        statements=("Its highest mountain is {o}.", "The land climbs to {o}, its highest mountain."),
        question="What is the highest mountain on {s}?",
    ),
    Relation(
        "island",
        "town",
        "island",
        statements=("It lies on {o}.", "The town stands on {o}."),
        question="On which island does {s} lie?",
        phrase="the island on which {s} lies",
    ),
    Relation(
        "founded",
        "town",
        "year",
        statements=("It was founded in {o}.", "Settlers founded it in {o}."),
        question="In which year was {s} founded?",
    ),
    Relation(
        "trade",
        "town",
        "word",
        statements=("It is known for its {o}.", "The town made its name with {o}."),
        question="Which product is {s} known for?",
    ),
    Relation(
        "river",
        "town",
        "river",
        statements=("{O} flows through the town.", "The old quarter is divided by {o}."),
        question="Which river flows through {s}?",
        phrase="the river that flows through {s}",
    ),
    Relation(
        "river_island",
        "river",
        "island",
        statements=("It runs across {o}.", "Its whole course is on {o}."),
        question="On which island is {s}?",
        phrase="the island on which {s} runs",
    ),
    Relation(
        "length",
        "river",
        "number",
        statements=("It is {o} kilometres long.", "From spring to mouth it measures {o} kilometres."),
        question="How many kilometres long is {s}?",
    ),
    Relation(
        "birthplace",
        "person",
        "town",
        statements=("The place of birth is {o}.", "The family lived in {o} at the time of the birth."),
        question="In which town was {s} born?",
        phrase="the town where {s} was born",
    ),
    Relation(
        "birth_year",
        "person",
        "year",
        statements=("The year of birth is {o}.", "Parish books give {o} as the year of birth."),
        question="In which year was {s} born?",
    ),
    Relation(
        "teacher",
        "person",
        "person",
        statements=("The craft was learned from {o}.", "{O} was the teacher of those early years."),
        question="Who taught {s}?",
        phrase="the teacher of {s}",
    ),
    Relation(
        "author",
        "novel",
        "novelist",
        statements=("It was written by {o}.", "Its author is {o}."),
        question="Who wrote {s}?",
        phrase="the author of {s}",
    ),
    Relation(
        "published",
        "novel",
        "year",
        statements=("It was published in {o}.", "The first edition is dated {o}."),
        question="In which year was {s} published?",
    ),
    Relation(
        "setting",
        "novel",
        "town",
        statements=("The story is set in {o}.", "All of it takes place in {o}."),
        question="In which town is {s} set?",
        phrase="the town in which {s} is set",
    ),
    Relation(
        "publisher",
        "novel",
        "press",
        statements=("{O} brought it out.", "Its publisher was {o}."),
        question="Which press published {s}?",
        phrase="the press that published {s}",
    ),
    Relation(
        "composer",
        "suite",
        "composer",
        statements=("It was composed by {o}.", "The music is by {o}."),
        question="Who composed {s}?",
        phrase="the composer of {s}",
    ),
    Relation(
        "performed",
        "suite",
        "year",
        statements=("It was first performed in {o}.", "The first performance was given in {o}."),
        question="In which year was {s} first performed?",
    ),
    Relation(
        "premiere_town",
        "suite",
        "town",
        statements=("An orchestra in {o} gave the premiere.", "The premiere took place in {o}."),
        question="In which town did {s} have its premiere?",
        phrase="the town where {s} had its premiere",
    ),
    Relation(
        "bridge_engineer",
        "bridge",
        "engineer",
        statements=("It was designed by {o}.", "The plans are the work of {o}."),
        question="Who designed {s}?",
        phrase="the designer of {s}",
    ),
    Relation(
        "crosses",
        "bridge",
        "river",
        statements=("It crosses {o}.", "Its arches span {o}."),
        question="Which river does {s} cross?",
        phrase="the river that {s} crosses",
    ),
    Relation(
        "bridge_opened",
        "bridge",
        "year",
        statements=("It was opened in {o}.", "Traffic has used it since {o}."),
        question="In which year was {s} opened?",
    ),
    Relation(
        "yard",
        "ship",
        "shipyard",
        statements=("It was built by {o}.", "The hull came from {o}."),
        question="Which shipyard built {s}?",
        phrase="the shipyard that built {s}",
    ),
    Relation(
        "launched",
        "ship",
        "year",
        statements=("It was launched in {o}.", "The launch was in {o}."),
        question="In which year was {s} launched?",
    ),
    Relation(
        "yard_town",
        "shipyard",
        "town",
        statements=("Its slipways are in {o}.", "The yard is based in {o}."),
        question="In which town is {s} based?",
        phrase="the home town of {s}",
    ),
    Relation(
        "founder",
        "shipyard",
        "engineer",
        statements=("It was founded by {o}.", "The founder was {o}."),
        question="Who founded {s}?",
        phrase="the founder of {s}",
    ),
    Relation(
        "yard_founded",
        "shipyard",
        "year",
        statements=("Work began in {o}.", "It has been in business since {o}."),
        question="In which year did {s} begin to work?",
    ),
    Relation(
        "press_town",
        "press",
        "town",
        statements=("The printing shop is in {o}.", "It has always printed in {o}."),
        question="In which town does {s} print?",
        phrase="the town where {s} prints",
    ),
    Relation(
        "press_founded",
        "press",
        "year",
        statements=("It was set up in {o}.", "Its first sheet was printed in {o}."),
        question="In which year was {s} set up?",
    ),
    Relation(
        "museum_town",
        "museum",
        "town",
        statements=("It stands in {o}.", "Visitors find it in {o}."),
        question="In which town does {s} stand?",
        phrase="the town where {s} stands",
    ),
    Relation(
        "architect",
        "museum",
        "engineer",
        statements=("The building was planned by {o}.", "{O} planned the building."),
        question="Who planned the building of {s}?",
        phrase="the planner of the building of {s}",
    ),
    Relation(
        "museum_opened",
        "museum",
        "year",
        statements=("Its doors opened in {o}.", "It received its first visitors in {o}."),
        question="In which year did {s} open?",
    ),
    Relation(
        "describer",
        "plant",
        "botanist",
        statements=("It was first described by {o}.", "The first description is due to {o}."),
        question="Who first described {s}?",
        phrase="the botanist who first described {s}",
    ),
    Relation(
        "habitat",
        "plant",
        "island",
        statements=("It grows only on {o}.", "In the wild it is found only on {o}."),
        question="On which island does {s} grow?",
        phrase="the island on which {s} grows",
    ),
    Relation(
        "colour",
        "plant",
        "word",
        statements=("Its flowers are {o}.", "In early summer it bears flowers that are {o}."),
        question="What colour are the flowers of {s}?",
    ),
    Relation(
        "painter",
        "painting",
        "painter",
        statements=("It was painted by {o}.", "The painter is {o}."),
        question="Who painted {s}?",
        phrase="the painter of {s}",
    ),
    Relation(
        "museum",
        "painting",
        "museum",
        statements=("It hangs in {o}.", "Today the picture is kept in {o}."),
        question="In which museum does {s} hang?",
        phrase="the museum in which {s} hangs",
    ),
    Relation(
        "painted",
        "painting",
        "year",
        statements=("It is dated {o}.", "The canvas was finished in {o}."),
        question="In which year was {s} finished?",
    ),
)

BY_NAME = {relation.name: relation for relation in RELATIONS}


def kinds_of(role: str) -> tuple[str, ...]:
    """The kinds of entity that a subject or object role covers."""
    return PEOPLE if role == "person" else (role,)


_MENTIONS = {
    "island": "the island of {name}",
    "river": "the River {name}",
    "novel": 'the novel "{name}"',
    "suite": "the {name}",
    "bridge": "the {name}",
    "ship": 'the ship "{name}"',
    "museum": "the {name}",
    "plant": "the {name}",
    "painting": 'the painting "{name}"',
    "press": "the {name}",
    "shipyard": "the {name}",
}


def mention(kind: str, name: str) -> str:
    """How a text speaks of an entity."""
    return _MENTIONS.get(kind, "{name}").format(name=name)


def golden_answers(kind: str, value: str) -> tuple[str, ...]:
    """The spellings of an object that count as right."""
    if kind == "river":
        return value, f"River {value}"
    if kind == "island":
        return value, f"island of {value}"
    if kind == "number":
        return value, f"{value} kilometres", f"{value} km"
    return (value,)
