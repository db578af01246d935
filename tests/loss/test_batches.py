"""Rows with their loss values, and the tensors of a micro-batch."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from taspo_trl.loss.batches import (
    EMPTY_ROW,
    LossRow,
    collate,
    from_state,
    logps_of,
    loss_row,
    to_state,
    with_credit,
    with_logps,
)
from taspo_trl.rows import build_rows
from taspo_trl.types import FinishReason
from tests.builders import conversation_trajectory, trajectory, turn


@pytest.fixture
def played():
    """Two turns in one row; the second reply was cut at its limit."""
    return trajectory([turn([1, 2], [10, 11]), turn([1, 2, 10, 11, 3], [12], finish_reason=FinishReason.LENGTH)])


@pytest.fixture
def row(played):
    return build_rows(played)[0]


def test_every_sampled_token_carries_its_coefficient_and_nothing_else_does(row, played):
    made = loss_row(row, played, num_trajectories=4, factor=1.0)
    assert made.ids == (1, 2, 10, 11, 3, 12)
    assert made.positions == (2, 3, 5)
    assert [made.ids[p] for p in made.positions] == [10, 11, 12]
    assert made.coefficients == (1 / 16, 1 / 16, 1 / 8)  # 1 / (4 * 2 * 2), 1 / (4 * 2 * 1)
    assert made.advantages == (0.0, 0.0, 0.0)
    assert made.old_logps is made.ref_logps is made.importance_ratios is None


def test_step_factor_multiplies_the_coefficients(row, played):
    made = loss_row(row, played, num_trajectories=4, factor=3.0)
    assert made.coefficients == (3 / 16, 3 / 16, 3 / 8)


def test_cut_reply_can_be_masked_and_still_counts_as_a_turn(row, played):
    made = loss_row(row, played, num_trajectories=4, factor=1.0, mask_truncated=True)
    assert made.coefficients == (1 / 16, 1 / 16, 0.0)


def test_turns_without_reply_count_in_the_mean_over_turns():
    played = trajectory([turn([1], [10]), turn([1], []), turn([1], [])])
    (row,) = build_rows(played)
    assert loss_row(row, played, num_trajectories=1, factor=1.0).coefficients == (1 / 3,)


def test_weight_of_a_turn_goes_to_all_its_sampled_tokens(row, played):
    made = loss_row(row, played, num_trajectories=4, factor=1.0)
    credited = with_credit(made, row, [[-2.5, -2.5], [-1.5]])
    assert credited == dataclasses.replace(made, advantages=(-2.5, -2.5, -1.5))


def test_token_level_credit_goes_to_each_token(row, played):
    made = loss_row(row, played, num_trajectories=4, factor=1.0)
    assert with_credit(made, row, [[2.0, 2.4], [1.8]]).advantages == (2.0, 2.4, 1.8)


def test_turns_of_a_row_are_found_by_their_index():
    # The first turn has no reply: the row's only turn is the second of the trajectory.
    played = trajectory([turn([1], []), turn([1], [10, 11])])
    (row,) = build_rows(played)
    made = loss_row(row, played, num_trajectories=1, factor=1.0)
    assert with_credit(made, row, [[], [1.5, 1.5]]).advantages == (1.5, 1.5)
    assert with_credit(made, row, [[], [1.3, 0.7]]).advantages == (1.3, 0.7)


def test_log_probabilities_are_added_one_kind_at_a_time():
    made = LossRow((1, 10), (1,), (1.0,), (0.5,))
    with_old = with_logps(made, old_logps=[-1.0])
    with_both = with_logps(with_old, ref_logps=[-2.0], importance_ratios=[0.5])
    assert with_both == LossRow((1, 10), (1,), (1.0,), (0.5,), (-1.0,), (-2.0,), (0.5,))
    assert with_logps(made) == made


def test_tensors_of_a_micro_batch_by_hand():
    rows = [
        LossRow((1, 2, 10, 11, 3, 12), (2, 3, 5), (0.1, 0.2, 0.3), (1.0, 2.0, 3.0)),
        LossRow((4, 20), (1,), (0.4,), (4.0,)),
    ]
    batch = collate(rows, pad_token_id=9)
    assert batch["input_ids"].tolist() == [[1, 2, 10, 11, 3, 12], [4, 20, 9, 9, 9, 9]]
    assert batch["attention_mask"].tolist() == [[1] * 6, [1, 1, 0, 0, 0, 0]]
    assert batch["positions"].tolist() == [1, 2, 4, 6]  # the position before each sampled token, rows of width 6
    assert batch["targets"].tolist() == [10, 11, 12, 20]
    assert batch["coefficients"].tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert batch["advantages"].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert batch["rows"].tolist() == [0, 0, 0, 1]
    assert set(batch) == {"input_ids", "attention_mask", "positions", "rows", "targets", "coefficients", "advantages"}
    one_row = collate(rows, pad_token_id=9, padding_free=True)
    assert one_row["input_ids"].tolist() == [[1, 2, 10, 11, 3, 12, 4, 20]]
    assert one_row["positions"].tolist() == [1, 2, 4, 6] and one_row["rows"].tolist() == [0, 0, 0, 1]
    assert batch["coefficients"].dtype == torch.float32
    assert collate(rows, dtype=torch.float64)["coefficients"].tolist() == [0.1, 0.2, 0.3, 0.4]


def test_width_is_rounded_up():
    rows = [LossRow((1, 10, 11), (1, 2), (1.0, 1.0), (0.0, 0.0)), LossRow((2, 12), (1,), (1.0,), (0.0,))]
    batch = collate(rows, pad_to_multiple_of=4)
    assert batch["input_ids"].shape == (2, 4)
    assert batch["positions"].tolist() == [0, 1, 4]
    assert collate(rows, pad_to_multiple_of=3)["input_ids"].shape == (2, 3)


def test_optional_columns_need_every_row():
    made = LossRow((1, 10), (1,), (1.0,), (0.5,))
    full = with_logps(made, old_logps=[-1.0], ref_logps=[-2.0], importance_ratios=[0.5])
    batch = collate([full, full])
    assert batch["old_logps"].tolist() == [-1.0, -1.0]
    assert batch["ref_logps"].tolist() == [-2.0, -2.0]
    assert batch["importance_ratios"].tolist() == [0.5, 0.5]
    assert "old_logps" not in collate([full, made])


@given(seed=st.integers(0, 10**6))
def test_targets_and_the_positions_that_predict_them_agree_for_ragged_rows(seed):
    rng = np.random.default_rng(seed)
    trajectories = [conversation_trajectory(rng, f"t{k}", int(rng.integers(1, 4))) for k in range(4)]
    rows = [
        loss_row(row, t, num_trajectories=4, factor=1.0)
        for t in trajectories
        for row in build_rows(t, merge=bool(rng.integers(2)))
    ]
    if not rows:
        return
    batch = collate(rows, pad_token_id=-7, pad_to_multiple_of=int(rng.integers(1, 9)))
    flat_ids = batch["input_ids"].flatten()
    assert torch.equal(flat_ids[batch["positions"] + 1], batch["targets"])
    assert -7 not in batch["targets"].tolist()
    assert (batch["targets"] >= 50).all()  # sampled ids, never prompt ids
    assert torch.equal(batch["attention_mask"].bool(), batch["input_ids"] != -7)
    # A flat tensor goes back to its rows in the same order.
    split = logps_of(batch["targets"], rows)
    assert split == [tuple(float(row.ids[p]) for p in row.positions) for row in rows]


def test_zero_row_contributes_nothing_but_can_be_run():
    batch = collate([EMPTY_ROW])
    assert batch["coefficients"].tolist() == [0.0]
    assert batch["positions"].tolist() == [0]
    assert batch["targets"].tolist() == [0]


@pytest.mark.parametrize(
    "row",
    [
        EMPTY_ROW,
        LossRow((1, 10, 11), (1, 2), (0.5, 0.25), (1.0, -1.0), (-1.0, -2.0), None, (0.5, 1.0)),
    ],
)
def test_state_is_made_of_tensors_and_comes_back_as_it_was(row):
    state = to_state(row)
    assert set(state) == {one.name for one in dataclasses.fields(LossRow)} - {"teacher"}
    assert all(value is None or isinstance(value, torch.Tensor) for value in state.values())
    back = from_state(state)
    assert back == row
    assert type(back.ids) is tuple
    assert type(back.ids[0]) is type(back.positions[0]) is int
    assert type(back.advantages[0]) is type(back.coefficients[0]) is float
