"""Warm starts: episodes of any player are recorded, the verified successes among them are imitated."""

from .bounds import evaluate_player, player_facts
from .learning import Demonstration, Imitation, imitate
from .players import FunctionPlayer, LiteLLMChatPlayer, OraclePlayer, Player, PlayerTurn, RandomPlayer
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
    "RandomPlayer",
    "Recording",
    "demonstrations_of",
    "evaluate_player",
    "imitate",
    "player_facts",
    "record_episodes",
    "replayed_successes",
]
