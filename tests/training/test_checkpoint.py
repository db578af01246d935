"""The state of a partly used rollout batch: it comes back as it was, and loads without running code."""

import dataclasses
import shutil

import pytest
import torch

from taspo_trl.errors import ConfigurationError
from taspo_trl.loss.batches import EMPTY_ROW, LossRow
from taspo_trl.training.checkpoint import TrainingState, load_state, rows_path, save_state, state_path


FULL = LossRow((1, 2, 10, 11), (2, 3), (0.1, 1 / 3), (-0.7, 1e-300), (-1.5, -0.25), (-2.0, -0.5), (0.5, 1.0))
BARE = LossRow((1, 10), (1,), (0.5,), (0.25,))
LAYOUT = {"num_processes": 2, "steps_per_generation": 4}


@pytest.mark.parametrize(
    "buffer",
    [
        None,
        [],
        [[[FULL, BARE], [EMPTY_ROW]], [[BARE]], []],
        [[[dataclasses.replace(BARE, old_logps=(float("-inf"),))]]],
    ],
)
def test_state_comes_back_as_it_was(tmp_path, buffer):
    state = TrainingState(7, buffer, LAYOUT)
    save_state(tmp_path / "checkpoint-3", 1, state)
    assert load_state(tmp_path / "checkpoint-3", 1) == state


def test_numbers_keep_all_their_bits(tmp_path):
    save_state(tmp_path, 0, TrainingState(0, [[[FULL]]], LAYOUT))
    ((row,),) = load_state(tmp_path, 0).buffer[0]
    assert row.coefficients[1] == 1 / 3
    assert row.advantages[1] == 1e-300
    assert type(row.ids) is type(row.old_logps) is tuple


def test_file_loads_without_running_code(tmp_path):
    save_state(tmp_path, 0, TrainingState(3, [[[FULL]]], LAYOUT))
    data = torch.load(state_path(tmp_path, 0), weights_only=True)
    assert data["step"] == 3
    assert data["layout"] == LAYOUT


def test_rows_are_in_a_file_whose_name_keeps_it_from_the_hub(tmp_path):
    save_state(tmp_path, 0, TrainingState(3, [[[FULL]]], LAYOUT))
    assert {path.name for path in tmp_path.iterdir()} == {"taspo_state_0.pt", "_taspo_rows_0.pt"}
    rows_path(tmp_path, 0).unlink()
    assert load_state(tmp_path, 0) == TrainingState(3, None, LAYOUT)


def test_rows_of_an_earlier_run_do_not_come_back(tmp_path):
    save_state(tmp_path, 0, TrainingState(3, [[[FULL]]], LAYOUT))
    save_state(tmp_path, 0, TrainingState(4, None, LAYOUT))
    assert load_state(tmp_path, 0) == TrainingState(4, None, LAYOUT)


def test_rows_that_a_push_left_behind_are_not_those_of_a_later_state(tmp_path):
    save_state(tmp_path / "earlier", 0, TrainingState(3, [[[FULL]]], LAYOUT))
    save_state(tmp_path / "later", 0, TrainingState(4, None, LAYOUT))
    shutil.copy(rows_path(tmp_path / "earlier", 0), rows_path(tmp_path / "later", 0))
    assert load_state(tmp_path / "later", 0) == TrainingState(4, None, LAYOUT)


def test_every_process_has_its_own_file(tmp_path):
    for process in range(2):
        save_state(tmp_path, process, TrainingState(process, None, LAYOUT))
    assert [load_state(tmp_path, process).step for process in range(2)] == [0, 1]
    assert state_path(tmp_path, 0) != state_path(tmp_path, 1)


def test_new_process_stands_where_the_first_one_does(tmp_path):
    save_state(tmp_path, 0, TrainingState(3, [[[FULL]]], LAYOUT))
    assert load_state(tmp_path, 2) == TrainingState(3, None, LAYOUT), "with none of its rows"


def test_checkpoint_of_another_trainer_has_no_state(tmp_path):
    assert load_state(tmp_path, 0) is None


def test_state_of_another_version_is_refused(tmp_path):
    save_state(tmp_path, 0, TrainingState(3, None, LAYOUT))
    data = torch.load(state_path(tmp_path, 0), weights_only=True)
    torch.save({**data, "version": 99}, state_path(tmp_path, 0))
    with pytest.raises(ConfigurationError, match=r"taspo_state_0\.pt is a training state of version 99"):
        load_state(tmp_path, 0)
