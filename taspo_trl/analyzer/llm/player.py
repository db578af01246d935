"""A chat model behind LiteLLM as a player: its replies are paid for once, paced and bounded as an analyzer's are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..base import AnalyzerReply, AnalyzerRequest
from .analyzer import LiteLLMAnalyzer


class LiteLLMPlayer(LiteLLMAnalyzer):
    """
    A model that is asked for the next message of a chat.

    Args are those of [`~taspo_trl.analyzer.LiteLLMAnalyzer`]. What was answered once is found in the cache: the same
    chat in the same play of a task is never paid for again.
    """

    _role, _a_call = "player", "A call of the player"
    _affected = "episode is played again by the next run"
    _without_it = "episodes end, and the next run goes on with them"
    _instead = ""

    def reply(self, messages: Sequence[Mapping[str, Any]], play: int = 0) -> AnalyzerReply:
        """The next message.

        Args:
            messages (`Sequence[Mapping[str, Any]]`):
                The chat so far.
            play (`int`, *optional*, defaults to `0`):
                Which play of the task this is: with a temperature, another play may get another reply.

        Raises:
            AnalyzerError: the model cannot be used at all (key, name, address), and is `required`.
        """
        return self.complete(AnalyzerRequest("play", "", {"messages": [dict(one) for one in messages], "play": play}))
