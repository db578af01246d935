"""An engine that repeats recorded replies first and samples afterwards: an episode continued from one of its moments.

The rollout loop plays the recorded part as it played it then, so that what follows has the full context of its moment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future

from ..errors import ReplayError
from ..generation import Engine, EngineAround, Generation, GenerationRequest, SamplingSettings
from ..types import Turn


class ForcedPrefixes(EngineAround):
    """Answers the first requests of an episode from the record, and passes the others on.

    Args:
        engine (`Engine`):
            Samples what is not recorded.
        prefixes (`Mapping[str, Sequence[Turn]]`):
            Episode uid -> its recorded turns. A request whose prompt is not the recorded one, token for token, fails.
    """

    def __init__(self, engine: Engine, prefixes: Mapping[str, Sequence[Turn]]):
        super().__init__(engine)
        self._prefixes = prefixes
        self._num_asked: dict[str, int] = {}
        self.num_sampled = 0
        """Replies that were not recorded."""
        self.refused: dict[str, str] = {}
        """Episode uid -> why it is not the recorded one."""

    def begin(self, sampling: SamplingSettings, seed: int) -> None:
        self._num_asked.clear()
        super().begin(sampling, seed)

    def submit(self, request: GenerationRequest) -> Future[Generation]:
        turns = self._prefixes.get(request.episode_uid, ())
        number = self._num_asked.get(request.episode_uid, 0)
        self._num_asked[request.episode_uid] = number + 1
        if number >= len(turns):
            self.num_sampled += 1
            return super().submit(request)
        turn, future = turns[number], Future[Generation]()
        if turn.prompt_ids and turn.prompt_ids != request.prompt_ids:
            why = self.refused[request.episode_uid] = f"the prompt of turn {number} is another one than the recorded"
            future.set_exception(ReplayError(why))
        else:
            future.set_result(Generation(turn.reply_ids, turn.finish_reason, turn.sampling_logps))
        return future
