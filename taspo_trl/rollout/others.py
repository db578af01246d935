"""What the policy would also have done in a turn: further replies to its prompt, read like the episode's own."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from ..environments.base import attribute
from ..environments.workers import EnvironmentPool
from ..generation import Engine, Generation, GenerationRequest
from ..types import Trajectory
from .loop import RolloutSettings
from .replies import ReplyReader, first_unknown, reader_of
from .templates import ChatRenderer


logger = logging.getLogger(__name__)


def sample_actions(
    turns: Sequence[tuple[Trajectory, int]],
    *,
    engine: Engine,
    pool: EnvironmentPool,
    renderer: ChatRenderer,
    settings: RolloutSettings,
    num_samples: int,
) -> dict[tuple[str, int], list[tuple[str, tuple[int, ...]]]]:
    """Ask the policy again for each turn, and read the actions.

    Args:
        turns (`Sequence[tuple[Trajectory, int]]`):
            Trajectory and turn index.
        engine (`Engine`):
            Which has begun.
        pool (`EnvironmentPool`), renderer (`ChatRenderer`), settings (`RolloutSettings`):
            As in [`~taspo_trl.rollout.loop.play_episodes`].
        num_samples (`int`):
            Replies for each turn.

    Returns:
        `dict`: (trajectory uid, turn index) -> what the environment would have been given, and its tokens with their
        tags. Replies without an action that can be located, and requests that failed, are left out.
    """
    asked: list[tuple[Trajectory, int, Future[Generation]]] = []
    for t, turn_idx in turns:
        prompt = t.turns[turn_idx].prompt_ids
        room = settings.max_completion_length
        if settings.model_window is not None:
            room = min(room, settings.model_window - len(prompt))
        for k in range(num_samples if room > 0 else 0):
            try:
                request = GenerationRequest(prompt, room, f"{t.uid}-t{turn_idx}-o{k}")
                asked.append((t, turn_idx, engine.submit(request)))
            except Exception as error:
                logger.warning("No other action of %s, turn %d: %s", t.uid, turn_idx, error)
    engine.flush()
    readers: dict[str | None, ReplyReader] = {}
    found: dict[tuple[str, int], list[tuple[str, tuple[int, ...]]]] = {}
    for t, turn_idx, future in asked:
        name = t.environment
        if name not in readers:
            traits = pool.traits[name]
            readers[name] = reader_of(renderer.for_environment(traits), traits)
        try:
            action = _action_in(future.result().reply_ids, readers[name], pool.probes[name], settings.vocab_size)
        except Exception as error:
            logger.warning("No other action of %s, turn %d: %s", t.uid, turn_idx, error)
            continue
        if action is not None:
            found.setdefault((t.uid, turn_idx), []).append(action)
    return found


def _action_in(
    reply_ids: tuple[int, ...], reader: ReplyReader, environment: Any, vocab_size: int | None
) -> tuple[str, tuple[int, ...]] | None:
    if first_unknown(reply_ids, vocab_size or len(reader.tokenizer)) is not None:
        return None
    text = reader.text(reply_ids)
    action = "\n".join(map(attribute(environment, "action_of"), reader.blocks(text)))
    places = [k for k, is_action in enumerate(reader.masks(reply_ids, text).action) if is_action]
    if not action or not places or places[-1] - places[0] != len(places) - 1:
        return None
    return action, reply_ids[places[0] : places[-1] + 1]
