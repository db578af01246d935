"""From the options of `taspo eval` to an evaluation agent, and to whoever writes its notes."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import ConfigurationError
from .sources import environment_class


if TYPE_CHECKING:
    from ..evaluation import EvaluationAgent, Reflector
    from ..generation import Engine
    from ..rollout.contexts import ChatRenderer
    from ..rollout.loop import RolloutSettings


_OPTIONS = ("attempts", "examples")


def add_agent_options(made: argparse.ArgumentParser) -> None:
    """The options that choose an agent."""
    made.add_argument(
        "--agent",
        choices=["plain", "react", "reflexion", "retry"],
        default="plain",
        help="what the policy is shown and how often it may try: plain (default), react (worked examples, a thought "
        "before each action), reflexion (the same with several attempts and notes in between), retry (several "
        "attempts with the failed actions as the note)",
    )
    made.add_argument("--attempts", type=int, help="reflexion, retry: attempts at a task at most (default: 3)")
    made.add_argument("--examples", type=int, help="react, reflexion: worked examples in the prompt (default: 2)")
    made.add_argument("--note-tokens", type=int, help="reflexion: tokens of a note that are kept (default: 256)")
    made.add_argument(
        "--reflection-model", help="reflexion: LiteLLM's name of who writes the notes (default: the policy itself)"
    )
    made.add_argument("--reflection-api-base", help="root of that model's API, e.g. http://localhost:8000/v1")


def agent_of(options: argparse.Namespace) -> EvaluationAgent:
    """The agent that the options name.

    Raises:
        ConfigurationError: an option is none of the agent's.
    """
    from ..evaluation import AGENTS

    makes = AGENTS[options.agent]
    having = {name: [one for one, made in AGENTS.items() if name in _parameters(made)] for name in _OPTIONS}
    given = {name: getattr(options, name) for name in _OPTIONS if getattr(options, name) is not None}
    if given.get("attempts") == 1 and options.agent not in having["attempts"]:
        del given["attempts"]  # what it does anyway
    for name in given:
        if options.agent not in having[name]:
            raise ConfigurationError(
                f"`--{name} {given[name]}` is no option of `--agent {options.agent}`, but of "
                f"{' and '.join(having[name])}."
            )
    for name in ("note_tokens", "reflection_model", "reflection_api_base"):
        if getattr(options, name) is not None and options.agent != "reflexion":
            raise ConfigurationError(f"`--{name.replace('_', '-')}` is read by `--agent reflexion` alone.")
    return makes(**given)


def _parameters(made: Any) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(made).parameters


def reply_format(environment: str, agent: EvaluationAgent) -> dict[str, Any]:
    """Constructor arguments that ask for reasoning, where the agent wants thoughts and the environment knows how."""
    can = "reply_format" in _parameters(environment_class(environment))
    return {"reply_format": "think"} if can and agent.name in ("react", "reflexion") else {}


def reflector_of(
    options: argparse.Namespace, engine: Engine, renderer: ChatRenderer, rollout: RolloutSettings
) -> tuple[Reflector, Callable[[], None]]:
    """(who writes notes, what frees it)."""
    from ..evaluation import AnalyzerReflector, PolicyReflector
    from ..evaluation.notes import MAX_NOTE_TOKENS

    most = MAX_NOTE_TOKENS if options.note_tokens is None else options.note_tokens
    if most < 1:
        raise ConfigurationError(f"`--note-tokens` must be at least 1, got {most}.")
    if options.reflection_model is None:
        if options.reflection_api_base is not None:
            raise ConfigurationError("`--reflection-api-base` needs `--reflection-model`, a name in LiteLLM's form.")
        own = PolicyReflector(
            engine,
            renderer,
            max_length=rollout.max_prompt_length,
            model_window=rollout.model_window,
            max_new_tokens=rollout.max_completion_length,
            max_note_tokens=most,
        )
        return own, lambda: None
    from ..analyzer import LiteLLMAnalyzer

    analyzer = LiteLLMAnalyzer(options.reflection_model, api_base=options.reflection_api_base)
    asker = AnalyzerReflector(analyzer, renderer, max_note_tokens=most)

    def close() -> None:
        analyzer.close()  # first: it gives up the calls for which the other waits
        asker.close()

    return asker, close
