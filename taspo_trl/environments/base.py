"""The contract between a task's world and the rollout loop: reset, step, close, and how the world is put into words.

An environment is a class with three methods:

```python
class Counter(TextEnvironment):
    def reset(self, *, seed, target, **row):
        self.value, self.target = 0, target
        return ResetResult("The counter shows 0.", {"task": f"Count to {target}.", "admissible_actions": ["add one"]})

    def step(self, action):
        self.value += action == "add one"
        done = self.value == self.target
        return StepResult(f"The counter shows {self.value}.", float(done), done, False,
                          {"valid": action == "add one", "success": done, "admissible_actions": ["add one"]})

    def close(self): ...
```

`reset` gets the dataset row's columns as keywords (columns that are None are left out, unless it has no default for
them) and a `seed` that is the same for all members of a group. `__init__` must be cheap: one instance is made in the
main process to read its prompt.
Subclassing [`TextEnvironment`] is optional: any object with these methods works, missing attributes take its defaults.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NoReturn

from ..errors import EnvironmentContractError
from ..tokens import ActionBlock, is_unicode
from .answers import shown
from .examples import WorkedExample


@dataclass(frozen=True, slots=True)
class ResetResult:
    """The start of an episode.

    `info` keys that the rollout loop reads:

    - `task` (`str`): the task in words; defaults to the observation.
    - `family` (`str`): the stratum for reporting; defaults to the row's `family` column, else `"all"`.
    - `admissible_actions` (`list[str]`): what may be done now; left out of the prompt when absent.
    - `messages` (`list[dict]`): conversation contexts: the messages that open the chat, in place of the template's;
      each has a `role` and a `content`, both strings.

    `progress` (a number, larger is nearer to the goal) is read by what measures credit, in both results. It comes
    before `oracle_plan()`.
    """

    observation: str
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepResult:
    """The environment's answer to one action.

    `info` keys that the rollout loop reads, besides `admissible_actions`:

    - `valid` (`bool`): whether the action was accepted; only accepted actions can become evidence. Defaults to True.
    - `success` (`bool`): the verified verdict.
    - `messages` (`list[dict]`): conversation contexts: the messages that answer the action, in place of the
      template's user message.

    For `valid` and `success` only `True` itself is a yes: not 1, not "true", not a score, and not `numpy.True_`, which
    is another object: write `bool(...)` around a comparison of arrays. None counts as absent; other types are warned
    about.
    """

    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PromptTemplate:
    """How an episode is put into words. Texts may hold these placeholders, and no others are replaced:

    `{task}`, `{observation}`, `{admissible_actions}`, `{history}`, `{num_turns}` (turns already taken), `{turn}` (the
    number of the coming turn, from 1).

    Args:
        first (`str`):
            The user message of the first turn, and the opening message of a conversation.
        later (`str`):
            Window contexts: the user message of every later turn. Unlike `first` it shows `{history}`.
        reply (`str`):
            Conversation contexts: the user message that answers an action.
        history_item (`str`):
            One past turn inside `{history}`; its placeholders are `{turn}`, `{observation}`, `{action}` and
            `{next_observation}`.
        admissible_item (`str`):
            One admissible action; its placeholder is `{action}`.
        admissible_separator (`str`):
            Between two admissible actions.
        no_action (`str`):
            What the history shows for a turn whose reply held no action.
        system (`str`, *optional*):
            System message. None sends none, and the chat template may then insert its own.
    """

    first: str
    later: str
    reply: str = "{observation}"
    history_item: str = "{observation}\n> {action}"
    admissible_item: str = "{action}"
    admissible_separator: str = ", "
    no_action: str = "(no action)"
    system: str | None = None


_ACTION_FORMAT = "Answer with exactly one action between <action> and </action>."

DEFAULT_PROMPT = PromptTemplate(
    first="{task}\n\n{observation}\n\nYou can: {admissible_actions}\n\n" + _ACTION_FORMAT,
    later="{task}\n\nYou have taken {num_turns} turns. The latest:\n{history}\n\nNow: {observation}\n\n"
    "You can: {admissible_actions}\n\n" + _ACTION_FORMAT,
    reply="{observation}\n\nYou can: {admissible_actions}",
)


class TextEnvironment:
    """Base class with the defaults of the optional attributes."""

    prompt: PromptTemplate = DEFAULT_PROMPT
    """How the world is put into words."""
    action_tags: tuple[str, ...] = ("action",)
    """Names of the tags whose first complete block is executed, lower case."""
    history_length: int = 2
    """Window contexts: how many past turns the prompt shows."""
    max_turns: int = 30
    """Turns after which an episode is cut, unless `TASPOConfig.max_turns` says otherwise."""
    worker: ClassVar[Literal["thread", "process"]] = "thread"
    """Where instances run by default: "process" for engines that are not thread-safe."""
    preload: ClassVar[bool] = False
    """Worker processes: whether they are forked from a server that has imported the class's module once. Saves each of
    them the import; only for a module that starts no thread and reads no environment variable when it is imported."""
    action_blocks: Literal["first", "all"] = "first"
    """Which complete blocks of a reply are executed. With "all", `step` gets their strings on one line each."""
    context: Literal["window", "conversation"] = "window"
    """The kind of context, unless `TASPOConfig.context` says otherwise."""
    training_reward: Literal["success", "environment", "none"] = "success"
    """The environment's share of the reward, unless `TASPOConfig.training_reward` says otherwise. With "none" the
    reward is that of `reward_funcs` alone."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """JSON schemas of tools, for the chat template."""

    def reset(self, *, seed: int, **row: Any) -> ResetResult:
        raise NotImplementedError

    def step(self, action: str) -> StepResult:
        raise NotImplementedError

    def conclude(self) -> StepResult:
        """Optional: the last word on an episode that the rollout loop ends at one of its own limits.

        For environments whose reward is not known step by step. Only the reward and the verdict are read.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Free what the instance holds. May be called twice."""

    @classmethod
    def dataset(cls, split: str = "train", **kwargs: Any):
        """A `datasets.Dataset` with one row for each task of `split`; the columns are what `reset` takes."""
        raise NotImplementedError(
            f"`{cls.__name__}` makes no dataset. Pass a `datasets.Dataset` whose columns `reset` takes."
        )

    def action_of(self, block: ActionBlock) -> str:
        """The string that `step` gets for the executed block: its inner text without outer white space.

        Environments with several tags override this so that `step` can tell them apart.
        """
        return block.content.strip()

    def reply_fault(self, reply_text: str, block: ActionBlock | None) -> str:
        """A reason why a reply counts as invalid although its block is executed; empty when it is well formed.

        By default: no block at all, or a block that holds another opening tag.
        """
        if block is None:
            return "no_action_block"
        return "nested_tag" if block.is_nested else ""

    def generic_skill(self, family: str) -> str:
        """Advice for a task family, for the comparison construction `generic_skill`. Empty = none."""
        return ""

    def worked_examples(self, family: str) -> Sequence[WorkedExample]:
        """Optional: solved training tasks with thoughts, the best ones for a task family first.

        Shown by `taspo eval --agent react` and `reflexion`, which take as many from the front as they are asked for.
        """
        return ()

    def oracle_plan(self) -> list[str] | None:
        """Optional: a shortest list of actions from the present state to the goal, which a simulator can know.

        Empty where the goal holds. None: nothing exact is known here. Read by what measures credit, and by the
        comparison construction `oracle_plan`; no method sees it.
        """
        return None

    def world_state(self) -> Hashable | None:
        """Optional: what the present state of the world is equal to, whatever was said of it. None: not known.

        Two states of one task are the same if and only if these are equal; it must survive pickling. Read where a
        method compares turns by `state_key="world"`, an oracle.
        """
        return None


def attribute(environment: Any, name: str) -> Any:
    """`environment.<name>`, or the default of [`TextEnvironment`] for a class that is not derived from it."""
    try:
        return getattr(environment, name)
    except AttributeError:
        default = getattr(TextEnvironment, name)
        return default.__get__(environment, type(environment)) if callable(default) else default


@dataclass(frozen=True, slots=True)
class Traits:
    """What an environment declares of itself, read once from a fresh instance: a played one may have changed it."""

    prompt: PromptTemplate
    action_tags: tuple[str, ...]
    history_length: int
    max_turns: int
    action_blocks: str = "first"
    context: str = "window"
    training_reward: str = "success"
    tools: tuple[Mapping[str, Any], ...] = ()
    concludes: bool = False
    """Whether the class has a `conclude` of its own."""
    required_columns: tuple[str, ...] = ()
    """Parameters of `reset` that have no default."""
    takes_seed: bool = True
    """Whether `reset` has a parameter `seed`, or takes any keyword."""


def traits_of(environment: Any) -> Traits:
    """The declarations of `environment`; [`~taspo_trl.errors.EnvironmentContractError`] for one of a wrong type."""
    computed = ("concludes", "required_columns", "takes_seed")
    values = {name: attribute(environment, name) for name in Traits.__dataclass_fields__ if name not in computed}
    tags = values["action_tags"]
    is_right = {
        "prompt": isinstance(values["prompt"], PromptTemplate),
        # A lone string is a sequence too: of one-letter tags.
        "action_tags": isinstance(tags, list | tuple) and bool(tags) and all(isinstance(tag, str) for tag in tags),
        "history_length": isinstance(values["history_length"], int) and values["history_length"] >= 0,
        "max_turns": isinstance(values["max_turns"], int) and values["max_turns"] >= 1,
        "action_blocks": values["action_blocks"] in ("first", "all"),
        "context": values["context"] in ("window", "conversation"),
        "training_reward": values["training_reward"] in ("success", "environment", "none"),
        "tools": isinstance(values["tools"], list | tuple)
        and all(isinstance(tool, Mapping) for tool in values["tools"]),
    }
    rules = {
        "prompt": "a `taspo_trl.environments.PromptTemplate`",
        "action_tags": 'a tuple of tag names, for example `("action",)`',
        "history_length": "a whole number, 0 or more",
        "max_turns": "a whole number, 1 or more",
        "action_blocks": '"first" or "all"',
        "context": '"window" or "conversation"',
        "training_reward": '"success", "environment" or "none"',
        "tools": "a tuple of JSON schemas",
    }
    for name, value in values.items():
        if not is_right[name]:
            raise EnvironmentContractError(
                f"`{type(environment).__name__}.{name}` is {shown(value)}; it must be {rules[name]}."
            )
    concludes = getattr(type(environment), "conclude", TextEnvironment.conclude) is not TextEnvironment.conclude
    required_columns, takes_seed = reset_needs(environment.reset)
    return Traits(
        **{
            **values,
            "action_tags": tuple(tags),
            "tools": tuple(values["tools"]),
            "concludes": concludes,
            "required_columns": required_columns,
            "takes_seed": takes_seed,
        }
    )


def reset_needs(reset: Any, any_keyword: bool = True) -> tuple[tuple[str, ...], bool]:
    """(parameters of `reset` without default, apart from `seed`; whether it takes a `seed`).

    Args:
        reset (`Callable`):
            The bound method.
        any_keyword (`bool`, *optional*, defaults to `True`):
            Whether `**kwargs` takes the seed as well.
    """
    try:
        parameters = inspect.signature(reset).parameters.values()
    except (TypeError, ValueError):  # written in C, or wrapped beyond recognition
        return (), True
    named = [one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    required = tuple(one.name for one in named if one.default is one.empty and one.name != "seed")
    takes_any = any_keyword and any(one.kind is one.VAR_KEYWORD for one in parameters)
    return required, takes_any or any(one.name == "seed" for one in named)


def check_environment(environment: Any) -> None:
    """Raise [`~taspo_trl.errors.EnvironmentContractError`] when `environment` lacks a method of the protocol."""
    missing = [name for name in ("reset", "step", "close") if not callable(getattr(environment, name, None))]
    if missing:
        raise EnvironmentContractError(
            f"`{type(environment).__name__}` has no method {', '.join(f'`{name}`' for name in missing)}. An "
            "environment needs `reset(*, seed, **row) -> ResetResult`, `step(action) -> StepResult` and `close()`."
        )
    _, takes_seed = reset_needs(environment.reset)
    if not takes_seed:
        raise EnvironmentContractError(
            f"`{type(environment).__name__}.reset` takes no `seed`, with which it is called. Write it as "
            "`reset(self, *, seed, **row)`; a world without chance may ignore the seed."
        )


def call(environment: Any, method: str, arguments: Mapping[str, Any]) -> ResetResult | StepResult:
    """What `reset`, `step` or `conclude` returns, checked."""
    if method == "step":
        result = environment.step(arguments["action"])  # by position: a class may call it `command`
    else:
        result = getattr(environment, method)(**arguments)
    check_result(result, ResetResult if method == "reset" else StepResult, method, environment)
    return result


def check_result(result: Any, expected: type[ResetResult] | type[StepResult], method: str, environment: Any) -> None:
    """Raise [`~taspo_trl.errors.EnvironmentContractError`] unless `result` is a sane `expected` record.

    What passes can be put into a prompt, a record and a file without another look.
    """

    def refuse(what: str, rule: str) -> NoReturn:
        raise EnvironmentContractError(f"`{type(environment).__name__}.{method}` {what}; {rule}.")

    if not isinstance(result, expected):
        refuse(f"returned a {type(result).__name__}", f"it must return a `taspo_trl.environments.{expected.__name__}`")
    if not isinstance(result.observation, str):
        refuse(f"gave an observation of type {type(result.observation).__name__}", "it must be a string")
    if not isinstance(result.info, Mapping):
        refuse(f"gave an `info` of type {type(result.info).__name__}", "it must be a mapping")
    actions = result.info.get("admissible_actions")
    if isinstance(actions, str | bytes) or not (actions is None or isinstance(actions, Collection)):
        refuse(f"gave the `admissible_actions` {shown(actions)}", "they must be a list of strings")
    messages = result.info.get("messages")
    if messages is not None:
        if not isinstance(messages, list | tuple):
            refuse(f"gave the `messages` {shown(messages)}", "they must be a list of chat messages")
        for one in messages:
            if not isinstance(one, Mapping) or not all(isinstance(one.get(key), str) for key in ("role", "content")):
                refuse(f"gave the message {shown(one)}", "it must map `role` and `content` to text")
    texts = [result.observation, *(result.info.get(name, "") for name in ("task", "family"))]
    for text in map(str, (*texts, *(() if actions is None else actions))):
        if not is_unicode(text):
            refuse(f"gave the text {shown(text)}", _HALF)
    for text in _texts_in(messages):
        if not is_unicode(text):
            refuse(f"gave a message with the text {shown(text)}", _HALF)
    if isinstance(result, StepResult):
        for name, flag in (("terminated", result.terminated), ("truncated", result.truncated)):
            if not (isinstance(flag, int) or type(flag).__name__ in ("bool", "bool_")):  # numpy's have these names
                refuse(f"gave {name}={shown(flag)}", "it must be a bool")


_HALF = "it holds half of a surrogate pair and cannot be encoded"


def _texts_in(value: Any) -> Iterator[str]:
    """The strings of a message, at any depth: a chat template may print each of them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from (*_texts_in(key), *_texts_in(inner))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts_in(inner)
