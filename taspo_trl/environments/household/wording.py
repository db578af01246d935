"""The world in words: task texts, actions, observations, prompts, and the closed list of phrases they are made of.

The sentences are few and regular, so that a tiny policy whose tokenizer knows each phrase as one token can read them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from ...errors import ConfigurationError
from ..base import PromptTemplate
from .catalogue import CONDITIONS, LAMP, PRESETS, RECEPTACLES, Preset
from .tasks import Goal, check_preset
from .world import Action, World


NOTHING_HAPPENS = "Nothing happens."
EMPTY_HANDS = "You carry nothing."
EMPTY_PLACE = "You see nothing."
CLOSED_PLACE = "It is closed."
LIT = "lit"

INSTRUCTIONS = {
    "action": "Answer with one of these actions between <action> and </action>.",
    "think": "Reason first between <think> and </think>, then give one of these actions between <action> and "
    "</action>.",
}
"""Reply format -> the last line of every prompt."""

_TASK, _DID, _NOW, _CAN, _CHOICE, _NO_ACTION = "Task:", "You did:", "Now:", "You can:", ">", "(no action)"

_FRAME = (
    *(NOTHING_HAPPENS, EMPTY_HANDS, EMPTY_PLACE, CLOSED_PLACE, LIT),
    *("You are in the", "You are at", "You see", "You carry", "You open", "You close", "You take", "You move"),
    *("You clean", "You heat", "You cool", "You turn on", "from", "to", "with", ",", "."),
    *("Put a", "Put an", "Put two", "s", "in a", "on a", "Examine a", "Examine an", "under a lit lamp."),
    *("go to", "open", "close", "take", "move", "clean", "heat", "cool", "turn on", "look", "inventory", "hot"),
    *(_TASK, _DID, _NOW, _CAN, _CHOICE, _NO_ACTION, "<action>", "</action>"),
)

GENERIC_SKILLS = {
    "pick": "Search the places where such a thing is usually kept and open what is closed. Take the thing, go to the "
    "place that the task names, open it if it is closed, and move the thing there.",
    "look": "Find the thing and take it, then find the lamp, which stands on some piece of furniture. Turn the lamp "
    "on while you carry the thing.",
    "clean": "Find the thing and take it, then go to a sink and clean it there. Only then move it to the place that "
    "the task names.",
    "heat": "Find the thing and take it, then go to the microwave and heat it there. Only then move it to the place "
    "that the task names.",
    "cool": "Find the thing and take it, then go to the fridge and cool it there. Only then move it to the place that "
    "the task names.",
    "two": "You can carry one thing at a time: bring the first one to the place that the task names, then search for "
    "the second one. Both must end up in the same place.",
}
"""Family -> advice that holds for each of its tasks."""


def check_reply_format(reply_format: str) -> None:
    if reply_format not in INSTRUCTIONS:
        raise ConfigurationError(
            f"`reply_format` ({reply_format!r}) must be one of {', '.join(map(repr, INSTRUCTIONS))}."
        )


@cache
def prompt_template(reply_format: str) -> PromptTemplate:
    """The prompts for a reply format of `INSTRUCTIONS`."""
    choices = f"{_CAN}\n{{admissible_actions}}\n{INSTRUCTIONS[reply_format]}"
    return PromptTemplate(
        first=f"{_TASK} {{task}}\n{{observation}}\n{choices}",
        later=f"{_TASK} {{task}}\n{_DID}\n{{history}}\n{_NOW} {{observation}}\n{choices}",
        reply=f"{{observation}}\n{choices}",
        history_item=f"{{observation}}\n{_CHOICE} {{action}}",
        # A line for each: a phrase tokenizer spends nothing on white space.
        admissible_separator="\n",
        no_action=_NO_ACTION,
    )


def task_text(goal: Goal) -> str:
    """The goal as the player reads it, for example "Put a clean mug in a cabinet."."""
    if goal.family == "look":
        return f"Examine {_with_article(goal.kind)} under a lit lamp."
    preposition = RECEPTACLES[goal.receptacle].preposition
    where = f"{preposition} a {goal.receptacle}"
    if goal.count == 2:
        return f"Put two {goal.kind}s {where}."
    return f"Put {_with_article(f'{goal.condition} {goal.kind}'.strip())} {where}."


def _with_article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


_ACTION_FORMS = {
    "take": "take {thing} from {place}",
    "move": "move {thing} to {place}",
    **{verb: f"{verb} {{thing}} with {{place}}" for verb in CONDITIONS},
}


@cache
def action_text(action: Action) -> str:
    """The action as the player writes it, for example "take mug 1 from shelf 1"."""
    form = _ACTION_FORMS.get(action.verb)
    if form is None:
        return " ".join(part for part in action if part)
    return form.format(thing=action.thing, place=action.place)


def scene_text(world: World) -> str:
    """What the player sees at the start, and on `look`."""
    if not world.position:
        return f"You are in the {world.room}. You see {', '.join(world.places)}. {carried_text(world)}"
    return f"You are at {world.position}. {_contents_text(world)} {carried_text(world)}"


def outcome_text(action: Action, world: World) -> str:
    """What the player is told after an accepted action; `world` is the state after it."""
    verb = action.verb
    if verb in ("go to", "look"):
        return scene_text(world)
    if verb == "inventory":
        return carried_text(world)
    done = f"You {action_text(action)}."
    if verb == "open":
        return f"{done} {_contents_text(world)} {carried_text(world)}"
    return f"{done} {carried_text(world)}"


def carried_text(world: World) -> str:
    """The sentence about the player's hands that ends every observation but "Nothing happens."."""
    return f"You carry {_described(world.carried, world)}." if world.carried else EMPTY_HANDS


def _contents_text(world: World) -> str:
    place = world.position
    if place in world.closed:
        return CLOSED_PLACE
    lamps = [f"{LIT} {lamp}" if lamp in world.lit else lamp for lamp in world.lamps_at(place)]
    visible = lamps + [_described(thing, world) for thing in world.contents[place]]
    return f"You see {', '.join(visible)}." if visible else EMPTY_PLACE


def _described(thing: str, world: World) -> str:
    return " ".join((*world.conditions_of(thing), thing))


def phrases(preset: str = "standard", reply_format: str = "action") -> list[str]:
    """The closed vocabulary of a preset: every task text, observation, action and prompt is a run of these phrases.

    Cut a text by taking the longest phrase that matches next; white space between phrases means nothing. With HF
    `tokenizers` that is `Split(Regex(phrase_pattern(preset)), "removed", invert=True)` before a `WordLevel` model. The
    phrases of an action, joined by single spaces, give back the action.

    Args:
        preset (`str`, *optional*, defaults to `"standard"`):
            `"standard"` or `"small"`.
        reply_format (`str`, *optional*, defaults to `"action"`):
            Reply format whose instruction line is included.
    """
    check_preset(preset)
    check_reply_format(reply_format)
    rooms = PRESETS[preset].rooms
    things = sorted({thing for room in rooms for thing in room.things})
    receptacles = sorted({kind for room in rooms for kind in (*room.fixed, *room.extras)})
    return list(
        dict.fromkeys(
            [
                *_FRAME,
                INSTRUCTIONS[reply_format],
                *(room.name for room in rooms),
                *receptacles,
                *(f"{kind} {number}" for kind in receptacles for number in _numbers(_most_places(rooms, kind))),
                *things,
                *(f"{kind} {number}" for kind in things for number in _numbers(_most_things(PRESETS[preset]))),
                f"{LAMP} 1",
            ]
        )
    )


def phrase_pattern(preset: str = "standard", reply_format: str = "action") -> str:
    """A regular expression whose matches cut a text into `phrases`, longest first; other words match whole."""
    longest_first = sorted(phrases(preset, reply_format), key=len, reverse=True)
    return "|".join([*(re.escape(phrase) for phrase in longest_first), r"\S+"])


def _numbers(most: int) -> range:
    return range(1, most + 1)


def _most_places(rooms: Iterable, kind: str) -> int:
    return max(room.fixed.count(kind) + room.extras.get(kind, 0) for room in rooms)


def _most_things(preset: Preset) -> int:
    return max(preset.copies[1], 2 + preset.spare_targets[1])
