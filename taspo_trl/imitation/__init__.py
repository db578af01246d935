"""Warm starts: episodes of any player are recorded, the verified successes among them are imitated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .bounds import evaluate_player, player_facts
from .demonstration import Demonstration
from .players import FunctionPlayer, LiteLLMChatPlayer, OraclePlayer, Player, PlayerTurn, RandomPlayer
from .recording import Recording, record_episodes
from .successes import Kept, demonstrations_of, replayed_successes


if TYPE_CHECKING:
    from .learning import ImitationConfig, ImitationTrainer

__all__ = [
    "Demonstration",
    "FunctionPlayer",
    "ImitationConfig",
    "ImitationTrainer",
    "Kept",
    "LiteLLMChatPlayer",
    "OraclePlayer",
    "Player",
    "PlayerTurn",
    "RandomPlayer",
    "Recording",
    "demonstrations_of",
    "evaluate_player",
    "player_facts",
    "record_episodes",
    "replayed_successes",
]


def __getattr__(name: str):
    if name in ("ImitationConfig", "ImitationTrainer"):  # which load torch and TRL
        from . import learning

        return getattr(learning, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
