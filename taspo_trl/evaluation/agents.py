"""Evaluation agents: what a policy is shown besides its task, and how often it may try.

No training and no weights: an agent changes prompts and the number of attempts, so its rows stand beside those of
trained policies only with its attempts and turns named (docs/reproducing.md). Pure, but for asking for notes.

- `plain`: the untouched policy, "Vanilla".
- `react`: worked examples with a thought before each action, and a request for such thoughts (ReAct, 2210.03629).
- `reflexion`: the same with several attempts; after a failed one the policy, or an LLM, writes a note for the next
  (Reflexion, 2303.11366).
- `retry`: several attempts, the failed actions as the note: what an interaction budget alone buys, not Reflexion.

Nothing of a task's solution enters a note but the environment's verdict: notes are made from what the policy saw and
did, without the answer to its last action, which may hold a score.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from ..environments.base import PromptTemplate
from ..environments.examples import WorkedExample
from ..errors import ConfigurationError
from ..seeds import derive_seed
from ..types import Trajectory
from .notes import Answer, Reflector, clipped, note_of
from .results import Note


Message = dict[str, Any]

_THOUGHTS = (
    "Work in turns of one thought and one action. The thought, in a sentence or two, says what you know by now, what "
    "is still missing, and what the next action is for. The action follows it, in the form that is asked for below."
)
_EXAMPLES = "Worked examples of other tasks:"
_NOTES = "You have tried this very task before, from the same beginning, and failed. What you noted then:"
_OWN = "Your own task:"
_END = "(The task is done.)"
_FAILED = "These actions did not lead to success: "
_RETRY_CHARS = 1000  # of the actions that a retry's note names


class EvaluationAgent(Protocol):
    """What an evaluation asks an agent."""

    @property
    def name(self) -> str:
        """Its name on the command line."""

    @property
    def attempts(self) -> int:
        """Attempts at a task at most, at least 1."""

    @property
    def examples(self) -> int:
        """How many worked examples it wants to see."""

    @property
    def reflects(self) -> bool:
        """Whether its notes are written by a [`Reflector`], which then belongs to its settings."""

    def facts(self) -> Mapping[str, Any]:
        """Settings that make its evaluation another one; part of the result."""

    def open(self, messages: Sequence[Message], notes: Sequence[str], examples: Sequence[str]) -> list[Message]:
        """The messages of a first prompt (in window contexts: of each) with notes and examples put in."""

    def after(self, trajectory: Trajectory, notes: Sequence[str], reflector: Reflector) -> Future[Note] | None:
        """The note on a failed attempt that another one follows; None for an agent that writes none."""


@dataclass(frozen=True)
class PlainAgent:
    """The untouched policy, once."""

    name = "plain"
    attempts = 1
    examples = 0
    reflects = False

    def facts(self) -> Mapping[str, Any]:
        return {"name": self.name}

    def open(self, messages: Sequence[Message], notes: Sequence[str], examples: Sequence[str]) -> list[Message]:
        return list(messages)

    def after(self, trajectory: Trajectory, notes: Sequence[str], reflector: Reflector) -> Future[Note] | None:
        return None


@dataclass(frozen=True)
class ReActAgent:
    """Worked examples, and a thought before each action.

    Args:
        examples (`int`, *optional*, defaults to `2`):
            Worked examples of the task's family in the prompt, as many as ReAct shows in ALFWorld. 0 only asks for
            thoughts.
    """

    examples: int = 2

    name = "react"
    attempts = 1
    reflects = False

    def facts(self) -> Mapping[str, Any]:
        return _facts(self)

    def open(self, messages: Sequence[Message], notes: Sequence[str], examples: Sequence[str]) -> list[Message]:
        return _opened(messages, [_THOUGHTS, *_shown(examples)])

    def after(self, trajectory: Trajectory, notes: Sequence[str], reflector: Reflector) -> Future[Note] | None:
        return None


@dataclass(frozen=True)
class ReflexionAgent:
    """ReAct with several attempts, and a note of the policy's own after each failed one.

    Args:
        attempts (`int`, *optional*, defaults to `3`):
            Attempts at a task at most; the first success ends it.
        examples (`int`, *optional*, defaults to `2`):
            As in [`ReActAgent`].
        max_notes (`int`, *optional*, defaults to `3`):
            Notes in a prompt at most, the latest ones.
    """

    attempts: int = 3
    examples: int = 2
    max_notes: int = 3

    name = "reflexion"
    reflects = True

    def __post_init__(self) -> None:
        _check_attempts(self)
        if self.max_notes < 1:
            raise ConfigurationError(f"`max_notes` must be at least 1, got {self.max_notes}.")

    def facts(self) -> Mapping[str, Any]:
        return _facts(self)

    def open(self, messages: Sequence[Message], notes: Sequence[str], examples: Sequence[str]) -> list[Message]:
        return _opened(messages, [_THOUGHTS, *_shown(examples), *_noted(notes[-self.max_notes :])])

    def after(self, trajectory: Trajectory, notes: Sequence[str], reflector: Reflector) -> Future[Note] | None:
        return reflector.ask(trajectory, notes[-self.max_notes :])


@dataclass(frozen=True)
class RetryAgent:
    """Several attempts with the actions of the last failed one as the note; nobody reflects.

    Args:
        attempts (`int`, *optional*, defaults to `3`):
            Attempts at a task at most; the first success ends it.
    """

    attempts: int = 3

    name = "retry"
    examples = 0
    reflects = False

    def __post_init__(self) -> None:
        _check_attempts(self)

    def facts(self) -> Mapping[str, Any]:
        return _facts(self)

    def open(self, messages: Sequence[Message], notes: Sequence[str], examples: Sequence[str]) -> list[Message]:
        return _opened(messages, _noted(notes[-1:])) if notes else list(messages)

    def after(self, trajectory: Trajectory, notes: Sequence[str], reflector: Reflector) -> Future[Note] | None:
        actions = "; ".join(turn.action or "(no action)" for turn in trajectory.turns)
        done: Future[Note] = Future()
        done.set_result(note_of(Answer(_FAILED + clipped(actions, _RETRY_CHARS)), calls=0))
        return done


AGENTS: Mapping[str, Callable[..., EvaluationAgent]] = {
    "plain": PlainAgent,
    "react": ReActAgent,
    "reflexion": ReflexionAgent,
    "retry": RetryAgent,
}
"""Name on the command line -> what makes the agent; its keywords are the options that it has."""


def thinks(template: PromptTemplate) -> bool:
    """Whether an environment's prompt asks for reasoning in think tags, which examples then have, too."""
    return "<think>" in template.first


def example_text(example: WorkedExample, in_tags: bool) -> str:
    """A worked example as a prompt shows it.

    Args:
        example (`WorkedExample`):
            What is shown.
        in_tags (`bool`):
            Whether thoughts stand between think tags.
    """
    lines = [f"Task: {example.task}", example.start]
    for turn in example.turns:
        thought = f"<think>{turn.thought}</think>" if in_tags else f"Thought: {turn.thought}"
        lines += [f"{thought}\n{turn.reply}", turn.observation or _END]
    return "\n".join(lines)


def _facts(agent: Any) -> dict[str, Any]:
    # Other words are another evaluation, also after an update of the package.
    words = derive_seed(_THOUGHTS, _EXAMPLES, _NOTES, _OWN, _END, _FAILED)
    return {"name": agent.name, "attempts": agent.attempts, **asdict(agent), "words": f"{words:016x}"}


def _check_attempts(agent: Any) -> None:
    if agent.attempts < 1:
        raise ConfigurationError(f"`attempts` must be at least 1, got {agent.attempts}.")


def _shown(examples: Sequence[str]) -> list[str]:
    numbered = [f"Example {k}\n{text}" for k, text in enumerate(examples, 1)]
    return [_EXAMPLES, *numbered] if numbered else []


def _noted(notes: Sequence[str]) -> list[str]:
    return ["\n".join([_NOTES, *(f"- {note}" for note in notes)])] if notes else []


def _opened(messages: Sequence[Message], parts: Sequence[str]) -> list[Message]:
    """The messages with `parts` before the first words of the user, where they are the same from turn to turn."""
    at = next((k for k, one in enumerate(messages) if one["role"] == "user" and isinstance(one["content"], str)), None)
    if at is None:
        return [*messages, {"role": "user", "content": "\n\n".join(parts)}]
    text = "\n\n".join([*parts, _OWN, messages[at]["content"]])
    return [*messages[:at], {**messages[at], "content": text}, *messages[at + 1 :]]
