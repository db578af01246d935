"""How much perfect credit gains in each candidate setting, and the setting that the plan's rule takes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from taspo_trl.errors import ConfigurationError
from taspo_trl.evaluation.statistics import Estimate

from .inference import half_width, mean_interval
from .plan import Choice, Plan
from .results import Finished


@dataclass(frozen=True)
class Candidate:
    """Perfect credit against GRPO in one setting, after some updates, by one measure."""

    setting: str
    updates: int
    measure: str
    oracle: str
    seeds: tuple[int, ...]
    """Seeds that both have."""
    baseline: float
    """GRPO's mean."""
    gain: Estimate
    """Oracle minus GRPO, paired by seed."""
    over_placebo: Estimate
    """Oracle minus the placebo of the same range, paired by seed."""
    ratio: float
    """Gain / half-width that the rule's number of seeds would give; NaN with fewer than two seeds."""


def candidates(plan: Plan, finished: Sequence[Finished]) -> list[Candidate]:
    """All combinations that the rule chooses between, in the plan's order."""
    ceiling = plan.ceiling
    found = []
    for setting in ceiling["settings"]:
        runs = {(one.method, one.seed): one for one in finished if one.setting == setting}
        most = plan.values["settings"][setting]["updates"]
        for updates in sorted({*(one for one in ceiling["checkpoints"] if one < most), most}):
            for measure in ceiling["measures"]:
                found += [_candidate(plan, runs, setting, updates, measure, one) for one in ceiling["rule"]["oracles"]]
    return found


def _candidate(
    plan: Plan, runs: Mapping[tuple[str, int], Finished], setting: str, updates: int, measure: str, oracle: str
) -> Candidate:
    def values(method: str) -> dict[int, float]:
        found = {
            seed: runs[method, seed].measure(measure, updates)
            for seed in plan.ceiling["seeds"]
            if (method, seed) in runs
        }
        return {seed: one for seed, one in found.items() if not math.isnan(one)}

    perfect, plain, placebo = values(oracle), values("grpo"), values(oracle.replace("oracle", "placebo"))
    seeds = tuple(seed for seed in perfect if seed in plain)
    gains = [perfect[seed] - plain[seed] for seed in seeds]
    half = half_width(gains, plan.ceiling["rule"]["seeds"])
    gain = mean_interval(gains)
    return Candidate(
        setting,
        updates,
        measure,
        oracle,
        seeds,
        math.fsum(plain[seed] for seed in seeds) / len(seeds) if seeds else math.nan,
        gain,
        mean_interval([perfect[seed] - placebo[seed] for seed in seeds if seed in placebo]),
        gain.value / half if half > 0 else math.nan,
    )


def missing(plan: Plan, finished: Sequence[Finished]) -> list[str]:
    """The ceiling's runs that have no file."""
    have = {(one.setting, one.method, one.seed) for one in finished}
    return [str(run) for run in plan.runs("ceiling") if (run.setting, run.method, run.seed) not in have]


def choose(plan: Plan, finished: Sequence[Finished]) -> tuple[Choice, dict[str, Any]]:
    """(what the rule takes, why), from the files of a whole ceiling.

    Raises:
        ConfigurationError: runs are missing: the rule sees all candidates or none.
    """
    gaps = missing(plan, finished)
    if gaps:
        raise ConfigurationError(
            f"{len(gaps)} runs of the ceiling are missing, the first is {gaps[0]!r}. The rule chooses among all "
            "candidates: run the ceiling to its end."
        )
    rule, found = plan.ceiling["rule"], candidates(plan, finished)
    for oracle in rule["oracles"]:
        passing = [one for one in found if one.oracle == oracle and one.ratio >= rule["at_least"]]
        if passing:
            best = max(passing, key=lambda one: one.ratio)
            evidence = {
                "because": f"{oracle} minus grpo is {best.gain}, {best.ratio:.1f} times the half-width that "
                f"{rule['seeds']} seeds give; {len(passing)} of {len(found) // len(rule['oracles'])} candidates reach "
                f"{rule['at_least']}"
            }
            return Choice(best.setting, best.updates, best.measure), evidence
    best = max(found, key=lambda one: -math.inf if math.isnan(one.ratio) else one.ratio)
    otherwise = rule["otherwise"]
    evidence = {
        "because": f"no candidate reaches {rule['at_least']} half-widths of {rule['seeds']} seeds; the largest is "
        f"{best.ratio:.1f} ({best.setting}, {best.updates} updates, {best.measure}, {best.oracle}): even perfect "
        "credit can hardly be told from none here"
    }
    return Choice(otherwise["setting"], otherwise["updates"], otherwise["primary"]), evidence
