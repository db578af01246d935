"""A player on a split, without a model: what bounds a table of policies from above and from below."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from ..environments.workers import EnvironmentPool
from ..evaluation import EvaluationResult, Play, evaluate_tasks, planned_plays
from ..generation import SamplingSettings
from ..rollout.loop import RolloutSettings
from ..rollout.templates import ChatRenderer
from .players import Player, PlayerEngine


_SAMPLING = SamplingSettings(temperature=0.0)
"""Read by nobody: players sample for themselves."""


def evaluate_player(
    rows: Sequence[Mapping[str, Any]],
    player: Player,
    *,
    pool: EnvironmentPool,
    renderer: ChatRenderer,
    rollout: RolloutSettings,
    seed: int = 0,
    num_plays: int = 1,
    max_in_flight: int | None = None,
    progress_path: str | os.PathLike | None = None,
    on_play: Callable[[Play], None] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> EvaluationResult:
    """Have a player play each row `num_plays` times, with the seeds, prompts and limits of an evaluation of a policy.

    A turn that the player cannot answer (a [`~taspo_trl.errors.ReplayError`], such as an oracle's state without a
    plan, or a [`~taspo_trl.errors.ServiceError`]) ends its play, which keeps the reason and counts in no rate.

    Args:
        rows, pool, rollout, seed, num_plays, max_in_flight, progress_path, on_play:
            As in [`~taspo_trl.evaluation.evaluate_tasks`].
        player (`Player`):
            Who plays. It stays open.
        renderer (`ChatRenderer`):
            Of any tokenizer: it counts tokens and cuts prompts.
        settings (`Mapping[str, Any]`, *optional*):
            Further facts for the result, which names the player anyway.

    Returns:
        `EvaluationResult`: plays in the order of `rows`.

    Raises:
        ConfigurationError: as [`~taspo_trl.evaluation.evaluate_tasks`], and what the player raises for an environment
            that it cannot play. Any other exception of the player is raised as it is.
    """
    planned = planned_plays(rows, num_plays, seed, pool.is_routed)
    uids = {key: spec.uid for key, spec in planned}
    engine = PlayerEngine(player, renderer, pool.traits, [spec for _, spec in planned])

    def ended(play: Play) -> None:
        player.ended(uids[play.task_id, play.play_idx])
        if on_play is not None:
            on_play(play)

    try:
        result = evaluate_tasks(
            rows,
            engine=engine,
            pool=pool,
            renderer=renderer,
            rollout=rollout,
            sampling=_SAMPLING,
            seed=seed,
            num_plays=num_plays,
            max_in_flight=max_in_flight,
            progress_path=progress_path,
            on_play=ended,
            settings={**player_facts(player), **(settings or {})},
        )
    finally:
        engine.close()
    if engine.fault is not None:
        if progress_path is not None and not result.usable:
            Path(progress_path).unlink()  # nothing with which another run could go on
        raise engine.fault
    return result


def player_facts(player: Player) -> dict[str, Any]:
    """What the settings of a result say of who played: the player's name, and of sampling that there was none."""
    return {"player": player.name, **{one.name: None for one in fields(SamplingSettings)}}
