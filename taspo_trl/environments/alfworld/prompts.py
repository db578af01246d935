"""How ALFWorld is put into words: the windowed prompt, and general advice for each family of tasks."""

from __future__ import annotations

from ...errors import ConfigurationError
from ..base import PromptTemplate


REPLY_FORMATS = {
    "think": (
        "Decide on your next action. First reason about it step by step between <think> and </think>. Then give "
        "exactly one of the admissible actions, word for word, between <action> and </action>."
    ),
    "action": (
        "Decide on your next action. Give exactly one of the admissible actions, word for word, between <action> and "
        "</action>, and nothing else."
    ),
}
"""Name of a reply format -> the instruction that asks for it."""

_ROLE = "You are an agent that does household tasks in the text world of ALFRED."

_ADMISSIBLE = "Admissible actions in this situation:\n{admissible_actions}"


def prompt_template(reply_format: str) -> PromptTemplate:
    """The prompt that asks for replies in `reply_format`.

    Args:
        reply_format (`str`):
            `"think"` (reasoning, then the action) or `"action"` (the action alone).
    """
    if reply_format not in REPLY_FORMATS:
        raise ConfigurationError(
            f"`reply_format` must be one of {', '.join(map(repr, REPLY_FORMATS))}, got {reply_format!r}."
        )
    instruction = REPLY_FORMATS[reply_format]
    return PromptTemplate(
        first=f"{_ROLE}\n\nWhat you see:\n{{observation}}\n\n{_ADMISSIBLE}\n\n{instruction}",
        later=f"{_ROLE}\nYour task is to: {{task}}\n\nTurns taken so far: {{num_turns}}. The most recent ones:\n"
        f"{{history}}\n\nTurn {{turn}}, what you see now:\n{{observation}}\n\n{_ADMISSIBLE}\n\n{instruction}",
        reply=f"{{observation}}\n\n{_ADMISSIBLE}",
        history_item="[Turn {turn}] Observation: {observation}\n[Turn {turn}] Action: {action}",
        admissible_item="- {action}",
        admissible_separator="\n",
    )


_SEARCH = (
    "Visit the receptacles one after the other, beginning with those where such an object is usually kept, open the "
    "closed ones, and do not come back to one that you have already looked into."
)

SKILLS = {
    "Pick": f"{_SEARCH} Take the object as soon as you see it, go to the target receptacle, open it if it is closed, "
    "and move the object there.",
    "Pick2": f"You can carry one object at a time. {_SEARCH} Move the first object to the target receptacle before "
    "you fetch the second one, and remember where you saw others of its kind. Both must end in the same receptacle.",
    "Clean": f"{_SEARCH} Take the object, go to a sinkbasin and use the clean action there while you hold it. Only "
    "then move it to the target receptacle.",
    "Heat": f"{_SEARCH} Take the object, go to the microwave and use the heat action there while you hold it; the "
    "object need not be put inside. Only then move it to the target receptacle.",
    "Cool": f"{_SEARCH} Take the object, go to the fridge and use the cool action there while you hold it; the object "
    "need not be put inside. Only then move it to the target receptacle.",
    "Look": f"{_SEARCH} Note where the lamp stands. Take the object, carry it to the lamp and use the lamp while you "
    "hold the object.",
}
"""Family -> advice that holds for all its tasks."""
