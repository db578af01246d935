"""Finding, reading and downloading ALFWorld games. No engine needed."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from taspo_trl.environments.alfworld import ALFWorldEnvironment, download, downloader
from taspo_trl.environments.alfworld.games import (
    FAMILIES,
    SPLIT_SIZES,
    data_folder,
    family_of,
    find_game_file,
    find_games,
    read_game,
)
from taspo_trl.environments.alfworld.names import display_names
from taspo_trl.errors import ConfigurationError, MissingDependencyError

from .alfworld_helpers import own_cache, write_game  # noqa: F401 (a fixture)


PICK, LOOK, HEAT = (
    "pick_and_place_simple-Mug-None-Desk-308",
    "look_at_obj_in_light-CD-None-DeskLamp-308",
    "pick_heat_then_place_in_recep-Egg-None-Fridge-7",
)


def test_the_six_families_have_the_names_of_the_paper():
    assert set(FAMILIES.values()) == {"Pick", "Look", "Clean", "Heat", "Cool", "Pick2"}


def test_games_are_found_in_the_order_of_their_paths(tmp_path):
    for name in (f"{PICK}/trial_T2", f"{PICK}/trial_T1", f"{LOOK}/trial_T9", f"{HEAT}/trial_T5"):
        write_game(tmp_path / "json_2.1.1" / "train", name)
    games = find_games("train", tmp_path)
    assert [game.task_id for game in games] == [
        f"train/{LOOK}/trial_T9",
        f"train/{PICK}/trial_T1",
        f"train/{PICK}/trial_T2",
        f"train/{HEAT}/trial_T5",
    ]
    assert [game.family for game in games] == ["Look", "Pick", "Pick", "Heat"]
    assert games[0].game_file == f"json_2.1.1/train/{LOOK}/trial_T9/game.tw-pddl"


@pytest.mark.parametrize("inside", ["", "json_2.1.1", "json_2.1.2"])
def test_the_data_folder_may_be_the_download_or_one_version_in_it(tmp_path, inside):
    write_game(tmp_path / inside / "valid_seen", f"{PICK}/trial_T1")
    [game] = find_games("valid_seen", tmp_path)
    assert game.task_id == f"valid_seen/{PICK}/trial_T1"
    assert find_game_file(game.game_file, tmp_path).is_file()


def test_unsolvable_movable_sliced_and_unknown_games_are_skipped(tmp_path):
    split = tmp_path / "train"
    write_game(split, f"{PICK}/trial_T1")
    # The grammar of each file says `"solvable": true` in a quotation; only the outer key counts.
    game = {"pddl_domain": "", "grammar": '"solvable": true', "pddl_problem": ""}
    write_game(split, f"{PICK}/trial_T2", {**game, "solvable": False})
    write_game(split, f"{PICK}/trial_T3", {**game, "solvable": None})
    write_game(split, f"{PICK}/trial_T4", game)
    write_game(split, "pick_and_place_with_movable_recep-Egg-Bowl-Fridge-7/trial_T1")
    write_game(split, "pick_heat_then_place_in_recep-AppleSliced-None-Fridge-7/trial_T1")
    write_game(split, "dance-Apple-None-Fridge-7/trial_T1")
    assert [game.task_id for game in find_games("train", tmp_path)] == [f"train/{PICK}/trial_T1"]


def test_the_skip_rules_look_at_the_games_path_only(tmp_path):
    write_game(tmp_path / "movable" / "train", f"{PICK}/trial_T1")
    assert len(find_games("train", tmp_path / "movable")) == 1


def test_a_split_of_another_size_than_the_official_one_is_warned_about(tmp_path, caplog, monkeypatch):
    write_game(tmp_path / "valid_seen", f"{PICK}/trial_T1")
    with caplog.at_level(logging.WARNING):
        find_games("valid_seen", tmp_path)
    assert "holds 1 games, the official split has 140" in caplog.text
    caplog.clear()
    monkeypatch.setitem(SPLIT_SIZES, "valid_seen", 1)
    with caplog.at_level(logging.WARNING):
        find_games("valid_seen", tmp_path)
    assert caplog.text == ""


def test_the_official_sizes():
    assert SPLIT_SIZES == {"train": 3553, "valid_seen": 140, "valid_unseen": 134}


def test_missing_data_names_the_command_that_gets_it(tmp_path):
    with pytest.raises(ConfigurationError, match="taspo env download alfworld"):
        ALFWorldEnvironment.dataset("train", data=tmp_path)
    with pytest.raises(ConfigurationError, match="embedded"):
        ALFWorldEnvironment.dataset("train", data=tmp_path / "nowhere")


def test_an_unknown_split_is_answered_with_those_that_exist(tmp_path):
    write_game(tmp_path / "json_2.1.1" / "train", f"{PICK}/trial_T1")
    with pytest.raises(ConfigurationError, match=r"no split 'test'.*There are: train"):
        find_games("test", tmp_path)


def test_the_data_folder_is_the_argument_else_the_variable_else_the_downloaders(tmp_path, monkeypatch):
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "variable"))
    assert data_folder(tmp_path) == tmp_path
    assert data_folder() == tmp_path / "variable"
    monkeypatch.delenv("ALFWORLD_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_folder() == tmp_path / ".cache" / "alfworld"


def test_a_dataset_has_one_row_for_each_game(tmp_path):
    for name in (f"{PICK}/trial_T1", f"{LOOK}/trial_T1"):
        write_game(tmp_path / "json_2.1.1" / "valid_unseen", name)
    dataset = ALFWorldEnvironment.dataset("valid_unseen", data=tmp_path)
    assert dataset.column_names == ["task_id", "game_file", "family", "split"]
    assert dataset[1] == {
        "task_id": f"valid_unseen/{PICK}/trial_T1",
        "game_file": f"json_2.1.1/valid_unseen/{PICK}/trial_T1/game.tw-pddl",
        "family": "Pick",
        "split": "valid_unseen",
    }


def test_a_smaller_dataset_takes_evenly_from_the_families(tmp_path):
    for name, count in ((LOOK, 5), (PICK, 4), (HEAT, 1)):
        for number in range(count):
            write_game(tmp_path / "train", f"{name}/trial_T{number}")
    dataset = ALFWorldEnvironment.dataset("train", data=tmp_path, size=6)
    # Pick, Look and Heat give one each, then Pick and Look, then Pick.
    assert sorted(dataset["family"]) == ["Heat", "Look", "Look", "Pick", "Pick", "Pick"]
    assert dataset["task_id"] == sorted(dataset["task_id"])
    assert ALFWorldEnvironment.dataset("train", data=tmp_path, size=10).num_rows == 10


@pytest.mark.parametrize("size", [0, -1, 2])
def test_a_size_that_the_split_does_not_have_is_refused(tmp_path, size):
    write_game(tmp_path / "train", f"{PICK}/trial_T1")
    with pytest.raises(ConfigurationError, match=rf"between 1 and 1.*got {size}"):
        ALFWorldEnvironment.dataset("train", data=tmp_path, size=size)


def test_a_row_of_another_data_folder_is_an_error_with_a_remedy(tmp_path):
    with pytest.raises(ConfigurationError, match=r"nope/a/b/game.tw-pddl is not in .*ALFWORLD_DATA"):
        find_game_file("nope/a/b/game.tw-pddl", tmp_path)


def test_a_row_cannot_name_a_file_outside_of_the_data_folder(tmp_path):
    outside = write_game(tmp_path / "elsewhere", f"{PICK}/trial_T1")
    data = tmp_path / "data"
    inside = write_game(data / "train", f"{PICK}/trial_T1")
    (data / "linked").symlink_to(outside.parent, target_is_directory=True)
    climbing = Path("..") / outside.relative_to(tmp_path)
    for name in (
        str(outside),
        str(climbing),
        f"train/../{climbing}",
        f"linked/{outside.name}",
        f"embedded/../../{outside}",
    ):
        with pytest.raises(ConfigurationError, match="leads out of"):
            find_game_file(name, data)
    assert find_game_file(f"train/../{inside.relative_to(data)}", data).samefile(inside)


def test_a_split_that_is_a_link_out_of_the_data_folder_is_refused_when_it_is_looked_for(tmp_path):
    write_game(tmp_path / "elsewhere" / "train", f"{PICK}/trial_T1")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train").symlink_to(tmp_path / "elsewhere" / "train")
    with pytest.raises(ConfigurationError, match="leads out of"):
        find_games("train", tmp_path / "data")


def test_the_data_folder_itself_may_be_a_link(tmp_path):
    path = write_game(tmp_path / "real" / "train", f"{PICK}/trial_T1")
    (tmp_path / "data").symlink_to(tmp_path / "real", target_is_directory=True)
    assert find_game_file(str(path.relative_to(tmp_path / "real")), tmp_path / "data").samefile(path)


@pytest.mark.parametrize("content", [[], {"grammar": ""}, "text"])
def test_a_file_that_is_no_game_is_an_error_with_its_path(tmp_path, content):
    path = write_game(tmp_path, "x", content)
    with pytest.raises(ConfigurationError, match=r"game\.tw-pddl is not an ALFWorld game"):
        read_game(path)


def test_a_truncated_file_is_an_error_with_its_path(tmp_path):
    path = write_game(tmp_path, "x")
    path.write_text(path.read_text()[:40])
    with pytest.raises(ConfigurationError, match=r"is not an ALFWorld game \(JSONDecodeError"):
        read_game(path)


def test_the_family_comes_from_the_path():
    assert family_of(f"json_2.1.1/train/{HEAT}/trial_T1/game.tw-pddl") == "Heat"
    with pytest.raises(ConfigurationError, match="names no task type"):
        family_of("game.tw-pddl")


def test_things_of_a_kind_are_numbered_downwards_in_the_order_of_their_ids():
    names = display_names(
        ["mug_bar__plus_01", "mug_bar__minus_01", "mug_bar__plus_00", "desk_bar__plus_03", "agent1", "a_minus_b"]
    )
    assert names == {
        "mug_bar__minus_01": "mug 3",
        "mug_bar__plus_00": "mug 2",
        "mug_bar__plus_01": "mug 1",
        "desk_bar__plus_03": "desk 1",
        "agent1": "agent1 ",
        "a_minus_b": "a-b ",
    }


def test_a_basin_is_not_the_sink_around_it():
    names = display_names(["sink_bar_1", "sink_bar_1_bar_sinkbasin"])
    assert names == {"sink_bar_1": "sink 1", "sink_bar_1_bar_sinkbasin": "sinkbasin 1"}


def test_the_download_runs_the_official_program_and_counts_its_games(tmp_path, monkeypatch):
    calls = []

    def run(command, check):
        calls.append(command)
        for split in SPLIT_SIZES:
            write_game(tmp_path / "json_2.1.1" / split, f"{PICK}/trial_T1")

    monkeypatch.setattr(downloader, "_find_script", lambda: "SCRIPT")
    monkeypatch.setattr(subprocess, "run", run)
    assert download(tmp_path) == {"train": 1, "valid_seen": 1, "valid_unseen": 1}
    assert calls == [[sys.executable, "SCRIPT", "--data-dir", str(tmp_path)]]


def test_a_failed_download_says_where_to_look(tmp_path, monkeypatch):
    monkeypatch.setattr(downloader, "_find_script", lambda: tmp_path / "not-there")
    with pytest.raises(ConfigurationError, match=r"exit code 2.*network"):
        download(tmp_path)


def test_a_missing_downloader_names_the_extra(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(MissingDependencyError, match=r'pip install -e "\.\[alfworld\]"'):
        download()
