"""Ways to play the household world that several tests share."""

from __future__ import annotations

import random
from collections.abc import Callable

from taspo_trl.environments.base import ResetResult, StepResult
from taspo_trl.environments.household import HouseholdEnvironment, SearchingOracle
from taspo_trl.environments.household.tasks import Task
from taspo_trl.environments.household.world import World


def row(preset: str, split: str, index: int) -> dict:
    return {"preset": preset, "split": split, "index": index}


def identity(task: Task) -> tuple:
    """World and goal of a task, whatever its number and the order in which things are listed."""
    contents = tuple((place, tuple(sorted(things))) for place, things in sorted(task.contents.items()))
    return task.room, contents, tuple(sorted(task.lamps.items())), tuple(sorted(task.closed)), task.goal


def all_things(world: World) -> list[str]:
    """Every thing of the world, sorted, in a receptacle or in hand."""
    carried = [world.carried] if world.carried else []
    return sorted([thing for things in world.contents.values() for thing in things] + carried)


def snapshot(world: World) -> tuple:
    """The whole state as a value."""
    return (
        world.position,
        world.carried,
        tuple((place, tuple(things)) for place, things in world.contents.items()),
        tuple(world.lamps.items()),
        frozenset(world.closed),
        frozenset(world.lit),
        tuple(sorted(world.conditions.items())),
    )


def play(environment: HouseholdEnvironment, task_row: dict, choose: Callable[[list[str]], str]) -> list[StepResult]:
    """Play to the end with a policy that sees the admissible actions."""
    admissible = environment.reset(seed=0, **task_row).info["admissible_actions"]
    results: list[StepResult] = []
    while not results or not (results[-1].terminated or results[-1].truncated):
        results.append(environment.step(choose(admissible)))
        admissible = results[-1].info["admissible_actions"]
    return results


def play_actions(environment: HouseholdEnvironment, task_row: dict, actions: list[str]) -> list[StepResult]:
    environment.reset(seed=0, **task_row)
    return [environment.step(action) for action in actions]


def play_oracle(
    environment: HouseholdEnvironment, task_row: dict, oracle: SearchingOracle, noise: float = 0.0
) -> list[StepResult]:
    """Play to the end, or until the oracle believes that it is done; `noise` is the chance of any other action."""
    rng = random.Random(task_row["index"])
    start: ResetResult = environment.reset(seed=0, **task_row)
    admissible = start.info["admissible_actions"]
    oracle.begin(start.info["task"], start.observation, admissible)
    results: list[StepResult] = []
    while not oracle.believes_done and not (results and (results[-1].terminated or results[-1].truncated)):
        action = oracle.choose()
        if rng.random() < noise:
            action = rng.choice([*admissible, "sing", "", "take moon 1 from shelf 1"])
        results.append(environment.step(action))
        admissible = results[-1].info["admissible_actions"]
        oracle.note(action, results[-1].observation, admissible)
    return results
