"""Command line of the study: `run`, `try`, `status` and `report`.

python -m benchmarks.study run --hours 8     # `make study`: goes on where it was stopped
python -m benchmarks.study report            # tables and figures of docs/study.md, from the files
"""

from __future__ import annotations

import argparse
import datetime
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from taspo_trl.errors import ConfigurationError
from taspo_trl.files import write_text

from . import figures
from .ceiling import choose, missing
from .comparisons import Comparisons
from .plan import PARTS, PLAN, TIERS, Choice, Plan, Run
from .report import progress, put, report
from .results import RESULTS, ROOT, Store, code_hash, facts
from .runner import Expected, InProcess, Outcome, Told, Work, go


PAGE = ROOT / "docs" / "study.md"
CREDIT_QUALITY = ROOT / "benchmarks" / "results" / "credit_quality.json"
SCRATCH = ROOT / "build" / "study"
TOLD = ("success", "guidance/coverage", "credit/weight_std", "distill/loss")
"""Logged names that a trial prints."""


def main(given: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(given)
    console, plan, store = Console(soft_wrap=True, highlight=False), Plan.read(options.plan), Store(options.results)
    try:
        if options.command == "status":
            console.print(progress(plan, store))
            return 0
        if options.command == "report":
            return write_report(console, plan, store)
        if options.command == "try":
            return try_methods(console, plan, store, options.setting, options.methods)
        return run(console, plan, store, options)
    except ConfigurationError as error:
        console.print(f"[bold]Refused.[/bold] {error}")
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.study", description="The miniature study.")
    parser.add_argument("--plan", type=Path, default=PLAN, help="the plan (default: benchmarks/study/plan.toml)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the runs' files")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("status", help="how many runs of each part are done")
    commands.add_parser("report", help="write the tables and figures of docs/study.md")
    trying = commands.add_parser("try", help="one update of every method: finds what would fail, writes no result")
    trying.add_argument("--setting", help="where (default: the one chosen, or the ceiling's first)")
    trying.add_argument("--methods", nargs="+", help="default: all of the plan")
    running = commands.add_parser("run", help="play what is missing")
    running.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="default: all, in order")
    running.add_argument("--hours", type=float, help="begin no run that would not end within so many hours")
    running.add_argument("--workers", type=int, default=2, help="runs at a time, one thread each (default: 2)")
    running.add_argument("--first-methods", type=int, help="only so many methods of each tier; never fewer seeds")
    running.add_argument("--any-code", action="store_true", help="go on though the code is another one")
    return parser


def run(console: Console, plan: Plan, store: Store, options: argparse.Namespace, work: Work | None = None) -> int:
    """Play the parts that were asked for, in their order; the tiers wait for the ceiling's choice."""
    store.folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(store.folder / ".lock", timeout=0):
            return _locked(console, plan, store, options, work or InProcess(ROOT, SCRATCH))
    except Timeout:
        console.print(f"Another session is at work in {store.folder}. Wait for it, or end it.")
        return 2


def _locked(console: Console, plan: Plan, store: Store, options: argparse.Namespace, work: Work) -> int:
    code, known = code_hash(), facts()
    # Before anything is played, both stages' files must be of this plan.
    store.check("ceiling", plan.hash("ceiling"), code, options.any_code)
    store.check("tiers", plan.hash("tiers", store.choice()), code, options.any_code)
    console.print(_whole(plan, store, options))
    hours, is_well = options.hours, True
    started = datetime.datetime.now()
    for part in [one for one in PARTS if one in options.parts]:
        if part in TIERS and store.choice() is None:
            gaps = missing(plan, store.finished("ceiling"))
            if gaps:
                console.print(f"{part} waits: {len(gaps)} runs of the ceiling are missing, which chooses its setting.")
                break
            chosen, evidence = choose(plan, store.finished("ceiling"))
            store.write_choice(chosen, {**evidence, "plan": plan.hash("ceiling")})
            console.print(f"The ceiling chose {chosen}: {evidence['because']}.")
        choice = None if part == "ceiling" else store.choice()
        stage = "ceiling" if part == "ceiling" else "tiers"
        runs = plan.runs(part, choice, _first(part, options))
        told = Told(plan.hash(stage, choice), code, known)
        spent = (datetime.datetime.now() - started).total_seconds() / 3600
        outcome = _play(console, part, runs, store, work, told, options, None if hours is None else hours - spent)
        is_well = is_well and not outcome.failed
        if outcome.left:
            console.print(f"{len(outcome.left)} runs of {part} are left; the same command goes on with them.")
            break
    return 0 if is_well else 1


def _whole(plan: Plan, store: Store, options: argparse.Namespace) -> str:
    """The hours of all that was asked for; a range where the ceiling has not chosen yet."""
    expected = Expected([*store.finished("ceiling"), *store.finished("tiers")])
    choice = store.choice()
    settings = plan.values["settings"]
    possible = [choice] if choice else [Choice(one, settings[one]["updates"], "") for one in plan.ceiling["settings"]]
    totals = []
    for one in possible:
        runs = [run for part in options.parts for run in plan.runs(part, one, _first(part, options))]
        totals.append(expected.hours([run for run in runs if not store.has(run)], options.workers))
    low, high = min(totals), max(totals)
    told = f"{low:.0f} hours" if high - low < 1 else f"{low:.0f} to {high:.0f} hours, by the setting that is chosen"
    return f"What is left of {', '.join(options.parts)} takes about {told}. A stop costs the runs under way."


def _first(part: str, options: argparse.Namespace) -> int | None:
    return None if part == "ceiling" else options.first_methods


def _play(
    console: Console,
    part: str,
    runs: list[Run],
    store: Store,
    work: Work,
    told: Told,
    options: argparse.Namespace,
    hours: float | None,
) -> Outcome:
    expected = Expected([*store.finished("ceiling"), *store.finished("tiers")])
    todo = [one for one in runs if not store.has(one)]
    needed = expected.hours(todo, options.workers)
    console.print(
        f"{part}: {len(todo)} of {len(runs)} runs to play, about {needed:.1f} hours with {options.workers} at a time"
        + (f"; {max(hours, 0):.1f} hours are left" if hours is not None else "")
    )
    if hours is not None and 0 < hours < needed and part != "ceiling" and options.first_methods is None:
        console.print("That is too little for all: --first-methods 8 keeps every seed and leaves methods out.")
    left = {str(one): expected(one) for one in todo}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[end]}"), console=console) as bar:
        task = bar.add_task(part, total=len(runs), completed=len(runs) - len(todo), end=_end(needed))

        def on_end(one: Run, seconds: float, error: str) -> None:
            left.pop(str(one), None)
            remaining = sum(left.values()) / options.workers / 3600
            bar.update(task, advance=0 if error else 1, end=_end(remaining))
            last = f"failed: {error.strip().splitlines()[-1]}" if error else f"{seconds:.0f} s"
            bar.console.print(f"{one}: {last}")

        try:
            return go(runs, store, work, told, workers=options.workers, hours=hours, expected=expected, on_end=on_end)
        finally:
            if isinstance(work, InProcess):
                work.stop()


def _end(hours: float) -> str:
    return f"ends about {datetime.datetime.now() + datetime.timedelta(hours=hours):%a %H:%M}"


def try_methods(
    console: Console, plan: Plan, store: Store, setting: str | None, methods: Sequence[str] | None, work: Any = None
) -> int:
    """One update of 16 episodes with each method, in this process; gives 1 where one fails."""
    from .play import play

    choice, work, failed = store.choice(), work or play, list[str]()
    setting = setting or (choice.setting if choice else plan.ceiling["settings"][0])
    for method in methods or plan.values["methods"]:
        configuration = plan.trial(setting, method)
        with tempfile.TemporaryDirectory() as folder:
            try:
                found = work(configuration, Path(folder))
            except Exception as error:
                failed.append(method)
                console.print(f"[bold]{method}[/bold]: {type(error).__name__}: {error}", markup=True)
                continue
        curves = {name: values[0] for name, values in found["curves"].items() if values}
        told = ", ".join(f"{name} {curves[name]:.3g}" for name in TOLD if curves.get(name) is not None)
        console.print(f"{method}: {sum(found['seconds'].values()):.1f} s; first batch {found['first_batch']}; {told}")
    console.print(f"Failed: {', '.join(failed)}" if failed else "Every method made its update.")
    return 1 if failed else 0


def write_report(console: Console, plan: Plan, store: Store, page: Path = PAGE) -> int:
    """Tables and figures into the page; a page that has them already stays as it is."""
    choice, finished, drawn = store.choice(), store.finished("tiers"), list[str]()
    if choice is not None and finished:
        drawn = figures.draw(Comparisons(plan, choice, finished), CREDIT_QUALITY, page.parent / "images")
    old = page.read_text(encoding="utf-8")
    new = put(old, report(plan, store, CREDIT_QUALITY, drawn))
    if new != old:
        write_text(page, new)
    console.print(f"{page}: {len(store.finished('ceiling'))} runs of the ceiling, {len(finished)} of the tiers.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
