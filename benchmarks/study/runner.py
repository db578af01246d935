"""Plays the planned runs whose files are missing, side by side and in time; a kill costs the runs under way only."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .plan import Run
from .results import Finished, Store


Work = Callable[[Run], Mapping[str, Any]]
"""Plays a run and returns what its file holds beside the configuration; the one thing that tests replace."""
ATTEMPTS = 2


class Stopped(BaseException):
    """The session was stopped: no failure of the run."""


@dataclass(frozen=True)
class Told:
    """What a run is made under, written into its file."""

    plan: str
    code: str
    facts: Mapping[str, Any] = field(default_factory=dict)


class Expected:
    """How long a run takes: the median of those like it, else of its setting's, else the plan's guess.

    Args:
        finished (`Sequence[Finished]`):
            Runs that were timed.
    """

    def __init__(self, finished: Sequence[Finished] = ()):
        self._seconds: dict[tuple, list[float]] = {}
        for one in finished:
            self._add(one.setting, one.method, one.updates, one.total_seconds)

    def __call__(self, run: Run) -> float:
        updates = run.configuration["updates"]
        for key in ((run.setting, run.method, updates), (run.setting, updates)):
            if key in self._seconds:
                return statistics.median(self._seconds[key])
        return run.seconds

    def note(self, run: Run, seconds: float) -> None:
        self._add(run.setting, run.method, run.configuration["updates"], seconds)

    def _add(self, setting: str, method: str, updates: int, seconds: float) -> None:
        for key in ((setting, method, updates), (setting, updates)):
            self._seconds.setdefault(key, []).append(seconds)

    def hours(self, runs: Sequence[Run], workers: int) -> float:
        return sum(map(self, runs)) / workers / 3600


@dataclass
class Outcome:
    """What a call of [`go`] did."""

    done: list[Run] = field(default_factory=list)
    failed: list[Run] = field(default_factory=list)
    left: list[Run] = field(default_factory=list)
    """Not begun: they would not have fitted."""


def go(
    runs: Sequence[Run],
    store: Store,
    work: Work,
    told: Told,
    *,
    workers: int = 2,
    hours: float | None = None,
    expected: Expected | None = None,
    clock: Callable[[], float] = time.monotonic,
    on_end: Callable[[Run, float, str], None] | None = None,
) -> Outcome:
    """Play the runs whose files are missing, in their order.

    Args:
        runs (`Sequence[Run]`):
            In the order in which they are begun.
        store (`Store`):
            Where their files lie.
        work (`Work`):
            Plays one; it is called from threads.
        told (`Told`):
            Hashes and facts for the files.
        workers (`int`, *optional*, defaults to `2`):
            Runs at a time.
        hours (`float`, *optional*):
            Begin no run that is not expected to end in time. The first that would not fit ends the session: a later,
            shorter one would give methods unequal seeds.
        expected (`Expected`, *optional*):
            Durations.
        clock (`Callable`, *optional*):
            Seconds.
        on_end (`Callable`, *optional*):
            Called with (run, seconds, error or `""`) after each.
    """
    expected, outcome, started = expected or Expected(), Outcome(), clock()
    waiting = [run for run in runs if not store.has(run)]
    under_way: dict[Future, Run] = {}
    pool = ThreadPoolExecutor(workers)
    try:
        while waiting or under_way:
            while waiting and len(under_way) < workers:
                if hours is not None and clock() - started + expected(waiting[0]) > hours * 3600:
                    outcome.left, waiting = waiting, []
                    break
                run = waiting.pop(0)
                under_way[pool.submit(_once, run, store, work, told, clock)] = run
            if not under_way:
                break
            for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                run = under_way.pop(future)
                seconds, error = future.result()
                (outcome.failed if error else outcome.done).append(run)
                if not error:
                    expected.note(run, seconds)
                if on_end is not None:
                    on_end(run, seconds, error)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return outcome


def _once(run: Run, store: Store, work: Work, told: Told, clock: Callable[[], float]) -> tuple[float, str]:
    """(seconds, error): play a run, once more if it fails, and write its file."""
    error = ""
    for _ in range(ATTEMPTS):
        began, load = clock(), os.getloadavg()
        try:
            found = work(run)
        except Exception:
            error = traceback.format_exc()
            store.write_failure(run, {"plan": told.plan, "code": told.code, "error": error[-4000:]})
            continue
        seconds = clock() - began
        load_pairs = {"start": _rounded(load), "end": _rounded(os.getloadavg())}
        made = {"plan": told.plan, "code": told.code, **told.facts, "load": load_pairs}
        store.write(run, {**made, "total_seconds": round(seconds, 1), **found})
        return seconds, ""
    return clock() - began, error


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 2) for value in values]


class InProcess:
    """Plays a run in a process of its own with one thread, which ends when this one ends.

    Args:
        root (`Path`):
            The repository.
        scratch (`Path`):
            For what runs leave while they last.
    """

    def __init__(self, root: Path, scratch: Path):
        self.root, self.scratch = root, scratch
        self._children: set[subprocess.Popen] = set()
        self._lock = threading.Lock()
        self._is_stopped = False

    def __call__(self, run: Run) -> Mapping[str, Any]:
        folder = self.scratch / "--".join(run.path.with_suffix("").parts)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        environment = {**os.environ, **threads, "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
        with open(folder / "log.txt", "w") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.study.play", str(folder)],
                cwd=self.root,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
            )
        with self._lock:
            self._children.add(child)
            if self._is_stopped:
                child.kill()
        try:
            assert child.stdin is not None
            child.stdin.write(json.dumps(run.configuration) + "\n")
            child.stdin.flush()
            code = child.wait()
        finally:
            with self._lock:
                self._children.discard(child)
                if self._is_stopped:
                    raise Stopped
        if code:
            raise RuntimeError(f"{run} ended with {code}:\n{(folder / 'log.txt').read_text()[-3000:]}")
        found = json.loads((folder / "result.json").read_text())
        shutil.rmtree(folder, ignore_errors=True)
        return found

    def stop(self) -> None:
        """End the processes under way; their runs are played anew next time."""
        with self._lock:
            self._is_stopped = True
            for child in self._children:
                child.kill()
