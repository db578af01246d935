"""Warm starts: episodes of any player are recorded, the verified successes among them are imitated."""

from .learning import Demonstration, Imitation, imitate
from .players import FunctionPlayer, LiteLLMChatPlayer, OraclePlayer, Player, PlayerTurn
from .recording import Recording, record_episodes
from .successes import Kept, demonstrations_of, replayed_successes


__all__ = [
    "Demonstration",
    "FunctionPlayer",
    "Imitation",
    "Kept",
    "LiteLLMChatPlayer",
    "OraclePlayer",
    "Player",
    "PlayerTurn",
    "Recording",
    "demonstrations_of",
    "imitate",
    "record_episodes",
    "replayed_successes",
]
