"""Recorded turns as plain lines, the same wording in every context.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..analyzer.quotes import collapse
from ..types import Trajectory, Turn


_THOUGHTS = re.compile(r"<(think|thinking|thought|reasoning)>.*?(?:</\1>|\Z)", re.DOTALL | re.IGNORECASE)
_TAG = re.compile(r"</?\w+>")


def transcript(trajectory: Trajectory) -> str:
    """The task, then each action and the environment's answer."""
    return "\n".join([f"Task: {collapse(trajectory.task_text)}", *steps(trajectory.turns)])


def steps(turns: Iterable[Turn]) -> list[str]:
    """Two lines for each turn: the action and the answer; empty ones are left out."""
    lines = []
    for turn in turns:
        lines += [f"> {collapse(turn.action)}", collapse(turn.next_observation)]
    return [line for line in lines if line]


def reply_lines(turns: Iterable[Turn]) -> list[str]:
    """What was said in each turn, without reasoning, tags and answers; empty ones are left out."""
    return [f"> {said}" for turn in turns if (said := without_reasoning(turn))]


def without_reasoning(turn: Turn) -> str:
    """The executed action; for a turn that has none, the reply without its thoughts. Without tags."""
    text = turn.action or _THOUGHTS.sub(" ", turn.reply_text)
    return collapse(_TAG.sub(" ", text))
