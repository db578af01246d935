"""What an evaluation found, play by play: its numbers, its file, its comparison with another one."""

from __future__ import annotations

import json
import math
import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import ConfigurationError
from ..files import write_text
from ..redaction import without_secrets
from ..types import StopReason
from .statistics import Rate, macro_rate, mean, wilson_rate


RESULT_VERSION = 2
"""Version 2 names the date that chat templates printed (`settings["date_string"]`, None = none); in version 1 it was
the day of the evaluation. Rows that are equal and have no `task_id` are tasks of their own in version 2: the id of
each but the first ends in a number."""
READ_VERSIONS = (1, 2)


@dataclass(frozen=True, slots=True)
class Note:
    """What an agent noted after a failed attempt, and what that cost."""

    text: str
    """Empty when there was nothing to keep."""
    faults: tuple[str, ...] = ()
    """Why it is not the note that was asked for: `empty`, `too_long` (cut), `markup` (made harmless), `unfinished`
    (the reply reached its token limit), `does_not_fit` (no question was short enough), or how asking failed."""
    calls: int = 0
    """Requests to the policy or the LLM."""
    num_prompt_tokens: int = 0
    num_reply_tokens: int = 0
    """As far as they were reported."""
    error: str = ""
    """What failed, in words."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """How one of several attempts at a task ended."""

    success: bool
    score: float
    num_turns: int
    num_prompt_tokens: int
    num_reply_tokens: int
    stop_reason: StopReason
    error: str = ""
    note: Note | None = None
    """What was noted for the next attempt; None behind the last one."""

    @property
    def is_usable(self) -> bool:
        return not self.stop_reason.is_infrastructure and self.num_turns > 0


@dataclass(frozen=True, slots=True)
class Play:
    """How one play of one task ended. Of several attempts, these are the facts of the last one."""

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
    num_prompt_tokens: int = 0
    """Of all turns' prompts; 0 in files of earlier versions."""
    attempts: tuple[Attempt, ...] = ()
    """All attempts in their order, for an agent that may try several times."""

    @classmethod
    def of(cls, task_id: str, family: str, play_idx: int, attempts: Sequence[Attempt], is_single: bool) -> Play:
        """The play that consists of these attempts, at least one."""
        last = attempts[-1]
        return cls(
            task_id=task_id,
            family=family,
            play_idx=play_idx,
            success=last.success,
            score=last.score,
            num_turns=last.num_turns,
            num_reply_tokens=last.num_reply_tokens,
            stop_reason=last.stop_reason,
            error=last.error,
            num_prompt_tokens=last.num_prompt_tokens,
            attempts=() if is_single else tuple(attempts),
        )

    @property
    def is_usable(self) -> bool:
        return not self.stop_reason.is_infrastructure and self.num_turns > 0

    def within(self, attempts: int) -> Play:
        """The play as it would have ended with only so many attempts."""
        if len(self.attempts) <= attempts:
            return self
        return Play.of(self.task_id, self.family, self.play_idx, self.attempts[:attempts], False)

    def to_json(self) -> dict[str, Any]:
        """Plain data, as files hold it."""
        values = asdict(self)
        if not self.attempts:
            del values["attempts"]
        return values


@dataclass(frozen=True)
class EvaluationResult:
    """The plays of a split, and what they were played with."""

    plays: tuple[Play, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Sampling, seeds, limits, versions: what another run needs to repeat it."""

    @property
    def usable(self) -> list[Play]:
        return [play for play in self.plays if play.is_usable]

    @property
    def max_attempts(self) -> int:
        """Attempts that a task had at most; 1 for most evaluations."""
        allowed = self.settings.get("agent", {}).get("attempts", 1)
        return max([allowed, *(len(play.attempts) for play in self.plays)])

    def within(self, attempts: int) -> EvaluationResult:
        """What would have been found with only so many attempts: attempts know nothing of those that follow.

        Raises:
            ConfigurationError: `attempts` is below 1, or more than the evaluation allowed.
        """
        if not 1 <= attempts <= self.max_attempts:
            raise ConfigurationError(
                f"The evaluation allowed {self.max_attempts} attempt(s), so it says nothing about {attempts}."
            )
        if attempts == self.max_attempts:
            return self
        settings = {**self.settings, "agent": {**self.settings.get("agent", {}), "attempts": attempts}}
        return EvaluationResult(tuple(play.within(attempts) for play in self.plays), settings)

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
        """(mean of the families' rates, low, high) whose interval combines the families' Wilson intervals."""
        by_family: dict[str, list[bool]] = defaultdict(list)
        for play in self.usable:
            by_family[play.family].append(play.success)
        return macro_rate([by_family[family] for family in sorted(by_family)])

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
        if "agent" in self.settings:
            values |= self._costs()
        if self.max_attempts > 1:
            for k in range(1, self.max_attempts + 1):
                rate = self.within(k).overall()
                values |= {f"success_at/{k}": rate.value, f"success_at/{k}_low": rate.low}
                values |= {f"success_at/{k}_high": rate.high}
        ends = Counter(play.stop_reason for play in self.plays)
        values |= {f"stop/{reason.value}": count / len(self.plays) for reason, count in sorted(ends.items())}
        return values

    def _costs(self) -> dict[str, float]:
        """What an agent's plays took, all attempts and notes together: means over the usable plays."""
        usable = self.usable
        tried: list[Sequence[Play | Attempt]] = [play.attempts or (play,) for play in usable]
        noted = [[one.note for one in play.attempts if one.note is not None] for play in usable]
        values = {
            "attempts": mean([len(one) for one in tried]),
            "turns_total": mean([sum(a.num_turns for a in one) for one in tried]),
            "prompt_tokens_total": mean([sum(a.num_prompt_tokens for a in one) for one in tried]),
            "reply_tokens_total": mean([sum(a.num_reply_tokens for a in one) for one in tried]),
        }
        notes = [note for one in noted for note in one]
        if not notes:
            return values
        values |= {
            "note_calls": mean([sum(note.calls for note in one) for one in noted]),
            "note_prompt_tokens": mean([sum(note.num_prompt_tokens for note in one) for one in noted]),
            "note_reply_tokens": mean([sum(note.num_reply_tokens for note in one) for one in noted]),
        }
        faults = Counter(fault for note in notes for fault in note.faults)
        return values | {f"note_fault/{fault}": count / len(notes) for fault, count in sorted(faults.items())}

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
            "plays": [play.to_json() for play in self.plays],
        }
        write_text(path, json.dumps(without_secrets(data), indent=1, ensure_ascii=False, default=str) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike) -> EvaluationResult:
        """Read what [`save`] wrote, in this version or an earlier one.

        Raises:
            ConfigurationError: there is no file, or it is no evaluation, or one of a version that this package
                does not read.
        """
        if not Path(path).is_file():
            raise ConfigurationError(f"There is no result file {path}. `taspo eval -o FILE` writes one.")
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


def refuse_other_result(path: str | os.PathLike, facts: Mapping[str, Any]) -> None:
    """Raise where `path` holds a result that another evaluation would overwrite.

    The versions of libraries make no other evaluation.

    Args:
        path (`str` or `PathLike`):
            Where a result is going to be saved.
        facts (`Mapping[str, Any]`):
            Its settings.

    Raises:
        ConfigurationError: the file is no evaluation, or one with other settings.
    """
    if not Path(path).exists():
        return
    old = dict(EvaluationResult.load(path).settings)
    new = json.loads(json.dumps(without_secrets(dict(facts)), default=str))
    other = sorted(name for name in {*old, *new} - {"versions"} if old.get(name) != new.get(name))
    if other:
        raise ConfigurationError(
            f"{path} holds the result of an evaluation with other settings ({', '.join(other)}). Choose another "
            "output, or delete it."
        )


def play_from_json(data: Mapping[str, Any]) -> Play:
    """A play as [`Play.to_json`] wrote it."""
    attempts = tuple(attempt_from_json(one) for one in data.get("attempts", ()))
    return Play(**{**data, "stop_reason": StopReason(data["stop_reason"]), "attempts": attempts})


def attempt_from_json(data: Mapping[str, Any]) -> Attempt:
    """An attempt as a file holds it."""
    note = data.get("note")
    kept = Note(**{**note, "faults": tuple(note["faults"])}) if note is not None else None
    return Attempt(**{**data, "stop_reason": StopReason(data["stop_reason"]), "note": kept})
