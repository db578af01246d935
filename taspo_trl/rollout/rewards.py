"""The training reward r_i of a group's trajectories: verified success plus the user's reward functions.

Called once for each group when its last episode has ended (docs/method.md, sections 1 and 8).
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from numbers import Number
from typing import Any

from ..environments.answers import shown
from ..types import StopReason, Trajectory, TrajectoryGroup


RewardFunction = Callable[..., Any]
"""TRL's contract: keywords `prompts`, `completions`, `completion_ids`, the row's columns, and what [`RewardSettings`]
adds; returns one number for each trajectory, None where it does not apply. May be `async`. One that has a parameter
`environments` gets the live instances, and only the trajectories that are usable."""

REWARD_KEYWORDS = (
    "prompts",
    "completions",
    "completion_ids",
    "trajectories",
    "environments",
    "trainer_state",
    "log_extra",
    "log_metric",
)
"""What functions get besides the row's columns: names that no column may have."""


UNRATED = "no reward: "
"""How the error of an episode begins that nobody rated."""

_LARGEST = 1e100
"""Squares of larger rewards are no finite numbers."""


@dataclass(frozen=True)
class RewardSettings:
    """How r_i is made.

    Args:
        source (`str`, *optional*, defaults to `"success"`):
            The environment's share, with weight 1: `"success"` is 1.0 for a verified success and 0.0 otherwise,
            `"environment"` the sum of the environment's own rewards, `"none"` leaves the reward to the functions.
        source_of (`Mapping[str | None, str]`, *optional*):
            The same for single environments, by name.
        functions (`Sequence[RewardFunction]`, *optional*), weights (`Sequence[float]`, *optional*):
            The user's functions and their weights (TRL's `reward_weights`).
        names (`Sequence[str]`, *optional*):
            Names of the functions in the metrics.
        invalid_action_penalty (`float`, *optional*, defaults to `0.0`):
            Subtracted times the share of invalid turns, so that a trajectory keeps one advantage.
        extra (`Mapping[str, Any]`, *optional*):
            Further keywords for the functions: TRL's `trainer_state`, `log_extra`, `log_metric`.
        columns (`Sequence[str]`, *optional*):
            The dataset's columns. Where a row has no value the functions get None, as with TRL.
    """

    source: str = "success"
    source_of: Mapping[str | None, str] = field(default_factory=dict)
    functions: Sequence[RewardFunction] = ()
    weights: Sequence[float] = ()
    names: Sequence[str] = ()
    invalid_action_penalty: float = 0.0
    extra: Mapping[str, Any] = field(default_factory=dict)
    columns: Sequence[str] = ()

    @property
    def want_environments(self) -> bool:
        """Whether a function asks for the live instances."""
        return any(map(takes_environments, self.functions))


def takes_environments(function: RewardFunction) -> bool:
    """Whether a reward function has a parameter `environments`."""
    try:
        return "environments" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # written in C
        return False


def score_group(
    group: TrajectoryGroup, settings: RewardSettings, environments: Mapping[str, Any] | None = None
) -> TrajectoryGroup:
    """The group with `reward` and `rewards` filled in.

    A trajectory for which a function gives NaN or an infinite number becomes an infrastructure failure
    (`reward_error`), and so does one for which all functions give None while the environment has no share. The
    functions see trajectories that already are one, but their values are not used.

    Args:
        environments (`Mapping[str, Any]`, *optional*):
            Uid -> the instance that played it, for functions that have a parameter of this name. They are called with
            the trajectories that have an instance; the others get None.

    Raises:
        ValueError: a function did not return one number or None for each trajectory.
    """
    by_function = {
        label: _values(function, label, group, settings, environments or {})
        for label, function in zip(_labels(settings), settings.functions, strict=True)
    }
    return TrajectoryGroup(
        group.group_id,
        tuple(
            _with_reward(trajectory, {label: values[k] for label, values in by_function.items()}, settings)
            for k, trajectory in enumerate(group.trajectories)
        ),
    )


def reward_of(trajectory: Trajectory, settings: RewardSettings) -> float:
    """r_i of one episode alone, for rewards without functions."""
    return score_group(TrajectoryGroup(trajectory.uid, (trajectory,)), settings).trajectories[0].reward


def conversation_of(trajectory: Trajectory) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """(first messages, remaining messages) of an episode, as TRL's reward functions expect them."""
    completion: list[dict[str, str]] = []
    for turn in trajectory.turns:
        completion.append({"role": "assistant", "content": turn.reply_text})
        if turn.answer:
            completion.extend(dict(message) for message in turn.answer)
        elif turn.next_observation or turn is not trajectory.turns[-1]:
            completion.append({"role": "user", "content": turn.next_observation})
    return [dict(message) for message in trajectory.opening], completion


def _labels(settings: RewardSettings) -> list[str]:
    """The functions' names, told apart where two are the same (two lambdas) or one is the environment's."""
    labels: list[str] = []
    for name in settings.names:
        label, number = name, 2
        while label in ("success", "environment", *labels):
            label, number = f"{name}_{number}", number + 1
        labels.append(label)
    return labels


def _with_reward(trajectory: Trajectory, values: dict[str, float | None], settings: RewardSettings) -> Trajectory:
    source = settings.source_of.get(trajectory.environment, settings.source)
    own = {"success": float(trajectory.success), "environment": trajectory.environment_reward}
    rewards: dict[str, float | None] = {**({source: own[source]} if source in own else {}), **values}
    fault = _fault(rewards)
    if fault and trajectory.is_usable:
        return replace(trajectory, stop_reason=StopReason.REWARD_ERROR, success=False, error=fault, rewards=rewards)
    if fault:
        return replace(trajectory, rewards=rewards)
    reward = own.get(source, 0.0)
    for value, weight in zip(values.values(), settings.weights, strict=True):
        reward += weight * value if value is not None else 0.0
    if settings.invalid_action_penalty and trajectory.turns:
        share = sum(not turn.valid for turn in trajectory.turns) / len(trajectory.turns)
        reward -= settings.invalid_action_penalty * share
    return replace(trajectory, reward=reward, rewards=rewards)


def _fault(rewards: Mapping[str, float | None]) -> str:
    """Why no reward can be made of these shares; empty where one can."""
    for name, value in rewards.items():
        if value is not None and not math.isfinite(value):
            return f"reward {name!r} is {value!r}, not a finite number"
        if value is not None and abs(value) > _LARGEST:
            return f"reward {name!r} is {value!r}; a group's spread can be computed up to {_LARGEST:g}"
    if all(value is None for value in rewards.values()):
        names = ", ".join(map(repr, rewards)) or "no function"
        return f"{UNRATED}{names} gave None and the environment has no share"
    return ""


def _values(
    function: RewardFunction,
    name: str,
    group: TrajectoryGroup,
    settings: RewardSettings,
    environments: Mapping[str, Any],
) -> list[float | None]:
    """What `function` says, None for a trajectory that it cannot be asked about."""
    if not takes_environments(function):
        return _call(function, name, group.trajectories, settings, {})
    members = [one for one in group.trajectories if one.is_usable and one.uid in environments]
    if not members:
        return [None] * len(group.trajectories)
    instances = {"environments": [environments[one.uid] for one in members]}
    values = dict(zip([one.uid for one in members], _call(function, name, members, settings, instances), strict=True))
    return [values.get(one.uid) for one in group.trajectories]


def _call(
    function: RewardFunction,
    name: str,
    trajectories: Sequence[Trajectory],
    settings: RewardSettings,
    extra: Mapping[str, Any],
) -> list[float | None]:
    conversations = [conversation_of(trajectory) for trajectory in trajectories]
    # A task holds no None and not the name of its environment, both of which are in the row.
    names = dict.fromkeys((*settings.columns, *trajectories[0].task))
    columns = {name: [trajectory.task.get(name) for trajectory in trajectories] for name in names}
    if trajectories[0].environment is not None:
        columns["environment"] = [trajectory.environment for trajectory in trajectories]
    arguments = {
        **columns,
        "prompts": [prompt for prompt, _ in conversations],
        "completions": [completion for _, completion in conversations],
        "completion_ids": [[i for turn in t.turns for i in turn.reply_ids] for t in trajectories],
        "trajectories": list(trajectories),
        **settings.extra,
        **extra,
    }
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        raise TypeError(
            f"The reward function {name!r} cannot be called with the keywords {', '.join(arguments)}: {error}. Take "
            "the ones you need, and `**kwargs`."
        ) from None
    values = function(**arguments)
    if inspect.isawaitable(values):
        values = _run(values)
    contract = (
        "It is called once for each group and must return one value for each trajectory "
        "(None where it does not apply)."
    )
    # Text falls apart into letters, bytes into numbers; the keys of a dictionary and a set have no order of episodes.
    if isinstance(values, str | bytes | bytearray | Mapping | Set) or not isinstance(values, Iterable):
        raise ValueError(f"The reward function {name!r} returned {shown(values)}. {contract}")
    values = list(values)
    if len(values) != len(trajectories):
        raise ValueError(
            f"The reward function {name!r} returned {len(values)} values for {len(trajectories)} trajectories. "
            f"{contract}"
        )
    numbers = []
    for value in values:
        number = None if value is None else _number(value)
        if value is not None and number is None:
            raise ValueError(
                f"The reward function {name!r} returned what is no number: {shown(value)} (text is not read as one). "
                f"{contract}"
            )
        numbers.append(number)
    return numbers


def _number(value: Any) -> float | None:
    """A real number or a truth value, also as an array of one; None for anything else."""
    if getattr(value, "shape", None) == () and callable(getattr(value, "item", None)):  # of numpy or torch
        value = value.item()
    if isinstance(value, complex) or not isinstance(value, Number):
        return None
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError:
        return math.inf
    except (TypeError, ValueError):
        return None


def _run(awaitable: Any) -> Any:
    """The result of a coroutine, also when this thread already runs an event loop (notebooks)."""
    from concurrent.futures import ThreadPoolExecutor

    async def wait() -> Any:
        return await awaitable

    with ThreadPoolExecutor(1, thread_name_prefix="taspo-reward") as executor:
        return executor.submit(asyncio.run, wait()).result()
