"""What an evaluation found, play by play: its numbers, its file, its comparison with another one."""

from __future__ import annotations

import json
import math
import os
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import ConfigurationError
from ..files import write_text
from ..redaction import without_secrets
from ..types import StopReason
from .statistics import Rate, bootstrap_macro, mean, wilson_rate


RESULT_VERSION = 2
"""Version 2 names the date that chat templates printed (`settings["date_string"]`, None = none); in version 1 it was
the day of the evaluation. Rows that are equal and have no `task_id` are tasks of their own in version 2: the id of
each but the first ends in a number."""
READ_VERSIONS = (1, 2)


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
            "score": mean([play.score for play in usable]),
            "num_plays": float(len(self.plays)),
            "failed_share": 1 - len(usable) / len(self.plays) if self.plays else math.nan,
            "turns": mean([play.num_turns for play in usable]),
            "turns_success": mean([play.num_turns for play in wins]),
        }
        families = self.families()
        if len(families) > 1:
            values |= {f"success/{family}": rate.value for family, rate in families.items()}
        ends = Counter(play.stop_reason for play in self.plays)
        values |= {f"stop/{reason.value}": count / len(self.plays) for reason, count in sorted(ends.items())}
        return values

    def timed_metrics(self, prefix: str, seconds: float) -> dict[str, float]:
        """[`metrics`] under the names of a trainer's log."""
        values = {f"{prefix}_{name}": value for name, value in self.metrics().items()}
        return values | {
            f"{prefix}_runtime": seconds,
            f"{prefix}_samples_per_second": len(self.plays) / seconds,
        }

    def save(self, path: str | os.PathLike) -> None:
        """Write the result as JSON, with its summary; the file appears only when it is complete."""
        data = {
            "version": RESULT_VERSION,
            "kind": "evaluation",
            "settings": dict(self.settings),
            "summary": {key: value if math.isfinite(value) else None for key, value in self.metrics().items()},
            "plays": [asdict(play) for play in self.plays],
        }
        write_text(path, json.dumps(without_secrets(data), indent=1, ensure_ascii=False, default=str) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike) -> EvaluationResult:
        """Read what [`save`] wrote, in this version or an earlier one.

        Raises:
            ConfigurationError: the file is no evaluation, or one of a version that this package does not read.
        """
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
            if data["kind"] != "evaluation" or data["version"] not in READ_VERSIONS:
                raise ValueError(f"version {data['version']!r} of kind {data['kind']!r}")
            return cls(tuple(play_from_json(play) for play in data["plays"]), data["settings"])
        except (ValueError, TypeError, KeyError) as error:
            versions = " or ".join(map(str, READ_VERSIONS))
            raise ConfigurationError(f"{path} is not an evaluation result of version {versions}: {error}") from error


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


def play_from_json(data: Mapping[str, Any]) -> Play:
    """A play as [`EvaluationResult.save`] wrote it."""
    return Play(**{**data, "stop_reason": StopReason(data["stop_reason"])})
