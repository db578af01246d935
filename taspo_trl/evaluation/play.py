"""Plays each task of a split exactly once: no analyzer, no privileged text, no loss.

It can be resumed: finished plays are on disk and are not played again.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..environments.workers import EnvironmentPool
from ..errors import ConfigurationError
from ..files import write_text
from ..generation import Engine, SamplingSettings
from ..redaction import without_secrets
from ..rollout.contexts import ChatRenderer
from ..rollout.loop import RolloutSettings, play_episodes
from ..rollout.tasks import equal_before, plan_groups, task_id, task_row
from ..seeds import derive_seed
from ..types import Trajectory
from .results import EvaluationResult, Play, play_from_json


def evaluate_tasks(
    rows: Sequence[Mapping[str, Any]],
    *,
    engine: Engine,
    pool: EnvironmentPool,
    renderer: ChatRenderer,
    rollout: RolloutSettings,
    sampling: SamplingSettings,
    seed: int = 0,
    num_plays: int = 1,
    max_in_flight: int | None = None,
    progress_path: str | os.PathLike | None = None,
    on_play: Callable[[Play], None] | None = None,
    settings: Mapping[str, Any] | None = None,
    part: slice = slice(None),
) -> EvaluationResult:
    """Play each row `num_plays` times.

    Args:
        rows (`Sequence[Mapping[str, Any]]`):
            The tasks; two rows with the same `task_id` are an error, since each task counts once. Rows that are equal
            without having one are tasks of their own, with a number in their ids and seeds of their own.
        engine, pool, renderer, rollout, max_in_flight:
            As in [`~taspo_trl.rollout.loop.play_episodes`].
        sampling (`SamplingSettings`):
            How replies are sampled.
        seed (`int`, *optional*, defaults to `0`):
            Seed of environments (a fixed function of it and the task, the same for all plays) and of sampling.
        num_plays (`int`, *optional*, defaults to `1`):
            Plays of each task.
        progress_path (`str` or `PathLike`, *optional*):
            File to which each finished play is appended. Plays found there are not played again; ones that ended
            through infrastructure are. It belongs to one configuration: a different one raises.
        on_play (`Callable`, *optional*):
            Called with each finished play, those read from `progress_path` included.
        settings (`Mapping[str, Any]`, *optional*):
            Further facts for the result.
        part (`slice`, *optional*):
            The rows to play here, where several processes share them.

    Returns:
        `EvaluationResult`: plays in the order of `rows`.
    """
    facts = {
        "tasks_digest": tasks_digest(rows),
        "seed": seed,
        "num_plays": num_plays,
        **asdict(sampling),
        "num_tasks": len(rows),
        "rollout": asdict(rollout),
        **(settings or {}),
    }
    ids, numbers = distinct_ids(rows)[part], equal_before(rows)[part]
    done: dict[tuple[str, int], Play] = {}
    if progress_path is not None:
        done = _read_progress(Path(progress_path), facts)
        for play in done.values():
            if on_play is not None:
                on_play(play)

    specs, keys = [], {}
    for row, one, number in zip(rows[part], ids, numbers, strict=True):
        planned = plan_groups(
            [row], num_plays, seed, 0, prefix=f"eval-{one}", is_routed=pool.is_routed, numbers=[number]
        )
        for spec in planned:
            if (one, spec.generation_idx) not in done:
                specs.append(spec)
                keys[spec.uid] = (one, spec.generation_idx)

    def finish(trajectory: Trajectory) -> None:
        key = keys[trajectory.uid]
        done[key] = play = _play_of(trajectory, *key)
        if progress_path is not None:
            with open(progress_path, "a", encoding="utf-8") as file:
                file.write(json.dumps(without_secrets(asdict(play)), ensure_ascii=False) + "\n")
        if on_play is not None:
            on_play(play)

    if specs:
        engine.begin(sampling, derive_seed("evaluation", seed))
        play_episodes(
            specs,
            engine=engine,
            pool=pool,
            renderer=renderer,
            settings=rollout,
            max_in_flight=max_in_flight,
            on_episode_end=finish,
        )
    return EvaluationResult(tuple(done[one, k] for one in ids for k in range(num_plays) if (one, k) in done), facts)


def distinct_ids(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The id of each row: its `task_id`, or a digest of its content, with a number where earlier rows are equal.

    Raises:
        ConfigurationError: two rows have the same `task_id`: that task would count twice.
    """
    refuse_repeated(row.get("task_id") for row in rows)
    ids = [task_id(task_row(row)) for row in rows]
    return [f"{one}-{number + 1}" if number else one for one, number in zip(ids, equal_before(rows), strict=True)]


def refuse_repeated(task_ids: Iterable[Any]) -> None:
    """Raise [`~taspo_trl.errors.ConfigurationError`] for a task id that stands twice in evaluation data."""
    counts = Counter(str(one) for one in task_ids if one is not None)
    repeated = next((one for one, count in counts.items() if count > 1), None)
    if repeated is not None:
        raise ConfigurationError(
            f"The task {repeated!r} stands {counts[repeated]} times in the evaluation data; each task is "
            "played once. Give the rows distinct `task_id`s, or raise `num_generations_eval` for several plays."
        )


def tasks_digest(rows: Sequence[Mapping[str, Any]]) -> str:
    """What two evaluations have in common exactly when they play the same tasks in the same order."""
    return f"{derive_seed(*(sorted(map(str, task_row(row).items())) for row in rows)):016x}"


def _play_of(trajectory: Trajectory, one: str, play_idx: int) -> Play:
    return Play(
        task_id=one,
        family=trajectory.family,
        play_idx=play_idx,
        success=trajectory.success,
        score=trajectory.environment_reward,
        num_turns=len(trajectory.turns),
        num_reply_tokens=sum(len(turn.reply_ids) for turn in trajectory.turns),
        stop_reason=trajectory.stop_reason,
        error=trajectory.error,
    )


def _read_progress(path: Path, facts: Mapping[str, Any]) -> dict[tuple[str, int], Play]:
    """Finished plays of an interrupted evaluation with the same settings; starts the file when there is none."""
    header = json.dumps(without_secrets({"settings": facts}), sort_keys=True, default=str)
    if not path.exists() or path.stat().st_size == 0:
        write_text(path, header + "\n")
        return {}
    text = path.read_text(encoding="utf-8", errors="replace")  # a kill may cut a character in two
    lines = text.split("\n")  # and at nothing else: JSON leaves other line separators in its strings
    if lines[0] != header:
        raise ConfigurationError(
            f"{path} holds the progress of an evaluation with other settings. Delete it, or choose another output."
        )
    if not text.endswith("\n"):  # killed while writing: the next play must start a line of its own
        with open(path, "a", encoding="utf-8") as file:
            file.write("\n")
    done = {}
    for line in lines[1:]:
        try:
            play = play_from_json(json.loads(line))
        except (ValueError, TypeError, KeyError):
            continue  # the cut line of such a run
        if play.is_usable:
            done[play.task_id, play.play_idx] = play
    return done
