"""What there is, what can be said and what can be asked in the embedded world.

Pure data. Every relation is a function: a subject has at most one object, so each question has one answer.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of entity."""

    count: int
    """How many a world of scale 1 has; each has one passage."""
    pattern: str
    """What its names are made of, see [`WORDS`]."""
    opening: str
    """The first sentence of its passage."""
    colour: tuple[str, ...]
    """Sentences that state no fact."""
    mention: str = "{name}"
    """How a text speaks of it."""
    spellings: tuple[str, ...] = ("{name}",)
    """Which answers name it."""


_PEOPLE_COLOUR = (
    "Letters and diaries have survived in large numbers.",
    "Friends remembered a dry wit and a dislike of travel.",
    "A street and a school bear the name today.",
    "Ill health marked the last years.",
)

KINDS: dict[str, Kind] = {
    "island": Kind(
        12,
        "{place}",
        "{name} is an island of the Ormund archipelago.",
        ("Sheep outnumber its people by far.", "Most of the coast is cliff.", "A mail boat calls twice a week."),
        mention="the island of {name}",
        spellings=("{name}", "island of {name}"),
    ),
    "river": Kind(
        32,
        "{place}",
        "The River {name} is a stream of the Ormund archipelago.",
        ("Herons nest along the lower course.", "Mills used to stand at every bend.", "Its water is brown from peat."),
        mention="the River {name}",
        spellings=("{name}", "River {name}"),
    ),
    "town": Kind(
        80,
        "{place}",
        "{name} is a town of the Ormund archipelago.",
        ("A weekly market is held below the old walls.", "The town hall burned down twice.", "Its lanes are steep."),
    ),
    "novelist": Kind(50, "{first} {last}", "{name} was a novelist of the Ormund archipelago.", _PEOPLE_COLOUR),
    "engineer": Kind(50, "{first} {last}", "{name} was an engineer of the Ormund archipelago.", _PEOPLE_COLOUR),
    "novel": Kind(
        90,
        "The {adjective} {noun}",
        '"{name}" is a novel.',
        ("Critics were slow to warm to it.", "Its narrator is never named.", "The manuscript is in green ink."),
        mention='the novel "{name}"',
    ),
    "bridge": Kind(
        80,
        "{place} Bridge",
        "The {name} is a bridge of dressed stone.",
        ("A toll was taken for many years.", "Lamps were added later.", "Its parapets carry carved fish."),
        mention="the {name}",
    ),
    "ship": Kind(
        70,
        "{adjective} {bird}",
        'The "{name}" was a three-masted ship.',
        ("It carried timber and mail.", "A gale cost it two masts.", "It was broken up in the end."),
        mention='the ship "{name}"',
    ),
}

PEOPLE = ("novelist", "engineer")
"""What the role "person" covers in a relation."""


@dataclass(frozen=True, slots=True)
class Relation:
    """One kind of fact."""

    name: str
    subject: str
    """A kind, or "person"."""
    object: str
    """A kind, "person" (then of the subject's own kind), or "value"."""
    statements: tuple[str, str]
    """Sentences of the subject's passage; `{o}` is the object's mention, `{O}` the same at the head of a sentence."""
    question: str
    """`{s}` is the subject's mention, or a phrase that stands for it."""
    phrase: str = ""
    """A noun phrase that stands for the object in another question. Empty = never used so."""
    pattern: str = ""
    """A value that is a name: what it is made of."""
    options: tuple[str, ...] = ()
    """A value that is one of these."""
    numbers: tuple[int, int] | None = None
    """A value that is a whole number from the first to the second; with `after`, so many years later."""
    after: str = ""
    """The relation whose object, a person, must have been born before."""
    same: tuple[str, str] | None = None
    """(relation of the subject, relation of the object): the two agree."""
    older: tuple[int, int] | None = None
    """By how many years the object, a person, is older than the subject."""
    unit: str = ""
    """What an answer may say behind a number."""


_TRADES = (
    "sailcloth",
    "slate",
    "smoked eel",
    "candles",
    "rope",
    "cider",
    "lace",
    "sea salt",
    "clocks",
    "honey",
    "tin",
)

RELATIONS: tuple[Relation, ...] = (
    Relation(
        "peak", "island", "value",
        ("Its highest mountain is {o}.", "The land climbs to {o}, its highest mountain."),
        "What is the highest mountain on {s}?",
        pattern="Mount {place}",
    ),
    Relation(
        "river_island", "river", "island",
        ("It runs across {o}.", "Its whole course is on {o}."),
        "On which island is {s}?", "the island on which {s} runs",
    ),
    Relation(
        "length", "river", "value",
        ("It is {o} kilometres long.", "From spring to mouth it measures {o} kilometres."),
        "How many kilometres long is {s}?",
        numbers=(11, 240), unit="kilometres",
    ),
    Relation(
        "island", "town", "island",
        ("It lies on {o}.", "The town stands on {o}."),
        "On which island does {s} lie?", "the island on which {s} lies",
    ),
    Relation(
        "founded", "town", "value",
        ("It was founded in {o}.", "Settlers founded it in {o}."),
        "In which year was {s} founded?",
        numbers=(1120, 1590),
    ),
    Relation(
        "trade", "town", "value",
        ("It is known for its {o}.", "The town made its name with {o}."),
        "Which product is {s} known for?",
        options=_TRADES,
    ),
    Relation(
        "river", "town", "river",
        ("{O} flows through the town.", "The old quarter is divided by {o}."),
        "Which river flows through {s}?", "the river that flows through {s}",
        same=("island", "river_island"),
    ),
    Relation(
        "birthplace", "person", "town",
        ("The place of birth is {o}.", "The family lived in {o} at the time of the birth."),
        "In which town was {s} born?", "the town where {s} was born",
    ),
    Relation(
        "birth_year", "person", "value",
        ("The year of birth is {o}.", "Parish books give {o} as the year of birth."),
        "In which year was {s} born?",
        numbers=(1700, 1850),
    ),
    Relation(
        "teacher", "person", "person",
        ("The craft was learned from {o}.", "{O} was the teacher of those early years."),
        "Who taught {s}?", "the teacher of {s}",
        older=(20, 50),
    ),
    Relation(
        "author", "novel", "novelist",
        ("It was written by {o}.", "Its author is {o}."),
        "Who wrote {s}?", "the author of {s}",
    ),
    Relation(
        "published", "novel", "value",
        ("It was published in {o}.", "The first edition is dated {o}."),
        "In which year was {s} published?",
        numbers=(22, 60), after="author",
    ),
    Relation(
        "setting", "novel", "town",
        ("The story is set in {o}.", "All of it takes place in {o}."),
        "In which town is {s} set?", "the town in which {s} is set",
    ),
    Relation(
        "designer", "bridge", "engineer",
        ("It was designed by {o}.", "The plans are the work of {o}."),
        "Who designed {s}?", "the designer of {s}",
    ),
    Relation(
        "crosses", "bridge", "river",
        ("It crosses {o}.", "Its arches span {o}."),
        "Which river does {s} cross?", "the river that {s} crosses",
    ),
    Relation(
        "opened", "bridge", "value",
        ("It was opened in {o}.", "Traffic has used it since {o}."),
        "In which year was {s} opened?",
        numbers=(22, 60), after="designer",
    ),
    Relation(
        "shipwright", "ship", "engineer",
        ("It was built by {o}.", "The hull is the work of {o}."),
        "Who built {s}?", "the builder of {s}",
    ),
    Relation(
        "launched", "ship", "value",
        ("It was launched in {o}.", "The launch was in {o}."),
        "In which year was {s} launched?",
        numbers=(22, 60), after="shipwright",
    ),
    Relation(
        "home_port", "ship", "town",
        ("Its home port was {o}.", "It was registered in {o}."),
        "Which town was the home port of {s}?", "the home port of {s}",
    ),
)  # fmt: skip
"""In this order facts are drawn and stated."""

WORDS: dict[str, tuple[str, ...]] = {
    "stem": (
        *("Ald", "Arl", "Bal", "Bren", "Cald", "Carn", "Corv", "Dal", "Dorn", "Drev", "Eld", "Elm", "Fal", "Fenn"),
        *("Garl", "Gorm", "Hald", "Harv", "Hesk", "Ilm", "Jarn", "Kell", "Kest", "Lam", "Lorn", "Mard", "Morl", "Nev"),
        *("Norb", "Old", "Orm", "Pell", "Penr", "Quill", "Rav", "Roth", "Sarn", "Selk", "Skell", "Tarn", "Thorl"),
        *("Ulv", "Vald", "Vern", "Wend", "Wulm", "Yar", "Zell"),
    ),
    "link": ("a", "e", "i", "o", "u", "er", "an", "in", "el", "or", "ing", "am"),
    "place": (
        *("wick", "mere", "holt", "ford", "dale", "stead", "garth", "mouth", "ness", "combe", "by", "thorpe", "field"),
        *("haven", "bury", "fell", "moor", "beck", "minster", "lea", "stow", "gate", "rigg", "worth"),
    ),
    "first": ("a", "en", "is", "o", "an", "ia", "or", "in", "wen", "ric", "eth", "ine"),
    "last": ("sen", "man", "well", "hart", "lock", "ley", "ton", "shaw", "mond", "ard", "ick", "ow", "ema", "ander"),
    "adjective": (
        *("Amber", "Ashen", "Borrowed", "Broken", "Burning", "Copper", "Crooked", "Distant", "Drifting", "Drowned"),
        *("Empty", "Faithless", "Forgotten", "Frozen", "Gilded", "Glass", "Hidden", "Hollow", "Idle", "Iron"),
        *("Marble", "Nameless", "Painted", "Patient", "Quiet", "Restless", "Salted", "Silent", "Velvet", "Winter"),
    ),
    "noun": (
        *("Almanac", "Anchor", "Apprentice", "Archive", "Beacon", "Bell", "Candle", "Carpenter", "Compass"),
        *(
            "Courtyard",
            "Cradle",
            "Daughter",
            "Dovecote",
            "Embassy",
            "Ferry",
            "Fiddler",
            "Garden",
            "Granary",
            "Harvest",
        ),
        *("Herald", "Journal", "Lantern", "Ledger", "Locksmith", "Meadow", "Mirror", "Orchard", "Pilgrim", "Window"),
    ),
    "bird": ("Auk", "Bittern", "Curlew", "Gannet", "Heron", "Kestrel", "Lapwing", "Petrel", "Plover", "Skua", "Tern"),
}
"""Parts of names: a place is a stem and an ending, first and last names as well; longer ones have a link between."""


def kinds_of(role: str) -> tuple[str, ...]:
    """The kinds of entity that a role covers."""
    return PEOPLE if role == "person" else (role,)
