"""When two turns stand in the same state: by what was seen, by what could be done too, or by the true world."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from ..errors import ConfigurationError
from ..types import Trajectory
from .base import StateKey
from .option_checks import check_choice


STATE_KEYS = ("observation", "observation_actions", "world")
"""The names that [`state_key`] knows."""


def state_key(name: str, states: Mapping[tuple[str, int], Hashable] | None = None) -> StateKey:
    """The state key of a name.

    Args:
        name (`str`):
            `"observation"`: the observation, as in the published codes. Texts such as "Nothing happens." then make one
            state of many. `"observation_actions"`: the observation with the admissible actions, which tell what is
            carried and what is near. `"world"`: the true state of the simulator, an oracle; it needs `states`.
        states (`Mapping[tuple[str, int], Hashable]`, *optional*):
            For `"world"`: (trajectory uid, t) -> the state before turn t, t = 0..T_i, from a replay.

    Raises:
        ConfigurationError: an unknown name, or `"world"` without a replay.
    """
    check_choice("state_key", name, STATE_KEYS, "'observation' is what the published codes compare.")
    if name == "observation":
        return observation
    if name == "observation_actions":
        return observation_actions
    if states is None:
        raise ConfigurationError(
            "`state_key` ('world') is the simulator's true state and needs a replay, which there is none of here. "
            "Take 'observation_actions', or an environment whose episodes can be replayed."
        )
    return world(states)


def observation(trajectory: Trajectory, turn_idx: int) -> Hashable:
    """The text that the action answered; after the last action, the text that answered it."""
    turns = trajectory.turns
    return turns[turn_idx].observation if turn_idx < len(turns) else turns[-1].next_observation


def observation_actions(trajectory: Trajectory, turn_idx: int) -> Hashable:
    """The text with the admissible actions, in any order; None for these after the last action and where none are.

    What is carried and what is near shows in the actions, so that the many "Nothing happens." of a game stay apart.
    """
    turns = trajectory.turns
    actions = turns[turn_idx].admissible_actions if turn_idx < len(turns) else None
    return observation(trajectory, turn_idx), None if actions is None else frozenset(actions)


def world(states: Mapping[tuple[str, int], Hashable]) -> StateKey:
    """An oracle: the true state of each turn, as a replay found it.

    Args:
        states (`Mapping[tuple[str, int], Hashable]`):
            (trajectory uid, t) -> the state before turn t, t = 0..T_i.

    Returns:
        `Callable`: raises [`~taspo_trl.errors.ConfigurationError`] for a turn that the replay lacks.
    """

    def key(trajectory: Trajectory, turn_idx: int) -> Hashable:
        try:
            return states[trajectory.uid, turn_idx]
        except KeyError:
            raise ConfigurationError(
                f"`state_key` ('world') has no state of trajectory {trajectory.uid!r} before turn {turn_idx}. "
                "Every usable episode must be replayed up to its last answer; take 'observation_actions' for "
                "environments that cannot be."
            ) from None

    return key
