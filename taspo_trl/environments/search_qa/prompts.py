"""The words of Search-QA: instructions, hints, and general advice for each question set.

Pure. All texts are this project's own.
"""

from __future__ import annotations

from typing import Literal, get_args

from ...errors import ConfigurationError
from ..base import PromptTemplate


ReplyFormat = Literal["think", "action"]

FIRST_OBSERVATION = "Nothing has been looked up yet."
NO_ACTION_HINT = (
    "That reply had no complete search or answer, so nothing was done. Write exactly one "
    "<search>query</search> or one <answer>final answer</answer>."
)
EMPTY_SEARCH_HINT = (
    "That search was empty, so nothing was looked up. Put the words to look for between <search> and </search>."
)

_TASK = (
    "Answer a question. You may look things up in a collection of short encyclopedia passages, "
    "and you have at most {max_turns} turns, one reply each."
)
_ACTIONS = (
    "do exactly one of these two:\n"
    "- <search>query</search> looks the query up; the best passages come back between <information> and "
    "</information>. Name what you look for: words that the passage itself is likely to hold.\n"
    "- <answer>final answer</answer> ends the task. Give only the name, date, number or yes/no that is asked for, "
    "without a sentence around it.\n"
    "Never write both, and never more than one. The last turn has to be an answer: a search made there is not "
    "carried out."
)
_REPLY_FORMATS: dict[str, str] = {
    "think": "In every reply, first reason between <think> and </think> about what you know and what is missing. "
    "Then " + _ACTIONS,
    "action": "In every reply, " + _ACTIONS,
}
_REMINDERS: dict[str, str] = {
    "think": "Reason between <think> and </think>, then write one <search> or one <answer>.",
    "action": "Write one <search> or one <answer>.",
}


def build_prompt(reply_format: ReplyFormat, max_turns: int) -> PromptTemplate:
    """The prompt template of Search-QA.

    Args:
        reply_format (`"think"` or `"action"`):
            Whether replies are asked to reason inside think tags before they act.
        max_turns (`int`):
            The number of turns that the instructions name.
    """
    if reply_format not in get_args(ReplyFormat):
        raise ConfigurationError(
            f"`reply_format` is {reply_format!r}, it must be one of {', '.join(map(repr, get_args(ReplyFormat)))}."
        )
    # The instructions come first and are the same in every turn, so that engines reuse the prefix.
    head = f"{_TASK.format(max_turns=max_turns)}\n\n{_REPLY_FORMATS[reply_format]}\n\nQuestion: {{task}}"
    now = f"This is turn {{turn}} of {max_turns}. {_REMINDERS[reply_format]}"
    return PromptTemplate(
        first=f"{head}\n\n{now}",
        later=f"{head}\n\nSo far:\n\n{{history}}\n\n{{observation}}\n\n{now}",
        reply=f"{{observation}}\n\n{now}",
        history_item="{observation}\n\nTurn {turn}: {action}",
        no_action="(no search and no answer)",
    )


_ONE_HOP_SKILL = (
    "- Search for the named person, work or place together with the property that is asked for.\n"
    "- When the first passages are about something else of a similar name, search again with a further detail.\n"
    "- Answer as soon as one passage states the fact, in the wording of that passage."
)
_BRIDGE_SKILL = (
    "- Split the question: find out first which person, work or place its description refers to.\n"
    "- Search for that name alone in the next turn, together with the property that is asked for.\n"
    "- Do not answer with the thing in between; check that the answer is of the kind the question wants."
)
_COMPARISON_SKILL = (
    "- Look up each of the compared things in a search of its own before you compare.\n"
    "- Note the dates, places or people that the passages give, and compare just these.\n"
    "- Follow a description to its name first, for example from a film to its director.\n"
    "- Answer with one of the two names, or with yes or no, as the question is put."
)

GENERIC_SKILLS: dict[str, str] = {
    "nq": "- Turn the question into its key words; leave out filler.\n" + _ONE_HOP_SKILL,
    "triviaqa": "- Search with the rarest names, titles and dates of the question.\n" + _ONE_HOP_SKILL,
    "popqa": "- Search for the full name as it is written; many names are shared.\n" + _ONE_HOP_SKILL,
    "hotpotqa": _BRIDGE_SKILL + "\n- For a comparison, look up both sides before you answer.",
    "2wikimultihopqa": _COMPARISON_SKILL,
    "musique": _BRIDGE_SKILL + "\n- Keep one turn for the answer: settle each link with a single search.",
    "bamboogle": _BRIDGE_SKILL + "\n- Prefer a passage over memory for the thing in between.",
    "one_hop": _ONE_HOP_SKILL,
    "two_hop": _BRIDGE_SKILL,
}
"""General advice by question set, for the comparison construction `generic_skill`."""
