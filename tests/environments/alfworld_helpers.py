"""What the ALFWorld tests share: their own cache, the unpacked official games, the stock engine to compare with."""

from __future__ import annotations

import json
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.data import real_data


Transcript = list[tuple[str, list[str], bool]]
"""(observation, possible commands, won), the beginning first."""

needs_stock_engine = pytest.mark.skipif(
    sys.version_info >= (3, 13),
    reason="TextWorld 1.7 evaluates its texts in a way that Python 3.13 has ended; this package does not",
)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterable[Path]:
    """Keep the tests out of the user's cache and data."""
    folder = tmp_path_factory.mktemp("taspo-cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TASPO_CACHE", str(folder))
        patch.setenv("ALFWORLD_DATA", str(folder / "no-data"))
        yield folder


@pytest.fixture(scope="session")
def official_games(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder with the official validation games and 120 training games."""
    archive = real_data("alfworld", "games.tar.xz")
    folder = tmp_path_factory.mktemp("alfworld")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder


def write_game(folder: Path, name: str, content: Any = None) -> Path:
    """A game file that is well formed but cannot be played."""
    path = folder / name / "game.tw-pddl"
    path.parent.mkdir(parents=True)
    game = {"pddl_domain": "d", "grammar": 'say \\"solvable\\": true', "pddl_problem": "p", "solvable": True}
    path.write_text(json.dumps(game if content is None else content))
    return path


def stock_transcript(path: Path, commands: Iterable[str]) -> Transcript:
    """Play `commands` as ALFWorld itself plays a game: TextWorld's environment behind ALFWorld's wrapper."""
    import textworld
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
    from textworld.envs.pddl import PddlEnv

    environment = AlfredDemangler(PddlEnv(textworld.EnvInfos(won=True, admissible_commands=True)), shuffle=False)
    environment.load(str(path))
    states = [environment.reset()]
    states += [environment.step(command)[0] for command in commands]
    return [(state.feedback, state["admissible_commands"], state["won"]) for state in states]


def our_transcript(path: Path, commands: Iterable[str]) -> Transcript:
    """Play `commands` on this package's engine."""
    from taspo_trl.environments.alfworld.engine import Engine
    from taspo_trl.environments.alfworld.games import read_game

    engine = Engine()
    transcript = [(engine.start(read_game(path)), engine.commands, engine.is_won)]
    for command in commands:
        transcript.append((engine.step(command), engine.commands, engine.is_won))
    engine.close()
    return transcript
