"""What a guided demonstration is shown: the wordings in which constructions put privileged text, on plans and answers.

Pure. Two kinds: a text for the whole episode, which tells a solution, and one for each turn, which tells what the
turn's action leads to. The policy meets all of them, so that no method of guidance owns the dialect.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


WHOLE = {"lines": 0.5, "transcript": 0.25, "replies": 0.25}
"""Wording of a solution -> share."""
PER_TURN = {"feedback": 0.25, "next": 0.25, "table": 0.5}
"""Wording of a single action's consequences -> share."""

WORDS = (
    *("A success:", "Do:", "Avoid:", "This works:", "Feedback:", "Next:", "The solved task ends with:"),
    *("The attempt succeeded.", "The attempt failed.", "->", ": tried", "solved", "mean return", "best", "worst"),
    *(":", *map(str, range(9)), "0.125", "0.25", "0.333", "0.5", "0.667", "0.75"),
)
"""Words that these wordings have beside the household's own phrases; a tokenizer of phrases must know them."""


@dataclass(frozen=True)
class Step:
    """One turn of a solution."""

    action: str
    answer: str


def drawn(rng: random.Random, shares: Mapping[str, float]) -> str:
    """A name, drawn by its share."""
    return rng.choices(list(shares), list(shares.values()))[0]


def solution_text(wording: str, task: str, steps: Sequence[Step], rng: random.Random) -> str:
    """A solution in one of the wordings of [`WHOLE`].

    Args:
        wording (`str`):
            `"lines"`: what an analyzer keeps of it, one action a line: ways to places and single lines may be missing.
            `"transcript"`: the task, every action and its answer. `"replies"`: every action.
        task (`str`):
            The task in words.
        steps (`Sequence[Step]`):
            The solution.
        rng (`random.Random`):
            Decides what is missing.
    """
    if wording == "transcript":
        return "\n".join([f"Task: {task}", *(line for one in steps for line in (f"> {one.action}", one.answer))])
    if wording == "replies":
        title = ["A success:"] if rng.random() < 0.5 else []
        return "\n".join([*title, *(f"> {one.action}" for one in steps)])
    told = [one.action for one in steps if not one.action.startswith("go to") or rng.random() < 0.5]
    kept = [action for action in told if rng.random() < 0.85] or told[-1:]
    return "\n".join(f"- {action}" for action in kept)


def consequence_text(
    wording: str, action: str, answer: str, next_actions: Sequence[str], others: Sequence[str], rng: random.Random
) -> str:
    """What is told of one turn in one of the wordings of [`PER_TURN`].

    Args:
        wording (`str`):
            `"feedback"`: the answer. `"next"`: the answer with what can be done then. `"table"`: how often actions
            were tried in this state and how their episodes ended; the one with the best return is `action`, wherever
            it stands.
        action (`str`), answer (`str`), next_actions (`Sequence[str]`):
            The action, and what it led to.
        others (`Sequence[str]`):
            Other actions that are possible in this state.
        rng (`random.Random`):
            Decides the counts and the order of a table.
    """
    if wording == "feedback":
        return f"Feedback: {answer}"
    if wording == "next":
        return f"Next: {answer}\nYou can: {', '.join(next_actions)}"
    tried = rng.sample(list(others), min(len(others), rng.randrange(1, 4)))
    rows = [
        _row(action, rng.randrange(1, 5), 1 + rng.randrange(2)),
        *(_row(one, rng.randrange(1, 5), 0) for one in tried),
    ]
    rng.shuffle(rows)
    return "\n".join(rows)


def _row(action: str, tried: int, solved: int) -> str:
    solved = min(tried, solved)
    mean, best, worst = solved / tried, int(solved > 0), int(solved == tried)
    return f"- {action}: tried {tried}, solved {solved}, mean return {mean:.3g}, best {best}, worst {worst}"


def verdict_text(success: bool) -> str:
    """How a judgement opens."""
    return "The attempt succeeded." if success else "The attempt failed."
