"""Players that a command line names: the oracle, chance, a function."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import ConfigurationError
from .sources import imported


if TYPE_CHECKING:
    from ..environments.workers import EnvironmentPool
    from ..imitation import Player


def scripted_player(
    name: str, pool: EnvironmentPool, environment: str, reply_format: str | None = None
) -> Player | None:
    """The player called `oracle`, `random` or `package.module:function`; None for any other name.

    Args:
        name (`str`):
            The player's.
        pool (`EnvironmentPool`):
            Of the one environment that is played.
        environment (`str`):
            How messages name it.
        reply_format (`str`, *optional*):
            A reply around `{action}`. If `None`, the environment's first tag.

    Raises:
        ConfigurationError: the environment knows no plans, or there is no such function.
    """
    from ..imitation import FunctionPlayer, OraclePlayer, RandomPlayer
    from ..imitation.players import reply_format_of

    form = reply_format or reply_format_of(pool.traits[None])
    if name == "oracle":
        return OraclePlayer(pool.factories[None], form)
    if name == "random":
        return RandomPlayer(environment, form)
    if ":" not in name or "/" in name:
        return None
    function = imported(name)
    if not callable(function):
        raise ConfigurationError(f"{name!r} is a {type(function).__name__}; a player is a function of a `PlayerTurn`.")
    return FunctionPlayer(function, name, form)
