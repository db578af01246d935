"""Classes written for TRL's `environment_factory` as environments: tool calls are actions, tool results observations.

Such a class has `reset(**row)`, public methods that are tools, and perhaps `get_reward()`. It is used unchanged; what
TASPO needs beyond TRL is a verdict, which comes from a threshold on the reward or from an optional `_get_success()`; a
method without the underscore would be a tool to TRL.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import EnvironmentContractError, ServiceError
from ..tokens import ActionBlock
from .base import ResetResult, StepResult, TextEnvironment
from .examples import WorkedExample
from .tool_calls import JSON_BLOCKS, ToolCall, find_calls, parse_tool_call, parse_tool_calls, typed_arguments


_OLD_HOOKS = {"get_success": "_get_success", "generic_skill": "_generic_skill"}
"""Names that a class for TRL may not use, since TRL takes them for tools -> the ones that it may."""
_NOT_TOOLS = frozenset({"reset", "get_reward", "close", *_OLD_HOOKS})


def is_tool_environment(environment: Any) -> bool:
    """Whether an object is written for TRL's `environment_factory`: a `reset` and tools, none a `step` of ours."""
    has_reset = callable(getattr(environment, "reset", None))
    has_own_step = hasattr(environment, "step") and not _is_tool(environment.step)
    return has_reset and not has_own_step and bool(_tool_names(environment))


def adapted(factory: Callable[[], Any], success_threshold: float | None = None) -> tuple[Callable[[], Any], Any]:
    """(`factory`, an instance of it), both adapted when what it makes is a tool environment."""
    made = factory()
    if not is_tool_environment(made):
        return factory, made
    for old, new in _OLD_HOOKS.items():
        if callable(getattr(made, old, None)):
            warnings.warn(
                f"`{type(made).__name__}.{old}` is a tool to TRL, which then demands a docstring for it, so the class "
                f"does not run there as it is meant. Call it `{new}`; the old name works for now.",
                FutureWarning,
                stacklevel=2,
            )
    return functools.partial(_make, factory, success_threshold), ToolEnvironment(made, success_threshold)


def adapted_object(environment: Any) -> Any:
    """The user's own instance behind a [`ToolEnvironment`]; any other environment itself."""
    return environment.environment if isinstance(environment, ToolEnvironment) else environment


def _make(factory: Callable[[], Any], success_threshold: float | None) -> ToolEnvironment:
    return ToolEnvironment(factory(), success_threshold)


class ToolEnvironment(TextEnvironment):
    """
    An instance of a TRL environment class, played turn by turn.

    A reply's calls are its action, in the notation of the model's chat template; all of them are executed, in order,
    but for those that were drafted while thinking. A call that names no tool, cannot be read or raises is answered
    with its error and makes the turn invalid. A reply without a call ends the episode.

    The row's `prompt` (messages, or a string) opens the chat; what `reset` returns is appended to its last message, as
    in TRL. `reset` gets the row's columns, and the group's `seed` if it has a parameter of that name.

    Args:
        environment (`Any`):
            The instance.
        success_threshold (`float`, *optional*):
            Reward from which an episode counts as a verified success, for classes without `_get_success`. If `None`,
            the class attribute `success_threshold`, if there is one.

    Raises:
        EnvironmentContractError: a tool's signature or docstring makes no JSON schema.
    """

    action_tags = ("tool_call",)
    action_blocks = "all"
    context = "conversation"

    def __init__(self, environment: Any, success_threshold: float | None = None):
        self.environment = environment
        if success_threshold is None:
            success_threshold = getattr(environment, "success_threshold", None)
        self.success_threshold = success_threshold
        self.max_turns = getattr(environment, "max_turns", TextEnvironment.max_turns)
        self.training_reward = "environment" if self.has_reward else "success" if self.has_verdict else "none"
        self._loop: asyncio.AbstractEventLoop | None = None

    # ---- what the class declares -----------------------------------------------------------------------------------

    @property
    def has_reward(self) -> bool:
        return callable(getattr(self.environment, "get_reward", None))

    @property
    def has_verdict(self) -> bool:
        """Whether success can be told at all; without it no trajectory is evidence and training is plain GRPO."""
        has_threshold = self.success_threshold is not None and self.has_reward
        return self._hook("_get_success") is not None or has_threshold

    @functools.cached_property
    def tools(self) -> tuple[Mapping[str, Any], ...]:  # type: ignore[override]
        """The JSON schema of each tool, made from its signature and docstring."""
        from transformers.utils import get_json_schema

        schemas = []
        for name in _tool_names(self.environment):
            try:
                schemas.append(get_json_schema(getattr(self.environment, name)))
            except Exception as error:
                raise EnvironmentContractError(
                    f"`{type(self.environment).__name__}.{name}` cannot be offered as a tool ({error}). A tool needs "
                    "type hints and a Google-style docstring; start the names of other methods with an underscore."
                ) from error
        return tuple(schemas)

    def generic_skill(self, family: str) -> str:
        own = self._hook("_generic_skill")
        return own(family) if own is not None else ""

    def worked_examples(self, family: str) -> Sequence[WorkedExample]:
        own = self._hook("_worked_examples")
        return own(family) if own is not None else ()

    # ---- replies ---------------------------------------------------------------------------------------------------

    def action_of(self, block: ActionBlock) -> str:
        """The block's calls, each as one line of JSON; or the block's text when it holds none."""
        calls = parse_tool_calls(block)
        if calls is None:
            return " ".join(block.content.split())
        return "\n".join(call.to_json() for call in calls)

    def reply_fault(self, reply_text: str, block: ActionBlock | None) -> str:
        if block is None:  # a final answer, unless a call was begun
            return find_calls(reply_text, JSON_BLOCKS).fault
        return super().reply_fault(reply_text, block)

    # ---- the episode -----------------------------------------------------------------------------------------------

    def reset(self, *, seed: int, **row: Any) -> ResetResult:
        parameters = inspect.signature(self.environment.reset).parameters
        arguments = {**row, "seed": seed} if "seed" in parameters else row
        observation = _text(self._run(self.environment.reset, arguments), "reset", self.environment)
        opening = _messages(row.get("prompt"))
        opening[-1] = {**opening[-1], "content": opening[-1]["content"] + observation}
        task = next((one["content"] for one in reversed(opening) if one["role"] == "user"), observation)
        return ResetResult(observation, {"task": task or observation, "messages": opening})

    def step(self, action: str) -> StepResult:
        if not action:
            return self._outcome("")
        calls = [parse_tool_call(line) for line in action.split("\n")]
        answers = [self._execute(call) for call in calls]
        messages = [
            {"role": "tool", "name": call.name if call is not None else "unknown", "content": text}
            for call, (_, text) in zip(calls, answers, strict=True)
        ]
        info = {"valid": all(is_accepted for is_accepted, _ in answers), "messages": messages}
        return StepResult("\n".join(text for _, text in answers), 0.0, False, False, info)

    def conclude(self) -> StepResult:
        return self._outcome("")

    def close(self) -> None:
        if callable(getattr(self.environment, "close", None)):
            self._run(self.environment.close, {})
        if self._loop is not None:
            self._loop.close()
            self._loop = None

    def _hook(self, name: str) -> Callable[..., Any] | None:
        """A method that TASPO asks for beyond TRL's, under its name or the old one; None where there is none."""
        for known in (name, name.removeprefix("_")):
            if callable(getattr(self.environment, known, None)):
                return getattr(self.environment, known)
        return None

    def _outcome(self, observation: str) -> StepResult:
        """The end of the episode: the reward and the verdict, each asked for once."""
        reward = self._run(self.environment.get_reward, {}) if self.has_reward else 0.0
        success = None
        get_success = self._hook("_get_success")
        if get_success is not None:
            success = self._run(get_success, {})
        elif self.success_threshold is not None and self.has_reward and reward is not None:
            success = bool(reward >= self.success_threshold)
        return StepResult(observation, reward, True, False, {"success": success})

    def _execute(self, call: ToolCall | None) -> tuple[bool, str]:
        """(whether the call was accepted, its result in words)."""
        if call is None:
            return False, str({"error": 'A tool call is a JSON object with a "name" and "arguments".'})
        schemas = {schema["function"]["name"]: schema for schema in self.tools}
        if call.name not in schemas:
            return False, str({"error": f"Tool {call.name} not found."})
        try:
            result = self._run(getattr(self.environment, call.name), typed_arguments(call, schemas[call.name]))
        except ServiceError:
            raise
        except Exception as error:
            return False, str({"error": str(error)})
        return True, _text(result, call.name, self.environment) if isinstance(result, list) else str(result)

    def _run(self, function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
        """What `function` returns; coroutines run in the instance's own loop, which lives as long as it does."""
        result = function(**arguments)
        if not inspect.isawaitable(result):
            return result
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(result)


def _is_tool(step: Any) -> bool:
    """Whether a method `step` is a tool of that name, written for TRL: described, and without a `StepResult`."""
    from transformers.utils import get_json_schema

    annotation = getattr(step, "__annotations__", {}).get("return")
    name = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    if annotation is None or name.rpartition(".")[2] == StepResult.__name__:
        return False
    try:
        get_json_schema(step)
    except Exception:  # undocumented, untyped, or written in C
        return False
    return True


def _tool_names(environment: Any) -> list[str]:
    # On the class: on the instance, properties would be evaluated.
    members = inspect.getmembers(type(environment), predicate=inspect.isfunction)
    return [name for name, _ in members if not name.startswith("_") and name not in _NOT_TOOLS]


def _messages(prompt: Any) -> list[dict[str, Any]]:
    """A row's prompt as chat messages whose contents are strings."""
    if not prompt or isinstance(prompt, str):
        return [{"role": "user", "content": prompt or ""}]
    return [{**one, "content": _text(one.get("content"), "prompt", None)} for one in prompt]


def _text(content: Any, source: str, environment: Any) -> str:
    """A string, or the text blocks of a list of content blocks."""
    if content is None or isinstance(content, str):
        return content or ""
    where = f"`{type(environment).__name__}.{source}`" if environment is not None else f"The row's `{source}`"
    if not isinstance(content, list):
        raise EnvironmentContractError(f"{where} gave a {type(content).__name__}; it must be a string or None.")
    blocks = [block for block in content if isinstance(block, Mapping) and block.get("type") == "text"]
    if len(blocks) != len(content):
        raise EnvironmentContractError(f"{where} gave content other than text; TASPOTrainer trains on text.")
    return "".join(str(block.get("text", "")) for block in blocks)
