"""Plays each task of a split exactly once and says how sure the numbers are.

No analyzer, no privileged text, no loss. Results can be resumed: finished plays are on disk and are not played again.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..environments.workers import EnvironmentPool
from ..errors import ConfigurationError
from ..files import write_text
from ..generation import Policy, SamplingSettings
from ..rollout.contexts import ChatRenderer
from ..rollout.loop import RolloutSettings, play_episodes
from ..rollout.tasks import equal_before, plan_groups, task_id, task_row
from ..seeds import derive_seed
from ..types import StopReason, Trajectory


@dataclass(frozen=True, slots=True)
class Play:
    """How one play of one task ended."""

    task_id: str
    family: str
    play_idx: int
    """Which of several plays of the same task, from 0."""
    success: bool
    score: float
    """Sum of the environment's own rewards, for example WebShop's score."""
    num_turns: int
    num_reply_tokens: int
    stop_reason: StopReason
    error: str = ""

    @property
    def is_usable(self) -> bool:
        return not self.stop_reason.is_infrastructure and self.num_turns > 0


@dataclass(frozen=True)
class Rate:
    """A share of successes with its 95 % interval."""

    num_successes: int
    num_plays: int
    low: float
    high: float

    @property
    def value(self) -> float:
        return self.num_successes / self.num_plays if self.num_plays else math.nan


@dataclass(frozen=True)
class EvaluationResult:
    """The plays of a split, and what they were played with."""

    plays: tuple[Play, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Sampling, seeds, limits, versions: what another run needs to repeat it."""

    @property
    def usable(self) -> list[Play]:
        return [play for play in self.plays if play.is_usable]

    def overall(self) -> Rate:
        """Micro mean over all plays, Wilson interval."""
        return wilson_rate([play.success for play in self.usable])

    def families(self) -> dict[str, Rate]:
        """Success of each family, Wilson intervals, families in alphabetical order."""
        by_family: dict[str, list[bool]] = defaultdict(list)
        for play in self.usable:
            by_family[play.family].append(play.success)
        return {family: wilson_rate(by_family[family]) for family in sorted(by_family)}

    def macro(self) -> tuple[float, float, float]:
        """(mean of the families' rates, low, high) with a stratified bootstrap interval."""
        by_family: dict[str, list[float]] = defaultdict(list)
        for play in self.usable:
            by_family[play.family].append(float(play.success))
        return bootstrap_macro([by_family[family] for family in sorted(by_family)])

    def metrics(self) -> dict[str, float]:
        """Flat numbers, as a trainer logs them."""
        usable, overall, macro = self.usable, self.overall(), self.macro()
        wins = [play for play in usable if play.success]
        values = {
            "success": overall.value,
            "success_low": overall.low,
            "success_high": overall.high,
            "success_macro": macro[0],
            "success_macro_low": macro[1],
            "success_macro_high": macro[2],
            "score": _mean([play.score for play in usable]),
            "num_plays": float(len(self.plays)),
            "failed_share": 1 - len(usable) / len(self.plays) if self.plays else math.nan,
            "turns": _mean([play.num_turns for play in usable]),
            "turns_success": _mean([play.num_turns for play in wins]),
        }
        families = self.families()
        if len(families) > 1:
            values |= {f"success/{family}": rate.value for family, rate in families.items()}
        ends = Counter(play.stop_reason for play in self.plays)
        values |= {f"stop/{reason.value}": count / len(self.plays) for reason, count in sorted(ends.items())}
        return values

    def save(self, path: str | os.PathLike) -> None:
        """Write the result as JSON, with its summary; the file appears only when it is complete."""
        data = {
            "version": 1,
            "kind": "evaluation",
            "settings": dict(self.settings),
            "summary": {key: value if math.isfinite(value) else None for key, value in self.metrics().items()},
            "plays": [asdict(play) for play in self.plays],
        }
        write_text(path, json.dumps(data, indent=1, ensure_ascii=False, default=str) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike) -> EvaluationResult:
        """Read what [`save`] wrote."""
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
            if data["kind"] != "evaluation" or data["version"] != 1:
                raise ValueError(f"version {data['version']!r} of kind {data['kind']!r}")
            return cls(tuple(_play_from_json(play) for play in data["plays"]), data["settings"])
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigurationError(f"{path} is not an evaluation result of version 1: {error}") from error


def evaluate_tasks(
    rows: Sequence[Mapping[str, Any]],
    *,
    policy: Policy,
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
        policy, pool, renderer, rollout, max_in_flight:
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
                file.write(json.dumps(asdict(play), ensure_ascii=False) + "\n")
        if on_play is not None:
            on_play(play)

    if specs:
        policy.begin(sampling, derive_seed("evaluation", seed))
        play_episodes(
            specs,
            policy=policy,
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


def wilson_rate(outcomes: Sequence[bool], confidence: float = 0.95) -> Rate:
    """A success rate with its Wilson score interval."""
    from scipy.stats import binomtest

    if not outcomes:
        return Rate(0, 0, math.nan, math.nan)
    interval = binomtest(sum(outcomes), len(outcomes)).proportion_ci(confidence, method="wilson")
    return Rate(sum(outcomes), len(outcomes), float(interval.low), float(interval.high))


def bootstrap_macro(
    strata: Sequence[Sequence[float]], confidence: float = 0.95, num_resamples: int = 2000, seed: int = 0
) -> tuple[float, float, float]:
    """(macro mean, low, high): the mean of the strata's means, resampling within each stratum."""
    import numpy as np

    strata = [stratum for stratum in strata if len(stratum)]
    if not strata:
        return math.nan, math.nan, math.nan
    rng = np.random.default_rng(seed)
    value = float(np.mean([np.mean(stratum) for stratum in strata]))
    means = np.zeros(num_resamples)
    for stratum in strata:
        data = np.asarray(stratum, dtype=np.float64)
        means += data[rng.integers(0, len(data), (num_resamples, len(data)))].mean(axis=1)
    low, high = np.quantile(means / len(strata), [(1 - confidence) / 2, (1 + confidence) / 2])
    return value, float(low), float(high)


@dataclass(frozen=True)
class Comparison:
    """Two results on the same tasks, paired by task and play."""

    num_pairs: int
    only_first: int
    """Solved in the first result only."""
    only_second: int
    """Solved in the second result only."""
    p_value: float
    """Exact two-sided McNemar test."""

    @property
    def difference(self) -> float:
        """Second minus first success rate, over the pairs."""
        return (self.only_second - self.only_first) / self.num_pairs if self.num_pairs else math.nan


def compare(first: EvaluationResult, second: EvaluationResult, family: str | None = None) -> Comparison:
    """Exact McNemar test of two results on the plays that both have, of one family or of all.

    Raises:
        ConfigurationError: the results have no play in common.
    """
    from scipy.stats import binomtest

    theirs = {(play.task_id, play.play_idx): play for play in second.usable}
    pairs = [
        (play.success, theirs[play.task_id, play.play_idx].success)
        for play in first.usable
        if (play.task_id, play.play_idx) in theirs and family in (None, play.family)
    ]
    if not pairs:
        raise ConfigurationError("The two results share no task, so they cannot be compared in pairs.")
    only_first = sum(a and not b for a, b in pairs)
    only_second = sum(b and not a for a, b in pairs)
    discordant = only_first + only_second
    p_value = float(binomtest(only_second, discordant).pvalue) if discordant else 1.0
    return Comparison(len(pairs), only_first, only_second, p_value)


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


def _play_from_json(data: Mapping[str, Any]) -> Play:
    return Play(**{**data, "stop_reason": StopReason(data["stop_reason"])})


def _read_progress(path: Path, facts: Mapping[str, Any]) -> dict[tuple[str, int], Play]:
    """Finished plays of an interrupted evaluation with the same settings; starts the file when there is none."""
    header = json.dumps({"settings": facts}, sort_keys=True, default=str)
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
            play = _play_from_json(json.loads(line))
        except (ValueError, TypeError, KeyError):
            continue  # the cut line of such a run
        if play.is_usable:
            done[play.task_id, play.play_idx] = play
    return done


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan
