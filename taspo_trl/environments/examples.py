"""Worked examples: whole solved episodes with a thought before each action, for prompts that show some (ReAct).

Those of the built-in environments are data, `examples.json` beside each: training tasks, played by an oracle or a
walkthrough (`benchmarks/worked_examples.py` writes them, the tests replay them). Pure, but for reading that file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


_MAX_OBSERVATION = 1000  # characters, of a page of search results


@dataclass(frozen=True, slots=True)
class WorkedTurn:
    """One turn of a worked example."""

    thought: str
    """Why this action, in a sentence or two."""
    reply: str
    """The action as a reply gives it, its tags included."""
    observation: str = ""
    """The environment's answer; empty where the action ended the episode."""


@dataclass(frozen=True, slots=True)
class WorkedExample:
    """One solved task, from its first observation to its last action."""

    task: str
    start: str
    """The first observation."""
    turns: tuple[WorkedTurn, ...]
    family: str = ""


@cache
def builtin_examples(environment: str) -> tuple[WorkedExample, ...]:
    """The examples in the `examples.json` of a built-in environment, in their order.

    Args:
        environment (`str`):
            Its name on the command line, for example `"household"`.
    """
    text = files(f"{__package__}.{environment}").joinpath("examples.json").read_text(encoding="utf-8")
    return tuple(
        WorkedExample(
            one["task"], one["start"], tuple(WorkedTurn(**turn) for turn in one["turns"]), one["row"].get("family", "")
        )
        for one in json.loads(text)
    )


def of_family(examples: Sequence[WorkedExample], family: str) -> tuple[WorkedExample, ...]:
    """All examples, those of `family` first."""
    return tuple(sorted(examples, key=lambda one: one.family != family))


def shorten(observation: str) -> str:
    """An observation as an example shows it: one of more than a thousand characters without its middle."""
    if len(observation) <= _MAX_OBSERVATION:
        return observation
    half = _MAX_OBSERVATION // 2
    return f"{observation[:half]} ... {observation[len(observation) - half :]}"
