"""Differences between methods of the tiers, paired by seed; what is incomplete says so and has no p-value."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from taspo_trl.errors import ConfigurationError
from taspo_trl.evaluation.statistics import Estimate

from . import inference
from .plan import Choice, Plan
from .results import Finished


@dataclass(frozen=True)
class Comparison:
    """First minus second method by one measure."""

    first: str
    second: str
    differences: Mapping[int, float]
    """Seed -> difference, over the seeds that both have."""
    planned: tuple[int, ...]
    """Seeds that the plan gives both."""
    p_value: float | None = None
    """Exact sign-flip test, of confirmatory contrasts with all their seeds."""
    adjusted: float | None = None
    """Holm over the confirmatory contrasts, where all of them are complete."""

    @property
    def is_complete(self) -> bool:
        return bool(self.planned) and set(self.differences) >= set(self.planned)

    @property
    def values(self) -> list[float]:
        return [self.differences[seed] for seed in sorted(self.differences)]

    @property
    def estimate(self) -> Estimate:
        """The mean with its 95 % t interval."""
        return inference.mean_interval(self.values)

    @property
    def seeds(self) -> str:
        """Their number, and that some are missing where some are."""
        have = len(self.differences)
        return f"{have}" if self.is_complete else f"INCOMPLETE: {have} of {len(self.planned)}"


class Comparisons:
    """The tiers' files, compared as the plan says.

    Args:
        plan (`Plan`), choice (`Choice`):
            What was planned, and what the ceiling chose.
        finished (`Sequence[Finished]`):
            Files of the stage `"tiers"`.

    Raises:
        ConfigurationError: two methods of a seed did not start from the same policy with the same episodes, or were
            not evaluated on the same tasks: they are no pair.
    """

    def __init__(self, plan: Plan, choice: Choice, finished: Sequence[Finished]):
        self.plan, self.choice = plan, choice
        self.runs = {(one.method, one.seed): one for one in finished if one.setting == choice.setting}
        _check_pairs(list(self.runs.values()))

    @property
    def methods(self) -> list[str]:
        """Methods with a file, in the plan's order."""
        ordered = [name for tier in ("tier1", "tier2", "tier3") for name in self.plan.tiers[tier]["methods"]]
        have = {method for method, _ in self.runs}
        return [name for name in ordered if name in have]

    def values(self, method: str, measure: str | None = None) -> dict[int, float]:
        """Seed -> the measure of a method, the primary one by default."""
        found = {
            seed: run.measure(measure or self.choice.primary)
            for (name, seed), run in sorted(self.runs.items())
            if name == method
        }
        return {seed: one for seed, one in found.items() if not math.isnan(one)}

    def difference(self, first: str, second: str, measure: str | None = None) -> Comparison:
        """First minus second, without a test."""
        a, b = self.values(first, measure), self.values(second, measure)
        planned = set(self.plan.planned_seeds(first)) & set(self.plan.planned_seeds(second))
        return Comparison(first, second, {seed: a[seed] - b[seed] for seed in a if seed in b}, tuple(sorted(planned)))

    def confirmatory(self) -> list[Comparison]:
        """The contrasts with tests: a test is made once, when all its seeds are there."""
        found = [self.difference(first, second) for first, second in self.plan.tiers["confirmatory"]]
        tested = [replace(one, p_value=inference.sign_flip_p(one.values)) if one.is_complete else one for one in found]
        if any(one.p_value is None for one in tested):
            return tested
        p_values = {f"{one.first} {one.second}": one.p_value or 0.0 for one in tested}
        adjusted = inference.holm(p_values)
        return [replace(one, adjusted=adjusted[f"{one.first} {one.second}"]) for one in tested]

    def share_of_ceiling(self, method: str) -> tuple[Estimate, int]:
        """(gain over GRPO / the oracle's gain, seeds that all three have)."""
        gain, most = self.difference(method, "grpo"), self.difference(self.plan.tiers["ceiling"][0], "grpo")
        seeds = [seed for seed in sorted(gain.differences) if seed in most.differences]
        found = inference.share([gain.differences[s] for s in seeds], [most.differences[s] for s in seeds])
        return found, len(seeds)

    def by_task(self, first: str, second: str) -> Estimate:
        """The difference of sampled success with seeds and tasks both drawn again, micro over tasks: a check."""
        table = []
        for seed in self.difference(first, second, "sampled").differences:
            mine, theirs = (
                [success for plays in run.outcomes(f"sampled@{run.updates}").values() for _, success in plays]
                for run in (self.runs[first, seed], self.runs[second, seed])
            )
            row = [a - b for a, b in zip(mine, theirs, strict=True)]
            table.append([0.0 if math.isnan(one) else one for one in row])
        return inference.seed_task_interval(table)

    def orderings(self) -> list[tuple[str, str, str, str]]:
        """(table, what the paper's order says, verdict, why) of each neighbouring pair of the papers' tables."""
        rows = []
        for one in self.plan.values["orderings"]:
            if "undecidable" in one:
                rows.append((one["table"], "", NOT_DECIDABLE, one["undecidable"]))
            for higher, lower in pairwise(one["order"]):
                verdict, why = self._verdict(higher, lower)
                standin = self.plan.standin(higher, lower)
                rows.append((one["table"], f"{higher} > {lower}", verdict, f"{why}; {standin}" if standin else why))
        return rows

    def _verdict(self, higher: str, lower: str) -> tuple[str, str]:
        unreadable = [name for name in (higher, lower) if name in self.plan.tiers["unreadable"]]
        if unreadable:
            return NOT_DECIDABLE, f"{', '.join(unreadable)}: not evaluable here, this policy does not read its block"
        found = self.difference(higher, lower)
        without = [name for name in (higher, lower) if name in self.methods and not self.values(name)]
        if without:
            return NOT_DECIDABLE, f"{', '.join(without)} has no measure {self.choice.primary!r}"
        if not found.is_complete:
            return NOT_DECIDABLE, f"seeds {found.seeds}"
        told = f"difference {signed(found.estimate)}, {found.seeds} seeds"
        if found.estimate.low > 0:
            return SEEN, told
        if found.estimate.high < 0:
            return NOT_SEEN, f"the other way round: {told}"
        bound = self.plan.tiers["equivalence"]
        if inference.is_equivalent(found.values, bound):
            return NOT_SEEN, f"the 90 % interval lies inside ±{bound}: {told}"
        return NOT_DECIDABLE, f"no difference that {found.seeds} seeds can support ({signed(found.estimate)})"

    def credit_quality(self, path: Path) -> list[dict[str, Any]]:
        """Of each method in the credit report that was trained: AUC, rank correlation, dose, and its learning gain."""
        if not path.exists():
            return []
        reported, points = json.loads(path.read_text())["methods"], []
        # Names that the plan does not translate are those of methods.
        names = {name: self.plan.values["credit_names"].get(name, name) for name in reported}
        for name, method in names.items():
            found = self.difference(method, "grpo")
            if method == "grpo" or not found.differences:
                continue
            quality = reported[name]["progress"]["all"]
            points.append(
                {
                    "method": method,
                    "auc": Estimate(*_numbers(quality["auc"])),
                    "rank_correlation": Estimate(*_numbers(quality["rank_correlation"])),
                    "dose": Estimate(*_numbers(quality["dose"])),
                    "gain": found.estimate,
                    "seeds": found.seeds,
                }
            )
        return points


SEEN, NOT_SEEN, NOT_DECIDABLE = "seen", "not seen", "not decidable here"


def signed(found: Estimate) -> str:
    """A difference with its interval."""
    if math.isnan(found.value):
        return "-"
    if math.isnan(found.low):
        return f"{found.value:+.3f} [no interval]"
    return f"{found.value:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"


def _numbers(values: Sequence[float | None]) -> list[float]:
    return [math.nan if one is None else one for one in values]


def _check_pairs(runs: Sequence[Finished]) -> None:
    for what in ("policy", "first_batch"):
        kept: dict[int, Finished] = {}
        for one in runs:
            if one.data[what] is None:
                continue
            other = kept.setdefault(one.seed, one)
            if one.data[what] != other.data[what]:
                raise ConfigurationError(
                    f"{one.path} and {other.path} have the same seed and another {what} ({one.data[what]} and "
                    f"{other.data[what]}): they are no pair. Were they played on machines of two kinds, or by two "
                    "versions? Move one of them away and play it again."
                )
    tasks = {
        (name.replace(f"@{one.updates}", "@end"), split, values["tasks"])
        for one in runs
        for name, splits in one.data["evaluations"].items()
        for split, values in splits.items()
    }
    if len(tasks) != len({evaluated[:2] for evaluated in tasks}):
        raise ConfigurationError("The runs were evaluated on other tasks: they are no pairs.")
