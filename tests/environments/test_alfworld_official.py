"""The official ALFWorld games: counts, walkthroughs, transcripts. Skipped where they are absent.

All 274 validation games are played when `TASPO_TEST_ALL_GAMES` is set, else every fourth one.
"""

from __future__ import annotations

import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest


pytest.importorskip("textworld", reason="the alfworld extra is not installed")
pytest.importorskip("alfworld", reason="the alfworld extra is not installed")

from taspo_trl.environments import ALFWorldEnvironment
from taspo_trl.environments.alfworld.games import find_game_file, find_games, read_game
from taspo_trl.environments.remote import RemoteEnvironment

from . import alfworld_helpers
from .alfworld_helpers import needs_stock_engine, our_transcript, stock_transcript


official_games = alfworld_helpers.official_games
own_cache = alfworld_helpers.own_cache


NUM_WORKERS = 3
GAMES_PLAYED = slice(None) if os.environ.get("TASPO_TEST_ALL_GAMES") else slice(None, None, 4)

COMPOSITION = {
    "valid_seen": {"Pick": 35, "Pick2": 24, "Clean": 27, "Heat": 16, "Cool": 25, "Look": 13},
    "valid_unseen": {"Pick": 24, "Pick2": 17, "Clean": 31, "Heat": 23, "Cool": 21, "Look": 18},
}


@pytest.mark.parametrize("split", COMPOSITION)
def test_the_splits_are_complete(official_games: Path, split: str, caplog):
    dataset = ALFWorldEnvironment.dataset(split, data=official_games)
    assert Counter(dataset["family"]) == COMPOSITION[split]
    assert len(set(dataset["task_id"])) == len(dataset)
    assert caplog.text == ""


def play(data: Path, rows: list[dict]) -> dict[str, list[bool]]:
    """For each row: whether each command of its walkthrough was offered and valid, and whether the last one won."""
    worker = RemoteEnvironment(partial(ALFWorldEnvironment, data=data))
    outcomes = {}
    for row in rows:
        admissible = worker.reset(seed=0, **row).info["admissible_actions"]
        is_offered, success = True, False
        for command in read_game(find_game_file(row["game_file"], data)).walkthrough:
            is_offered = is_offered and command in admissible
            result = worker.step(command)
            is_offered = is_offered and result.info["valid"] and not success
            admissible, success = result.info["admissible_actions"], result.info["success"]
        outcomes[row["task_id"]] = [is_offered, success]
    worker.close()
    return outcomes


@pytest.mark.slow
def test_the_validation_games_are_won_by_their_walkthroughs_in_parallel_workers(official_games: Path):
    splits = [list(ALFWorldEnvironment.dataset(split, data=official_games)) for split in COMPOSITION]
    rows = [row for split in splits for row in split][GAMES_PLAYED]
    with ThreadPoolExecutor() as pool:
        parts = pool.map(play, [official_games] * NUM_WORKERS, [rows[k::NUM_WORKERS] for k in range(NUM_WORKERS)])
    outcomes = {task: outcome for part in parts for task, outcome in part.items()}
    assert len(outcomes) == len(rows)
    assert {task for task, outcome in outcomes.items() if outcome != [True, True]} == set()


@needs_stock_engine
@pytest.mark.slow
@pytest.mark.parametrize("split", ["train", "valid_seen", "valid_unseen"])
def test_transcripts_are_those_of_the_stock_engine(official_games: Path, split: str):
    games = find_games(split, official_games)
    for game in games[:: len(games) // 8][:8]:
        path = find_game_file(game.game_file, official_games)
        commands = ["inventory", "look", "put mug 1 in/on desk 1", "help", *read_game(path).walkthrough]
        assert our_transcript(path, commands) == stock_transcript(path, commands), game.task_id
