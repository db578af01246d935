"""One method of each interface trains on two processes as on one."""

from __future__ import annotations

import pytest

from tests.distributed.test_processes import assert_same_training, both


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        {"method": "gigpo"},
        {"method": "serl", "method_options": {"teacher_every": 1}},
        {"method": "sdar", "guidance": "random_success", "method_options": {"weight": 0.1}},
    ],
    ids=lambda config: config["method"],
)
def test_two_processes_train_as_one(tmp_path, config):
    one, several = both(tmp_path, scenario="ragged", steps=2, config=config)
    assert_same_training(one, several)
