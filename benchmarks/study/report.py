"""The study's tables in Markdown, from the files alone; where nothing was run they say so."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from taspo_trl.evaluation.statistics import Estimate, mean

from .ceiling import Candidate, candidates, missing
from .comparisons import Comparison, Comparisons, signed
from .inference import mean_interval
from .plan import TIERS, Plan, Run
from .results import Store


OPENING = "<!-- study: what follows is written by `python -m benchmarks.study report` -->"
CLOSING = "<!-- /study -->"
NOT_RUN = (
    "**Not run yet.** No file of a run is here, so this page has no numbers: only what will be run and how it is read."
)
MINIATURE = (
    "Miniature (0.66M-parameter policy, synthetic household, {episodes:,} episodes a run), our implementations; "
    "stand-ins are named in the rows."
)


def report(plan: Plan, store: Store, credit_quality, figures: Sequence[str] = ()) -> str:
    """All tables, with the figures that exist, or the sentence that nothing was run."""
    parts = [*_ceiling(plan, store), *_tiers(plan, store, credit_quality, figures), *_failures(store)]
    return "\n\n".join(parts or [NOT_RUN])


def put(page: str, text: str) -> str:
    """`page` with `text` between its marks.

    Raises:
        ValueError: it has no marks.
    """
    before, opening, rest = page.partition(OPENING)
    _, closing, after = rest.partition(CLOSING)
    if not opening or not closing:
        raise ValueError(f"The page has no marks {OPENING!r} and {CLOSING!r}.")
    return f"{before}{OPENING}\n\n{text}\n\n{CLOSING}{after}"


def _ceiling(plan: Plan, store: Store) -> list[str]:
    finished = store.finished("ceiling")
    if not finished:
        return []
    found, gaps = candidates(plan, finished), missing(plan, finished)
    parts = ["### The ceiling"]
    if gaps:
        parts.append(
            f"**Incomplete: {len(gaps)} of {len(plan.runs('ceiling'))} runs are missing.** Nothing is chosen."
        )
    rows = [_candidate_row(one, len(plan.ceiling["seeds"])) for one in found if one.seeds]
    columns = (
        "setting",
        "updates",
        "measure",
        "oracle",
        "seeds",
        "GRPO",
        "oracle - GRPO",
        "oracle - placebo",
        "ratio",
    )
    parts.append(table(columns, rows))
    choice = store.choice()
    if choice is not None:
        parts.append(f"Chosen: `{choice.setting}`, {choice.updates} updates, measure `{choice.primary}`.")
    return parts


def _candidate_row(one: Candidate, planned: int) -> list[str]:
    return [
        f"`{one.setting}`",
        str(one.updates),
        one.measure,
        f"`{one.oracle}`",
        _seeds(len(one.seeds), planned),
        number(one.baseline),
        signed(one.gain),
        signed(one.over_placebo),
        number(one.ratio, 1),
    ]


def _tiers(plan: Plan, store: Store, credit_quality, figures: Sequence[str]) -> list[str]:
    choice, finished = store.choice(), store.finished("tiers")
    if choice is None or not finished:
        return []
    made = Comparisons(plan, choice, finished)
    episodes = (
        choice.updates * plan.values["training"]["tasks_per_update"] * plan.values["training"]["num_generations"]
    )
    codes = Counter(one.data["code"] for one in finished)
    parts = ["### The methods", MINIATURE.format(episodes=episodes) + f" Primary measure: {choice.primary}."]
    if len(codes) > 1:
        parts.append(
            f"**Made by {len(codes)} versions of the code**: " + ", ".join(f"{k} ({v})" for k, v in codes.items())
        )
    waiting = _unfinished(plan.runs("tier1", choice), store)
    if waiting:
        parts.append(
            f"**Tier 1 is incomplete: {waiting} runs are missing.** Confirmatory tests wait for all their seeds."
        )
    parts += [_confirmatory(made), _all_methods(made), _families(made), _orderings(made)]
    quality = made.credit_quality(credit_quality)
    if quality:
        rows = [
            [f"`{one['method']}`", str(one["auc"]), number(one["dose"].value), signed(one["gain"]), one["seeds"]]
            for one in quality
        ]
        parts.append(
            "#### Does better credit learn better?\n\n" + table(("method", "AUC", "dose", "gain", "seeds"), rows)
        )
    parts += [f"![{name}](images/{name}.svg)" for name in figures]
    return parts


def _confirmatory(made: Comparisons) -> str:
    rows = [
        [
            f"`{one.first}` - `{one.second}`",
            one.seeds,
            signed(one.estimate),
            number(one.p_value, 4),
            number(one.adjusted, 4),
            signed(made.by_task(one.first, one.second)) if one.differences else "-",
        ]
        for one in made.confirmatory()
    ]
    head = ("contrast", "seeds", "difference [95 %]", "p (sign flips)", "p (Holm)", "seeds and tasks drawn (sampled)")
    return "#### Confirmatory contrasts\n\n" + table(head, rows)


def _all_methods(made: Comparisons) -> str:
    rows = []
    for method in made.methods:
        gain = made.difference(method, "grpo")
        runs = [run for (name, _), run in made.runs.items() if name == method]
        rows.append(
            [
                _named(made, method),
                _seeds(len(runs), len(made.plan.planned_seeds(method))),
                _level(made, method, "sampled"),
                _level(made, method, "greedy"),
                _level(made, method, "area"),
                _level(made, method, "turns_success", 1),
                "" if method == "grpo" else _gain(gain),
                "" if method == "grpo" else _share(made, method, gain),
                number(mean([run.total_seconds for run in runs]), 0),
            ]
        )
    head = (
        "method",
        "seeds",
        "sampled",
        "greedy",
        "area",
        "turns of successes",
        "minus GRPO [95 %]",
        "share of the ceiling",
        "seconds",
    )
    return "#### All methods\n\nIntervals, no tests.\n\n" + table(head, rows)


def _families(made: Comparisons) -> str:
    by_method = {}
    for method in made.methods:
        runs = [run.families() for (name, _), run in made.runs.items() if name == method]
        by_method[method] = {family: mean([run[family] for run in runs]) for family in runs[0]}
    families = sorted({family for one in by_method.values() for family in one})
    rows = [
        [f"`{method}`", *(number(one.get(family)) for family in families), number(mean(list(one.values())))]
        for method, one in by_method.items()
    ]
    return "#### Families, sampled\n\n" + table(("method", *families, "macro"), rows)


def _orderings(made: Comparisons) -> str:
    head = ("table", "order in the paper", "here", "why")
    rows = [[name, f"`{order}`" if order else "", verdict, why] for name, order, verdict, why in made.orderings()]
    return "#### The papers' orderings\n\nNothing here is a reproduction.\n\n" + table(head, rows)


def _failures(store: Store) -> list[str]:
    failed = store.failures()
    if not failed:
        return []
    names = Counter(
        f"{one['configuration']['setting']['name']} {one['configuration']['method']['name']} seed "
        f"{one['configuration']['seed']}"
        for one in failed
    )
    return ["Attempts that failed: " + ", ".join(f"{name} ({count})" for name, count in names.items()) + "."]


def _gain(gain: Comparison) -> str:
    return signed(gain.estimate) + ("" if gain.is_complete or not gain.differences else f" (seeds {gain.seeds})")


def _share(made: Comparisons, method: str, gain: Comparison) -> str:
    found, count = made.share_of_ceiling(method)
    if not count:
        return "-"
    if math.isnan(found.low):
        return "unknown: the oracle's gain cannot be told from 0"
    whole = f"{found.value:.0%} [{found.low:.0%}, {found.high:.0%}]"
    return whole if count >= len(gain.planned) else f"{whole} (seeds INCOMPLETE: {count} of {len(gain.planned)})"


def _level(made: Comparisons, method: str, measure: str, digits: int = 3) -> str:
    found: Estimate = mean_interval(list(made.values(method, measure).values()))
    if math.isnan(found.low):
        return number(found.value, digits)
    return f"{found.value:.{digits}f} ± {found.high - found.value:.{digits}f}"


def _named(made: Comparisons, method: str) -> str:
    standin = made.plan.standin(method)
    return f"`{method}` ({standin})" if standin else f"`{method}`"


def _unfinished(runs: Iterable[Run], store: Store) -> int:
    return sum(not store.has(run) for run in runs)


def _seeds(have: int, planned: int) -> str:
    return f"{have}" if have >= planned else f"INCOMPLETE: {have} of {planned}"


def number(value: float | None, digits: int = 3) -> str:
    """A number, or a dash where there is none."""
    return "-" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def progress(plan: Plan, store: Store) -> str:
    """How many runs of each part have their file."""
    choice = store.choice()
    lines = []
    for part in ("ceiling", *TIERS):
        if part != "ceiling" and choice is None:
            lines.append(f"{part}: waits for the ceiling's choice")
            continue
        runs = plan.runs(part, choice)
        lines.append(f"{part}: {len(runs) - _unfinished(runs, store)} of {len(runs)} runs")
    return "\n".join(lines)
