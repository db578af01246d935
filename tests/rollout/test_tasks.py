"""Which episodes a rollout batch plays, and with which seeds."""

import os
import subprocess
import sys

import datasets
import pytest

from taspo_trl.errors import ConfigurationError
from taspo_trl.rollout.tasks import equal_before, plan_groups, task_id, task_row
from taspo_trl.seeds import derive_seed


def plan(rows, **values):
    return plan_groups(rows, **{"num_generations": 3, "seed": 1, "rollout": 0, "prefix": "r0", **values})


def test_every_row_is_played_by_a_group_of_equal_members():
    specs = plan([{"task_id": "a", "x": 1}, {"task_id": "b", "x": 2}])
    assert [spec.uid for spec in specs] == [f"r0-g{g}-k{k}" for g in (0, 1) for k in (0, 1, 2)]
    assert [spec.group_id for spec in specs] == ["r0-g0"] * 3 + ["r0-g1"] * 3
    assert [spec.generation_idx for spec in specs] == [0, 1, 2] * 2
    assert [dict(spec.row) for spec in specs[::3]] == [{"task_id": "a", "x": 1}, {"task_id": "b", "x": 2}]
    assert {spec.environment for spec in specs} == {None}


def test_siblings_share_a_seed_and_groups_do_not():
    # ENV-1
    seeds = [spec.seed for spec in plan([{"task_id": name} for name in "abcd"])]
    assert [len(set(seeds[k : k + 3])) for k in (0, 3, 6, 9)] == [1, 1, 1, 1]
    assert len(set(seeds)) == 4
    assert all(0 <= seed < 2**31 for seed in seeds)


@pytest.mark.parametrize("change", [{"seed": 2}, {"rollout": 1}])
def test_seed_and_draw_decide_the_seed_of_a_task(change):
    rows = [{"task_id": "a"}]
    assert plan(rows)[0].seed == plan(rows)[0].seed
    assert plan(rows, **change)[0].seed != plan(rows)[0].seed


def test_position_in_the_batch_does_not_change_a_tasks_seed():
    first, second = plan([{"task_id": "a"}, {"task_id": "b"}])[::3]
    assert [spec.seed for spec in plan([{"task_id": "b"}, {"task_id": "a"}])[::3]] == [second.seed, first.seed]


def test_environment_column_selects_and_is_no_part_of_the_task():
    specs = plan([{"environment": "shop", "x": 1}, {"environment": None, "x": 2}], is_routed=True)
    assert [spec.environment for spec in specs[::3]] == ["shop", None]
    assert [dict(spec.row) for spec in specs[::3]] == [{"x": 1}, {"x": 2}]


def test_with_a_single_environment_the_column_is_part_of_the_task():
    [spec] = plan([{"environment": "shop", "x": 1}], num_generations=1)
    assert spec.environment is None and dict(spec.row) == {"environment": "shop", "x": 1}


def test_equal_rows_are_tasks_of_their_own():
    specs = plan([{"prompt": "play"}] * 8, num_generations=2)
    seeds = [spec.seed for spec in specs]
    assert seeds[::2] == seeds[1::2], "siblings share a seed"
    assert len(set(seeds)) == 8, "and groups do not"
    assert seeds[0] == plan([{"prompt": "play"}])[0].seed, "the first is what it would be alone"
    named = plan([{"task_id": "a", "x": 1}, {"task_id": "b"}, {"task_id": "a", "x": 2}], num_generations=1)
    assert len({spec.seed for spec in named}) == 3
    assert [spec.seed for spec in plan([{"task_id": "b"}])] == [named[1].seed] * 3


def test_equal_rows_are_counted_for_each_environment():
    rows = [{"environment": name, "x": 1} for name in ("shop", "house", "shop")]
    assert equal_before(rows) == [0, 0, 1]
    assert equal_before([{"x": 1, "y": None}, {"x": 1}]) == [0, 1], "None is Arrow's way of saying nothing"


def test_columns_that_are_none_are_named():
    [spec] = plan([{"x": 1, "hint": None}], num_generations=1)
    assert dict(spec.row) == {"x": 1} and spec.none_columns == {"hint"}


def test_rows_of_the_caller_are_left_as_they_were():
    row = {"environment": "shop", "meta": {"a": None}}
    plan([row])
    assert row == {"environment": "shop", "meta": {"a": None}}


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"a": None, "b": 1}, {"b": 1}),
        ({"a": {"b": None, "c": {"d": None}}}, {"a": {"c": {}}}),
        ({"messages": [{"role": "user", "name": None}]}, {"messages": [{"role": "user"}]}),
        # A None inside a list was put there by someone.
        ({"a": [1, None]}, {"a": [1, None]}),
        ({"a": [[{"b": None}]]}, {"a": [[{}]]}),
        ({"zero": 0, "empty": "", "no": False}, {"zero": 0, "empty": "", "no": False}),
    ],
)
def test_keys_that_arrow_filled_with_none_are_dropped(row, expected):
    assert task_row(row) == expected


def test_row_is_the_same_whether_or_not_it_went_through_datasets():
    # DAT-1
    rows = [
        {
            "prompt": [
                {"role": "system", "content": "s", "name": "x"},
                {"role": "user", "content": "u", "meta": {"a": 1}},
            ],
            "task_id": "a",
            "hint": "h",
        },
        {"prompt": [{"role": "user", "content": "v"}], "task_id": "b"},
    ]
    loaded = list(datasets.Dataset.from_list(rows))
    assert "None" in str(loaded)
    assert [task_row(row) for row in loaded] == rows
    assert "None" not in str([dict(spec.row) for spec in plan(loaded)])
    assert [spec.seed for spec in plan(loaded)] == [spec.seed for spec in plan(rows)]


@pytest.mark.parametrize("value", [3, None])
def test_column_named_seed_is_refused_with_a_remedy(value):
    with pytest.raises(ConfigurationError, match=r"a column `seed`.*Rename the column"):
        task_row({"seed": value})


def test_task_id_is_the_column_or_a_digest_of_the_content():
    assert task_id({"task_id": 7, "x": 1}) == "7"
    assert task_id({"x": 1, "y": "b"}) == task_id({"y": "b", "x": 1})
    assert task_id({"x": 1}) != task_id({"x": 2})
    assert task_id({"x": 1}) != task_id({"y": 1})


def test_seeds_fit_63_bits_and_differ():
    seeds = {derive_seed(name, k) for name in "ab" for k in range(100)}
    assert len(seeds) == 200
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert any(seed >= 2**62 for seed in seeds)
    assert derive_seed(1, 23) != derive_seed(12, 3)


def test_seeds_are_the_same_in_every_process():
    # Python's own hash of strings is not.
    code = (
        "from taspo_trl.rollout.tasks import derive_seed, task_id; "
        "print(derive_seed('a', 1, 2.5), task_id({'x': [1, {'y': 'z'}]}))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert outputs == {f"{derive_seed('a', 1, 2.5)} {task_id({'x': [1, {'y': 'z'}]})}\n"}
