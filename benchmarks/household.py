"""How fast the household world steps and resets, and how well its players do, on one core of this machine.

    python benchmarks/household.py

Prints a table and writes `benchmarks/results/household.json`.
"""

from __future__ import annotations

import json
import os
import platform
import random
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from taspo_trl.environments.household import (
    FAMILIES,
    PRESETS,
    HouseholdEnvironment,
    SearchingOracle,
    phrase_pattern,
    phrases,
    solve,
)


RESULTS = Path(__file__).parent / "results" / "household.json"
EPISODES = 1_200
REPEATS = 5


def best_rate(work: Callable[[], int]) -> float:
    """Units of work for each second of processor time, in the fastest of a few runs: the others measure neighbours."""
    rates = []
    for _ in range(REPEATS):
        start = time.process_time()
        count = work()
        rates.append(count / (time.process_time() - start))
    return max(rates)


def play_randomly(preset: str) -> int:
    """Episodes of random admissible actions, resets included; gives the number of steps."""
    environment, rng, steps = HouseholdEnvironment(preset), random.Random(0), 0
    for index in range(EPISODES):
        admissible, is_over = environment.reset(split="train", index=index).info["admissible_actions"], False
        while not is_over:
            result = environment.step(admissible[int(rng.random() * len(admissible))])
            admissible, is_over = result.info["admissible_actions"], result.terminated or result.truncated
            steps += 1
    return steps


def reset_only(preset: str) -> int:
    environment = HouseholdEnvironment(preset)
    for index in range(EPISODES):
        environment.reset(split="train", index=index)
    return EPISODES


def search(preset: str, careless: bool) -> tuple[dict[str, float], float, float]:
    """Success of the searching player by family; turns of an episode; phrases of a prompt's changing part."""
    environment, pattern = HouseholdEnvironment(preset), re.compile(phrase_pattern(preset))
    solved, turns, lengths = defaultdict(list), [], []
    for index in range(EPISODES):
        start = environment.reset(split="valid_seen", index=index)
        oracle = SearchingOracle(careless=careless)
        admissible, is_over = start.info["admissible_actions"], False
        oracle.begin(start.info["task"], start.observation, admissible)
        count, success = 0, False
        while not is_over and not oracle.believes_done:
            action = oracle.choose()
            result = environment.step(action)
            admissible = result.info["admissible_actions"]
            oracle.note(action, result.observation, admissible)
            lengths.append(len(pattern.findall("\n".join([result.observation, *admissible]))))
            is_over, success, count = result.terminated or result.truncated, result.info["success"], count + 1
        solved[start.info["family"]].append(success)
        turns.append(count)
    rates = {family: statistics.mean(solved[family]) for family in FAMILIES}
    return rates, statistics.mean(turns), statistics.mean(lengths)


def measure(preset: str) -> dict:
    careful, turns, length = search(preset, careless=False)
    careless, _, _ = search(preset, careless=True)
    plans = [len(solve({"preset": preset, "split": "valid_seen", "index": index})) for index in range(EPISODES)]
    return {
        "steps_per_second": round(best_rate(lambda: play_randomly(preset))),
        "reset_microseconds": round(1e6 / best_rate(lambda: reset_only(preset)), 1),
        "phrases": len(phrases(preset)),
        "phrases_of_observation_and_actions": round(length, 1),
        "turns_of_the_search": round(turns, 2),
        "turns_of_the_plan": round(statistics.mean(plans), 2),
        "longest_plan": max(plans),
        "search_success": {family: round(rate, 3) for family, rate in careful.items()},
        "careless_search_success": {family: round(rate, 3) for family, rate in careless.items()},
    }


def main() -> None:
    results = {preset: measure(preset) for preset in PRESETS}
    table = Table(title="Household world, one core")
    table.add_column("")
    for preset in results:
        table.add_column(preset, justify="right")
    for key in next(iter(results.values())):
        values = [results[preset][key] for preset in results]
        if isinstance(values[0], dict):
            for family in FAMILIES:
                table.add_row(f"{key}: {family}", *(f"{value[family]:.3f}" for value in values))
        else:
            table.add_row(key, *(f"{value:,}" for value in values))
    Console().print(table)
    machine = {
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.system(),
    }
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps({"machine": machine, "episodes": EPISODES, "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
