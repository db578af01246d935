"""Episodes of a player on disk, one line each: what was played and paid for once is never played again."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..environments.workers import EnvironmentPool
from ..errors import ConfigurationError, RecordError
from ..files import end_last_line, write_text
from ..records import TrajectoryRecord, from_json, to_json
from ..redaction import redactor, without_secrets
from ..rollout.episode import RolloutSettings
from ..rollout.loop import play_episodes
from ..rollout.tasks import EpisodeSpec, equal_before, plan_groups
from ..rollout.templates import ChatRenderer
from ..seeds import derive_seed
from ..types import Trajectory
from .players import Player, PlayerEngine


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Recording:
    """What a recording holds."""

    trajectories: tuple[Trajectory, ...]
    """Usable episodes in the order of the tasks; those of earlier runs included."""
    num_planned: int
    failures: Mapping[str, int]
    """Reason -> episodes of this run that ended through infrastructure: the next run plays them again."""

    @property
    def num_successes(self) -> int:
        return sum(trajectory.success for trajectory in self.trajectories)


def record_episodes(
    rows: Sequence[Mapping[str, Any]],
    player: Player,
    folder: str | os.PathLike,
    *,
    pool: EnvironmentPool,
    renderer: ChatRenderer,
    rollout: RolloutSettings,
    seed: int = 0,
    num_plays: int = 1,
    max_in_flight: int | None = None,
    settings: Mapping[str, Any] | None = None,
    on_episode_end: Callable[[Trajectory], None] | None = None,
) -> Recording:
    """Play each row `num_plays` times, and keep every episode in `folder/episodes.jsonl` as soon as it has ended.

    Args:
        rows (`Sequence[Mapping[str, Any]]`):
            The tasks.
        player (`Player`):
            Who plays.
        folder (`str` or `PathLike`):
            Of this recording. Episodes that are found there are not played again; it belongs to one player, one set of
            tasks and one prompt, which `recording.json` names.
        pool, renderer, rollout:
            As in [`~taspo_trl.rollout.loop.play_episodes`]: the policy's own.
        seed (`int`, *optional*, defaults to `0`):
            Of the environments; a task's plays have the same.
        num_plays (`int`, *optional*, defaults to `1`):
            Plays of each task.
        max_in_flight (`int`, *optional*):
            Episodes at the same time; None = all.
        settings (`Mapping[str, Any]`, *optional*):
            Further facts that the recording belongs to.
        on_episode_end (`Callable`, *optional*):
            Called with each episode, those of earlier runs included.

    Raises:
        ConfigurationError: the folder holds the recording of something else.
        AnalyzerError: a chat model cannot be used at all.
    """
    folder = Path(folder)
    facts = {
        "player": player.name,
        "tasks": f"{derive_seed(*(sorted(map(str, row.items())) for row in rows)):016x}",
        "num_tasks": len(rows),
        "seed": seed,
        "rollout": asdict(rollout),
        **(settings or {}),
    }
    _check_owner(folder, facts)
    file = folder / "episodes.jsonl"
    specs: list[EpisodeSpec] = plan_groups(
        rows, num_plays, seed, 0, "w", is_routed=pool.is_routed, numbers=equal_before(rows)
    )
    done = {one.uid: one for one in recorded_episodes(file) if one.is_usable} if file.exists() else {}
    wanted = {spec.uid for spec in specs}
    for trajectory in done.values():
        if on_episode_end is not None and trajectory.uid in wanted:
            on_episode_end(trajectory)
    missing = [spec for spec in specs if spec.uid not in done]
    failures: dict[str, int] = {}
    redact = redactor()

    def finish(trajectory: Trajectory) -> None:
        player.ended(trajectory.uid)
        if trajectory.is_usable:
            done[trajectory.uid] = trajectory
            record = TrajectoryRecord(trajectory, trajectory.uid.rpartition("-k")[0], 0, 0)
            with open(file, "a", encoding="utf-8") as lines:
                lines.write(json.dumps(to_json(record, redact=redact), ensure_ascii=False, allow_nan=False) + "\n")
        else:
            reason = trajectory.error or trajectory.stop_reason.value
            failures[reason] = failures.get(reason, 0) + 1
        if on_episode_end is not None:
            on_episode_end(trajectory)

    if missing:
        end_last_line(file)
        engine = PlayerEngine(player, renderer, pool.traits, missing)
        try:
            play_episodes(
                missing,
                engine=engine,
                pool=pool,
                renderer=renderer,
                settings=rollout,
                max_in_flight=max_in_flight,
                on_episode_end=finish,
            )
        finally:
            engine.close()
        if engine.fault is not None:
            raise engine.fault
    kept = tuple(done[spec.uid] for spec in specs if spec.uid in done)
    return Recording(kept, len(specs), failures)


def recorded_episodes(file: str | os.PathLike) -> list[Trajectory]:
    """The episodes of a recording, or of a file or folder that training wrote.

    A line that is no record, such as the one that a killed run cut off, is left out and named in a warning.

    Raises:
        RecordError: there is no file.
    """
    path = Path(file)
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not files or not path.exists():
        raise RecordError(f"{path} holds no episodes (*.jsonl).")
    found = []
    for one in files:
        for number, line in enumerate(one.read_text(encoding="utf-8", errors="replace").split("\n"), 1):
            if not line.strip():
                continue
            try:
                found.append(from_json(json.loads(line)).trajectory)
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                logger.warning("%s, line %d is no whole episode and is left out: %s", one, number, str(error)[:200])
    return found


def _check_owner(folder: Path, facts: Mapping[str, Any]) -> None:
    """Write down what the recording is of, or refuse one of something else."""
    text = json.dumps(without_secrets(dict(facts)), sort_keys=True, indent=1, default=str) + "\n"
    path = folder / "recording.json"
    if not path.exists():
        write_text(path, text)
        return
    before, now = json.loads(path.read_text(encoding="utf-8")), json.loads(text)
    names = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    if names:
        told = "; ".join(f"`{name}` was {before.get(name)!r} and is {now.get(name)!r}" for name in names)
        raise ConfigurationError(
            f"{folder} holds episodes of another recording ({told}). Choose another output, or go on with the "
            "settings of that one; its episodes can be imitated from there with `--from`."
        )
