"""On which turns of ALFWorld progress is known exactly: real games, played and labelled by their walkthroughs.

    python benchmarks/alfworld_labels.py --data FOLDER [--size 20]

Counts the games whose file holds a walkthrough, plays `size` of each split with four players that stray from it more
and more often, labels their turns as `taspo credit` does, and replays each episode once more. Writes
`benchmarks/results/alfworld_labels.json`; the table is in docs/credit_quality.md.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


# Beside this script lies one with the name of the package that the engine imports.
sys.path = [folder for folder in sys.path if Path(folder).resolve() != Path(__file__).resolve().parent]

from taspo_trl.environments import ALFWorldEnvironment  # noqa: E402
from taspo_trl.environments.alfworld.games import find_game_file, find_games, read_game  # noqa: E402
from taspo_trl.errors import ReplayError  # noqa: E402
from taspo_trl.rollout.replay import replay  # noqa: E402
from taspo_trl.truth import progress_labels  # noqa: E402
from taspo_trl.types import StopReason, Trajectory, Turn  # noqa: E402


SPLITS = ("train", "valid_seen", "valid_unseen")
MAX_TURNS = 50
Chooses = Callable[[ALFWorldEnvironment, list[str], random.Random], str]
"""(the world, what can be done, draws) -> an action."""


def strays(share: float, idle: bool = False) -> Chooses:
    """The walkthrough's next command, or with probability `share` another one."""

    def choose(world: ALFWorldEnvironment, admissible: list[str], draw: random.Random) -> str:
        plan = world.oracle_plan()
        if plan and draw.random() >= share:
            return plan[0]
        return draw.choice(["look", "inventory"] if idle else admissible)

    return choose


PLAYERS: dict[str, Chooses] = {
    "walkthrough": strays(0.0),
    "walkthrough, every third turn idle": strays(1 / 3, idle=True),
    "walkthrough, every tenth turn at random": strays(0.1),
    "random": strays(1.0),
}


def played(world: ALFWorldEnvironment, row: dict[str, Any], choose: Chooses, uid: str) -> Trajectory:
    draw = random.Random(uid)
    result = world.reset(seed=0, **row)
    turns, observation, admissible, is_won = [], result.observation, result.info["admissible_actions"], False
    while len(turns) < MAX_TURNS and not is_won:
        action = choose(world, admissible, draw)
        answer = world.step(action)
        turns.append(Turn((), (1,), "", action, (True,), observation, answer.observation, answer.info["valid"]))
        observation, admissible = answer.observation, answer.info["admissible_actions"]
        is_won = answer.info["success"]
    reason = StopReason.SOLVED if is_won else StopReason.MAX_TURNS
    family = row["family"]
    return Trajectory(uid, row, "", family, None, 0, tuple(turns), reason, is_won, (), float(is_won), seed=0)


def measured(data: Path, size: int) -> dict[str, Any]:
    entries = {split: find_games(split, data) for split in SPLITS}
    with_plan = {
        split: sum(bool(read_game(find_game_file(one.game_file, data)).walkthrough) for one in games)
        for split, games in entries.items()
    }
    games = {"games": {split: len(games) for split, games in entries.items()}, "with_walkthrough": with_plan}
    players: dict[str, dict[str, Any]] = {
        name: {"games": 0, "won": 0, "turns": 0, "labelled": 0, "by_value": {}, "replayed": 0, "seconds": 0.0}
        for name in PLAYERS
    }
    world, again = ALFWorldEnvironment(data), ALFWorldEnvironment(data)
    try:
        for split in SPLITS:
            rows = ALFWorldEnvironment.dataset(split, data=data, size=size)
            for k in range(len(rows)):
                for name, choose in PLAYERS.items():
                    one, found = played(world, dict(rows[k]), choose, f"{split}-{k}-{name}"), players[name]
                    started = time.process_time()
                    labels = progress_labels([one], {None: lambda: ALFWorldEnvironment(data)})
                    found["seconds"] += time.process_time() - started
                    found["games"] += 1
                    found["won"] += one.success
                    found["turns"] += len(one.turns)
                    found["labelled"] += len(labels)
                    for label in labels.values():
                        found["by_value"][f"{label:g}"] = found["by_value"].get(f"{label:g}", 0) + 1
                    found["replayed"] += replays(one, again)
    finally:
        world.close()
        again.close()
    for found in players.values():
        found["seconds_per_game"] = round(found.pop("seconds") / max(1, found["games"]), 3)
        found["labelled_share"] = round(found["labelled"] / max(1, found["turns"]), 4)
    return {**games, "players": players}


def replays(one: Trajectory, world: ALFWorldEnvironment) -> bool:
    try:
        return sum(1 for _ in replay(one, world)) == len(one.turns) + 1
    except ReplayError:
        return False


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="ALFWorld's data folder, with json_2.1.1 in it")
    parser.add_argument("--size", type=int, default=20, help="games of each split that are played (default: 20)")
    options = parser.parse_args()
    report = {"command": "python benchmarks/alfworld_labels.py", **measured(options.data, options.size)}
    sys.path.append(str(Path(__file__).resolve().parent))
    from common import save

    print(save("alfworld_labels", report))
