"""The ALFWorld environment on the self-made games."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest


pytest.importorskip("textworld", reason="the alfworld extra is not installed")
pytest.importorskip("alfworld", reason="the alfworld extra is not installed")

from taspo_trl.environments import ALFWorldEnvironment
from taspo_trl.environments.alfworld import embedded
from taspo_trl.environments.alfworld import environment as environment_module
from taspo_trl.environments.alfworld.games import find_game_file, read_game
from taspo_trl.environments.base import ResetResult, StepResult, check_environment, check_result
from taspo_trl.environments.remote import RemoteEnvironment
from taspo_trl.errors import ConfigurationError, MissingDependencyError

from .alfworld_helpers import own_cache  # noqa: F401 (a fixture)


@pytest.fixture
def environment():
    environment = ALFWorldEnvironment()
    yield environment
    environment.close()


def rows(split: str = "valid_seen") -> list[dict]:
    return list(ALFWorldEnvironment.dataset(split, data="embedded"))


def row_of(family: str) -> dict:
    return next(row for row in rows() if row["family"] == family)


def walkthrough(row: dict) -> tuple[str, ...]:
    return read_game(find_game_file(row["game_file"])).walkthrough


def play(environment, row: dict, seed: int = 0) -> list:
    """A whole episode by the walkthrough."""
    return [environment.reset(seed=seed, **row), *(environment.step(command) for command in walkthrough(row))]


def test_the_embedded_games_have_six_families_in_three_splits():
    splits = {split: rows(split) for split in ("train", "valid_seen", "valid_unseen")}
    assert {name: len(split) for name, split in splits.items()} == {"train": 120, "valid_seen": 24, "valid_unseen": 24}
    for split in splits.values():
        families = [row["family"] for row in split]
        assert {families.count(family) for family in set(families)} == {len(split) // 6}
        assert len(set(families)) == 6


def test_the_state_is_the_facts_that_hold_whatever_was_said(environment):
    row = rows()[0]
    environment.reset(seed=0, **row)
    states = [environment.world_state()]
    for command in ("look", "fly away", "inventory"):
        environment.step(command)
        assert environment.world_state() == states[0]
    for command in walkthrough(row):
        environment.step(command)
        states.append(environment.world_state())
    assert len(set(states)) == len(states), "each step of a shortest plan changes something"
    environment.reset(seed=1, **row)
    assert environment.world_state() == states[0]


def test_unseen_rooms_are_not_among_those_of_the_training_games():
    def rooms(split: str) -> set[str]:
        return {row["game_file"].split("/")[2].rsplit("-", 1)[1] for row in rows(split)}

    assert rooms("valid_seen") <= rooms("train")
    assert rooms("valid_unseen").isdisjoint(rooms("train"))
    assert len(rooms("train")) == 12
    assert len(rooms("valid_unseen")) == 8


def test_no_embedded_game_stands_in_two_splits():
    problems = [
        read_game(find_game_file(row["game_file"])).problem for split in embedded.SPLITS for row in rows(split)
    ]
    assert len(set(problems)) == len(problems)


@pytest.mark.slow
def test_the_embedded_games_are_won_by_their_walkthroughs(environment):
    """Every third one, or all of them with `TASPO_TEST_ALL_GAMES`."""
    for split in embedded.SPLITS:
        for row in rows(split)[:: 1 if os.environ.get("TASPO_TEST_ALL_GAMES") else 3]:
            first, *turns = play(environment, row)
            shown = [result.info["admissible_actions"] for result in (first, *turns)]
            assert all(command in actions for command, actions in zip(walkthrough(row), shown, strict=False)), row
            assert [turn.info["success"] for turn in turns] == [False] * (len(turns) - 1) + [True], row


def test_the_embedded_games_are_the_same_wherever_they_are_built(tmp_path):
    package = embedded._package_folder()
    embedded.write_games(tmp_path, package)
    built = embedded.embedded_folder()
    files = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file())
    assert len(files) == 168
    assert all((tmp_path / path).read_bytes() == (built / path).read_bytes() for path in files)


def test_processes_that_build_the_embedded_games_at_once_agree(tmp_path):
    program = "from taspo_trl.environments.alfworld.embedded import embedded_folder; print(embedded_folder())"
    variables = {**os.environ, "TASPO_CACHE": str(tmp_path), "ALFWORLD_DATA": ""}
    processes = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=variables)
        for _ in range(3)
    ]
    folders = {process.communicate(timeout=120)[0].strip() for process in processes}
    assert len(folders) == 1
    assert [path.name for path in (tmp_path / "alfworld").iterdir()] == [Path(folders.pop()).name]


def test_an_interrupted_build_leaves_nothing_behind(tmp_path, monkeypatch):
    def write_half(folder: Path, package: Path) -> None:
        (folder / "embedded").mkdir()
        assert [path.name[0] for path in (tmp_path / "alfworld").iterdir()] == ["."]
        raise KeyboardInterrupt

    monkeypatch.setenv("TASPO_CACHE", str(tmp_path))
    monkeypatch.setattr(embedded, "write_games", write_half)
    with pytest.raises(KeyboardInterrupt):
        embedded.embedded_folder.__wrapped__()
    assert list((tmp_path / "alfworld").iterdir()) == []


def test_making_the_embedded_games_touches_no_data_folder(tmp_path):
    program = """
import os
from taspo_trl.environments.alfworld import ALFWorldEnvironment
ALFWorldEnvironment.dataset("train", data="embedded")
assert "ALFWORLD_DATA" not in os.environ
"""
    variables = {**os.environ, "HOME": str(tmp_path), "TASPO_CACHE": str(tmp_path / "cache")}
    variables.pop("ALFWORLD_DATA")
    subprocess.run([sys.executable, "-c", program], env=variables, check=True)
    assert not (tmp_path / ".cache" / "alfworld").exists()


def test_a_cache_that_cannot_be_written_is_an_error_with_a_remedy(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TASPO_CACHE", str(tmp_path / "file"))
    with pytest.raises(ConfigurationError, match="Set `TASPO_CACHE`"):
        embedded.embedded_folder.__wrapped__()


def test_the_environment_keeps_the_contract(environment):
    check_environment(environment)
    row = row_of("Heat")
    first = environment.reset(seed=3, **row)
    check_result(first, ResetResult, "reset", environment)
    assert first.observation.startswith("-= Welcome to TextWorld, ALFRED! =-")
    assert first.observation.endswith(f"Your task is to: {first.info['task']}")
    assert first.info["family"] == "Heat"
    assert "help" not in first.info["admissible_actions"]
    assert "look" in first.info["admissible_actions"]
    result = environment.step(walkthrough(row)[0])
    check_result(result, StepResult, "step", environment)
    assert (result.reward, result.terminated, result.truncated) == (0.0, False, False)
    assert result.info["success"] is False
    assert result.info["valid"] is True


def test_only_the_turn_that_reaches_the_goal_is_rewarded(environment):
    _, *turns = play(environment, row_of("Pick2"))
    assert [turn.reward for turn in turns] == [0.0] * (len(turns) - 1) + [1.0]
    assert [turn.terminated for turn in turns] == [False] * (len(turns) - 1) + [True]
    assert turns[-1].info["success"] is True


@pytest.mark.parametrize("wrap", [str.upper, lambda c: f"  {c}\n", lambda c: c.replace(" ", "   "), str.title])
def test_case_and_white_space_do_not_matter(environment, wrap):
    row = row_of("Clean")
    plain = play(environment, row)
    environment.reset(seed=0, **row)
    assert [environment.step(wrap(command)) for command in walkthrough(row)] == plain[1:]


@pytest.mark.parametrize("wrap", [str, str.upper, lambda c: f" {c}\n", lambda c: c.replace(" ", "  ")])
def test_the_wording_of_another_release_is_invalid_in_any_case_and_spacing(environment, wrap):
    row = row_of("Cool")
    commands = walkthrough(row)
    environment.reset(seed=0, **row)
    for command in commands[:-1]:
        result = environment.step(command)
    assert commands[-1].startswith("move ")
    dead = commands[-1].replace("move ", "put ").replace(" to ", " in/on ")
    before = result.info["admissible_actions"]
    result = environment.step(wrap(dead))
    assert result.observation == "Nothing happens."
    assert result.info["valid"] is False
    assert result.info["admissible_actions"] == before
    result = environment.step(commands[-1])
    assert result.info["valid"] is True
    assert result.info["success"] is True


@pytest.mark.parametrize(
    "action", ["", "   ", "dance", "go to the moon", "take mug 1 from desk 1; look", "<look>", "🍎"]
)
def test_what_is_not_admissible_is_invalid_and_changes_nothing(environment, action):
    first = environment.reset(seed=0, **row_of("Look"))
    result = environment.step(action)
    assert result.observation == "Nothing happens."
    assert result.info["valid"] is False
    assert result.info["success"] is False
    assert result.info["admissible_actions"] == first.info["admissible_actions"]


def test_help_is_answered_but_is_no_admissible_action(environment):
    environment.reset(seed=0, **row_of("Look"))
    result = environment.step("help")
    assert "Available commands" in result.observation
    assert result.info["valid"] is False


def test_admissible_actions_are_judged_in_the_state_before_the_action(environment):
    row = row_of("Pick")
    first, *turns = play(environment, row)
    offered = [first, *turns]
    for command, before in zip(walkthrough(row), offered, strict=False):
        assert command in before.info["admissible_actions"]
    assert walkthrough(row)[-1] not in turns[-1].info["admissible_actions"]
    assert all(turn.info["valid"] for turn in turns)


def test_group_members_start_from_the_same_observation_and_other_tasks_from_others():
    members = [ALFWorldEnvironment() for _ in range(4)]
    starts = [[member.reset(seed=7, **row) for member in members] for row in rows()[::6]]
    for group in starts:
        assert all(start == group[0] for start in group)
    assert len({group[0].observation for group in starts}) == len(starts)
    for member in members:
        member.close()


def test_the_seed_and_earlier_episodes_change_nothing(environment):
    row = row_of("Heat")
    once = play(environment, row, seed=1)
    play(environment, row_of("Look"), seed=2)
    assert play(environment, row, seed=3) == once


def test_worker_processes_give_the_transcripts_of_this_process(environment):
    rows = [row_of("Pick"), row_of("Clean")]
    expected = [play(environment, row) for row in rows]
    workers = [RemoteEnvironment(ALFWorldEnvironment) for _ in rows]
    try:
        with ThreadPoolExecutor() as pool:
            assert list(pool.map(play, workers, rows)) == expected
    finally:
        for worker in workers:
            worker.close()


def test_a_killed_worker_costs_its_own_episode_only(environment):
    row = row_of("Clean")
    victim, sibling = (RemoteEnvironment(ALFWorldEnvironment) for _ in range(2))
    victim.reset(seed=0, **row)
    sibling.reset(seed=0, **row)
    victim.kill()
    with pytest.raises(RuntimeError, match="process ended"):
        victim.step(walkthrough(row)[0])
    results = [sibling.step(command) for command in walkthrough(row)]
    assert results[-1].info["success"] is True
    victim.close()
    sibling.close()


def test_episodes_leave_no_temporary_files(tmp_path):
    """Two live games in one process need a copy of the planner's library; it is gone as soon as it is loaded."""
    program = f"""
import os, tempfile
from taspo_trl.environments.alfworld import ALFWorldEnvironment
environments = [ALFWorldEnvironment() for _ in range(3)]
for environment in environments:
    environment.reset(seed=0, game_file={row_of("Pick")["game_file"]!r})
assert os.listdir(tempfile.gettempdir()) == [], os.listdir(tempfile.gettempdir())
"""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    subprocess.run([sys.executable, "-c", program], env={**os.environ, "TMPDIR": str(temporary)}, check=True)
    assert list(temporary.iterdir()) == []


def test_another_data_folder_is_given_to_the_class(tmp_path):
    source = embedded.embedded_folder() / "embedded"
    shutil.copytree(source / "valid_seen", tmp_path / "json_2.1.1" / "valid_seen")
    dataset = ALFWorldEnvironment.dataset("valid_seen", data=tmp_path)
    assert dataset[0]["task_id"].startswith("valid_seen/look_at_obj_in_light-")
    environment = partial(ALFWorldEnvironment, data=tmp_path)()
    row = dataset[0]
    environment.reset(seed=0, **row)
    for command in read_game(tmp_path / row["game_file"]).walkthrough:
        result = environment.step(command)
    assert result.info["success"] is True
    environment.close()


def test_a_game_without_a_task_sentence_is_an_error(environment, tmp_path, monkeypatch):
    row = row_of("Look")
    path = tmp_path / row["game_file"]
    path.parent.mkdir(parents=True)
    text = find_game_file(row["game_file"]).read_text().replace("Your task is to: ", "Please ")
    path.write_text(text)
    monkeypatch.setattr(environment_module, "find_game_file", lambda *_: path)
    with pytest.raises(ConfigurationError, match=r"holds no 'Your task is to: '"):
        environment.reset(seed=0, **row)


def test_a_step_before_the_first_reset_and_after_close_is_an_error(environment):
    for _ in range(2):
        with pytest.raises(RuntimeError, match="before `reset`"):
            environment.step("look")
        environment.close()
        environment.close()


def test_a_missing_engine_names_the_extra_and_the_cause(environment, monkeypatch):
    monkeypatch.setattr(environment_module, "_engine_error", ImportError("No module named 'textworld'"))
    with pytest.raises(MissingDependencyError, match=r"No module named 'textworld'.*\.\[alfworld\]"):
        environment.reset(seed=0, **row_of("Look"))
