"""The embedded world in words: one short passage for each entity.

Pure and reproducible. A passage states every fact of its entity once, in one of two wordings, among sentences of
colour that state none.
"""

from __future__ import annotations

from ..passages import Passage
from .facts import Dice, World
from .relations import BY_NAME, PEOPLE, mention


_OPENINGS = {
    "island": "{name} is an island of the Ormund archipelago.",
    "river": "The River {name} is a stream of the Ormund archipelago.",
    "town": "{name} is a town of the Ormund archipelago.",
    "press": "The {name} is a printing house.",
    "shipyard": "The {name} is a builder of wooden ships.",
    "novel": '"{name}" is a novel.',
    "suite": "The {name} is a work for orchestra.",
    "bridge": "The {name} is a bridge of dressed stone.",
    "ship": 'The "{name}" was a three-masted ship.',
    "museum": "The {name} is a museum of art.",
    "plant": "The {name} is a flowering plant.",
    "painting": '"{name}" is a painting in oil.',
    **{profession: f"{{name}} was a {profession} of the Ormund archipelago." for profession in PEOPLE},
}
_PEOPLE_COLOUR = (
    "Letters and diaries have survived in large numbers.",
    "Friends remembered a dry wit and a dislike of travel.",
    "Most of the early papers were lost in a fire.",
    "A street and a school bear the name today.",
    "Later generations rediscovered this work after long neglect.",
    "Ill health marked the last years.",
)
_COLOUR = {
    "island": (
        "Sheep outnumber its people by far.",
        "Fog closes the harbours on many days in autumn.",
        "Most of the coast is cliff.",
        "A mail boat calls twice a week.",
    ),
    "river": (
        "Herons nest along the lower course.",
        "Mills used to stand at every bend.",
        "It floods the meadows in most springs.",
        "Its water is brown from the peat.",
    ),
    "town": (
        "A weekly market is held below the old walls.",
        "The town hall burned down twice.",
        "Steep lanes lead down to the quay.",
        "Its bells were cast from old cannon.",
    ),
    "press": ("It printed almanacs and sheet music as well.", "Its type was cut by hand.", "It never employed many."),
    "shipyard": (
        "Oak was floated in from the hills.",
        "A strike closed the gates for a winter.",
        "Rope was bought in.",
    ),
    "novel": (
        "Critics were slow to warm to it.",
        "It has been translated many times.",
        "Its narrator is never named.",
        "The manuscript is written in green ink.",
    ),
    "suite": (
        "The slow movement is often played alone.",
        "It calls for two harps.",
        "The score was revised once.",
        "Its last part is a dance.",
    ),
    "bridge": (
        "A toll was taken for many years.",
        "Lamps were added later.",
        "It replaced a ferry.",
        "Its parapets carry carved fish.",
    ),
    "ship": (
        "It carried timber and mail.",
        "A gale cost it two masts.",
        "It had a crew of forty.",
        "It was broken up in the end.",
    ),
    "museum": (
        "Entry is free on feast days.",
        "A storm once lifted the roof.",
        "Its library may be used by anyone.",
        "The garden holds statues.",
    ),
    "plant": (
        "Its leaves smell of aniseed.",
        "Bees prefer it to clover.",
        "It does not survive hard frost.",
        "The root was used as a dye.",
    ),
    "painting": (
        "It shows a room with an open window.",
        "A copy was made for a chapel.",
        "The frame is original.",
        "It was cleaned and found to be brighter than thought.",
    ),
    **dict.fromkeys(PEOPLE, _PEOPLE_COLOUR),
}


def build_passages(world: World, seed: int = 0) -> list[Passage]:
    """The corpus of a world: passage `n` describes its `n`-th entity; ids are the positions as text."""
    dice = Dice(f"text {seed}")
    return [
        Passage(passage_id=str(position), title=name, text=_describe(world, name, dice))
        for position, name in enumerate(world.entities)
    ]


def _describe(world: World, name: str, dice: Dice) -> str:
    kind = world.entities[name].kind
    sentences = [
        _state(world, dice.pick(BY_NAME[relation].statements), value) for relation, value in world.facts[name].items()
    ]
    for _ in range(2):
        sentences.insert(dice.between(0, len(sentences)), dice.pick(_COLOUR[kind]))
    # Drawing twice may give one sentence of colour twice.
    return " ".join([_OPENINGS[kind].format(name=name), *dict.fromkeys(sentences)])


def _state(world: World, statement: str, value: str) -> str:
    entity = world.entities.get(value)
    spoken = mention(entity.kind, value) if entity else value
    return statement.replace("{O}", spoken[0].upper() + spoken[1:]).replace("{o}", spoken)
