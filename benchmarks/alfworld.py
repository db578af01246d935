"""How fast ALFWorld games load, reset and step against ALFWorld's own engine, and what live environments cost.

    python benchmarks/alfworld.py [--data FOLDER] [--workers 128]

Without a data folder the self-made games are used, which are several times smaller than the official ones. Times are
of the processor, child processes included, in fresh processes with empty caches. Linux only: memory is read from
`/proc`. Prints a table and writes `benchmarks/results/alfworld.json`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from taspo_trl.environments import ALFWorldEnvironment
from taspo_trl.environments.alfworld.games import Game, find_game_file, find_games, read_game
from taspo_trl.environments.remote import RemoteEnvironment


# This script has the name of the package that it measures: its folder must not be where `import alfworld` looks first.
sys.path = [folder for folder in sys.path if Path(folder).resolve() != Path(__file__).resolve().parent]

RESULTS = Path(__file__).parent / "results" / "alfworld.json"
SPLIT = "valid_seen"
GROUP_SIZE = 8


@contextmanager
def empty_cache() -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TASPO_CACHE"] = folder
        yield


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Processor seconds of `work`, those of its child processes included, and its result."""
    start = processor_seconds()
    result = work()
    return processor_seconds() - start, result


def processor_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def in_fresh_process(work: Callable[..., Any], *arguments: Any) -> Any:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


class StockGame:
    """A game as ALFWorld itself plays it."""

    def __init__(self, path: Path):
        import textworld
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
        from textworld.envs.pddl import PddlEnv

        infos = textworld.EnvInfos(won=True, admissible_commands=True)
        self._environment = AlfredDemangler(PddlEnv(infos), shuffle=False)
        self._environment.load(str(path))

    def start(self) -> None:
        self._environment.reset()

    def step(self, command: str) -> bool:
        return self._environment.step(command)[0]["won"]


class OurGame:
    """The same through this package's engine."""

    def __init__(self, path: Path):
        from taspo_trl.environments.alfworld.engine import Engine

        self._engine, self._game = Engine(), read_game(path)

    def start(self) -> None:
        self._engine.start(self._game)

    def step(self, command: str) -> bool:
        self._engine.step(command)
        return self._engine.is_won


def measure_one(kind: type, paths: list[Path]) -> dict[str, float]:
    """Milliseconds, means over the games: to load and reset for the first time, to reset again, to step."""
    kind(paths[0]).start()  # imports and parsers; the game itself is not measured
    first, again, steps = [], [], []
    for path in paths[1:]:
        game: Game = read_game(path)

        def begin(path: Path = path) -> Any:
            begun = kind(path)
            begun.start()
            return begun

        seconds, begun = timed(begin)
        first.append(seconds)
        again.append(timed(begun.start)[0])
        seconds, wins = timed(lambda begun=begun, game=game: [begun.step(command) for command in game.walkthrough])
        assert wins[-1], path
        steps.append(seconds / len(wins))
    return {
        "load and reset": 1e3 * statistics.mean(first),
        "reset again": 1e3 * statistics.mean(again),
        "step": 1e3 * statistics.mean(steps),
    }


def measure_group(kind: type, path: Path) -> float:
    """Seconds for a group: so many copies of one game are loaded, reset and played, all of them live, caches empty."""
    walkthrough = read_game(path).walkthrough

    def play() -> None:
        games = []
        for _ in range(GROUP_SIZE):
            games.append(kind(path))
            games[-1].start()
        for command in walkthrough:
            wins = [game.step(command) for game in games]
        assert all(wins), path

    return timed(play)[0]


def with_empty_cache(work: Callable[..., Any], *arguments: Any) -> Any:
    with empty_cache():
        return work(*arguments)


def measure_workers(num_workers: int, data: str) -> dict[str, float]:
    """Live environments in worker processes, in groups on one game each, all played to the end."""
    games = find_games(SPLIT, data)
    factory = ALFWorldEnvironment if data == "embedded" else partial(ALFWorldEnvironment, data=data)
    workers, delays = [], []
    for idx in range(num_workers):
        game = games[idx // GROUP_SIZE % len(games)]
        start = time.perf_counter()
        workers.append((RemoteEnvironment(factory), game))
        workers[-1][0].reset(seed=0, game_file=game.game_file)
        delays.append(time.perf_counter() - start)
    for worker, game in workers:
        for command in read_game(find_game_file(game.game_file, data)).walkthrough:
            result = worker.step(command)
        assert result.info["success"], game
    megabytes = [proportional_megabytes(pid) for pid in descendants(os.getpid())]
    own = [proportional_megabytes(worker.pid) for worker, _ in workers]
    for worker, _ in workers:
        worker.close()
    return {
        "ms from no process to first observation, first of all": 1e3 * delays[0],
        "ms from no process to first observation, new game": 1e3 * statistics.median(delays[GROUP_SIZE::GROUP_SIZE]),
        "ms from no process to first observation, sibling": 1e3 * statistics.median(delays),
        "MB of one worker": statistics.mean(own),
        "MB of all processes": sum(megabytes),
    }


def descendants(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            yield child
            yield from descendants(child)


def proportional_megabytes(pid: int) -> float:
    """Memory of a process, pages that several processes share divided among them (PSS)."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0


def one_of_each_family(data: str) -> list[Path]:
    games = {game.family: game for game in reversed(find_games(SPLIT, data))}
    return [find_game_file(game.game_file, data) for game in games.values()]


def measure(data: str, num_workers: int) -> dict[str, dict[str, float]]:
    paths = one_of_each_family(data)
    ours = in_fresh_process(with_empty_cache, measure_one, OurGame, paths)
    stock = in_fresh_process(measure_one, StockGame, paths)
    results = {f"{key}, ms": {"stock": stock[key], "ours": ours[key]} for key in stock}
    groups = [
        (
            in_fresh_process(measure_group, StockGame, path),
            in_fresh_process(with_empty_cache, measure_group, OurGame, path),
        )
        for path in paths
    ]
    results[f"group of {GROUP_SIZE}, s"] = {
        "stock": statistics.mean(stock for stock, _ in groups),
        "ours": statistics.mean(ours for _, ours in groups),
    }
    results[f"group of {GROUP_SIZE}, least speed-up"] = {"ours": min(stock / ours for stock, ours in groups)}
    live = in_fresh_process(with_empty_cache, measure_workers, num_workers, data)
    return results | {f"{num_workers} live: {key}": {"ours": value} for key, value in live.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", default="embedded", help="folder with the official games (default: the self-made ones)"
    )
    parser.add_argument("--workers", type=int, default=128, help="number of live environments (default: 128)")
    arguments = parser.parse_args()
    results = measure(arguments.data, arguments.workers)
    which = "self-made" if arguments.data == "embedded" else "official"
    table = Table(title=f"ALFWorld, {which} games")
    for column in ("", "stock", "ours", "speed-up"):
        table.add_column(column, justify="right" if column else "left")
    for key, row in results.items():
        ratio = f"{row['stock'] / row['ours']:.1f}" if "stock" in row else ""
        table.add_row(key, *(f"{row[name]:,.1f}" if name in row else "" for name in ("stock", "ours")), ratio)
    Console().print(table)
    machine = {
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.system(),
        **{name: version(name) for name in ("alfworld", "textworld", "fast-downward-textworld")},
    }
    saved = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    saved[which] = {
        "machine": machine,
        "results": {key: {k: round(v, 2) for k, v in row.items()} for key, row in results.items()},
    }
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(saved, indent=2) + "\n")


if __name__ == "__main__":
    main()
