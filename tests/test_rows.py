"""Trajectories to rows, rows to optimizer steps, micro-steps, processes and micro-batches."""

import itertools
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taspo_trl.rows import (
    Deal,
    RowTurn,
    build_rows,
    deal_rows,
    num_positions,
    pack_rows,
    pack_units,
    token_coefficient,
)
from tests.builders import conversation_trajectory, trajectory, turn, window_trajectory


# ---- build_rows ----------------------------------------------------------------------------------------------------


def test_the_worked_example_of_rows():
    rows = build_rows(trajectory([turn([1, 2], [7]), turn([1, 2, 7, 8], [9]), turn([1, 3], [9, 9])], "a"))
    said = re.findall(r"turn (?:1|2).*?\[([\d ]+)\]", build_rows.__doc__ or "")
    assert [" ".join(map(str, row.ids)) for row in rows] == said
    spans = re.findall(r"`(RowTurn\(\d, \d, \d\))`", build_rows.__doc__ or "")
    assert [one for row in rows for one in row.turns] == [eval(span) for span in spans]


def test_window_turns_have_a_row_each():
    played = trajectory([turn([1, 2], [10]), turn([1, 3], [11, 12], splice_index=1)], "a")
    rows = build_rows(played)
    assert [row.ids for row in rows] == [(1, 2, 10), (1, 3, 11, 12)]
    assert [row.turns for row in rows] == [(RowTurn(0, 2, 1),), (RowTurn(1, 2, 2),)]
    assert [row.traj_uid for row in rows] == ["a", "a"]
    assert [row.splice_index for row in rows] == [1, 1]


def test_turns_whose_context_extends_the_previous_one_share_a_row():
    played = trajectory(
        [
            turn([1, 2], [10, 11], splice_index=2),
            turn([1, 2, 10, 11, 3], [12], splice_index=2),
            turn([1, 2, 10, 11, 3, 12, 4], [13, 14], splice_index=2),
        ]
    )
    (row,) = build_rows(played)
    assert row.ids == (1, 2, 10, 11, 3, 12, 4, 13, 14)
    assert row.turns == (RowTurn(0, 2, 2), RowTurn(1, 5, 1), RowTurn(2, 7, 2))
    assert row.splice_index == 2


def test_guidance_goes_into_the_first_context_of_a_shared_row():
    played = trajectory([turn([1, 2], [10], splice_index=1), turn([1, 2, 10, 3, 4], [11], splice_index=4)])
    assert [row.splice_index for row in build_rows(played)] == [1]


@pytest.mark.parametrize(
    "second",
    [
        [1, 2, 10, 3],  # the reply's last token is missing
        [1, 2, 10, 12, 3],  # the reply was tokenized again (TOK-1)
        [1, 9, 10, 11, 3],  # the template rewrote the history (TOK-2)
        [2, 10, 11, 3],
        [1, 2],
    ],
)
def test_context_that_does_not_extend_the_previous_one_starts_a_row(second):
    rows = build_rows(trajectory([turn([1, 2], [10, 11]), turn(second, [12])]))
    assert [row.ids for row in rows] == [(1, 2, 10, 11), (*second, 12)]


def test_empty_reply_has_no_row_and_no_span_but_interrupts_nothing():
    played = trajectory([turn([1, 2], [10]), turn([1, 2, 10, 3], []), turn([1, 2, 10, 3, 4], [11])])
    (row,) = build_rows(played)
    assert row.turns == (RowTurn(0, 2, 1), RowTurn(2, 5, 1))
    assert build_rows(trajectory([turn([1], [])])) == []
    assert build_rows(trajectory([])) == []


def test_merging_can_be_switched_off():
    played = trajectory([turn([1, 2], [10]), turn([1, 2, 10, 3], [11])])
    assert [row.ids for row in build_rows(played, merge=False)] == [(1, 2, 10), (1, 2, 10, 3, 11)]


@given(seed=st.integers(0, 10**6), is_window=st.booleans(), merge=st.booleans())
def test_every_sampled_token_stands_in_exactly_one_row_behind_its_own_context(seed, is_window, merge):
    rng = np.random.default_rng(seed)
    make = window_trajectory if is_window else conversation_trajectory
    played = make(rng, "t", int(rng.integers(0, 7)))
    rows = build_rows(played, merge)
    for row in rows:
        for span in row.turns:
            original = played.turns[span.turn_idx]
            assert row.ids[: span.start] == original.prompt_ids  # nothing else was shown
            assert row.ids[span.start : span.start + span.length] == original.reply_ids
    found = [span.turn_idx for row in rows for span in row.turns]
    assert found == [t for t, one in enumerate(played.turns) if one.reply_ids]
    if merge and not is_window:
        assert len(rows) <= 1


# ---- coefficients and deals ----------------------------------------------------------------------------------------


def test_coefficient_is_the_product_of_three_means():
    assert token_coefficient(4, 5, 2) == 1 / 40


deals = st.fixed_dictionaries(
    {
        "lengths": st.lists(st.integers(1, 50), max_size=30),
        "num_steps": st.integers(1, 4),
        "num_micro_steps": st.integers(1, 3),
        "num_processes": st.integers(1, 3),
        "seed": st.integers(0, 100),
    }
)


def places(deal: Deal):
    """(step, micro-step, process) of every share, in the order in which shares are filled."""
    return itertools.product(range(deal.num_steps), range(deal.num_micro_steps), range(deal.num_processes))


@given(deals)
def test_every_row_is_dealt_exactly_once(arguments):
    deal = deal_rows(**arguments)
    shares = [deal.rows(*place) for place in places(deal)]
    assert len(shares) == arguments["num_steps"] * arguments["num_micro_steps"] * arguments["num_processes"]
    assert all(list(share) == sorted(share) for share in shares)
    assert sorted(itertools.chain(*shares)) == list(range(len(arguments["lengths"])))


@given(deals)
def test_the_rows_of_a_step_are_those_of_its_micro_steps_and_processes(arguments):
    deal = deal_rows(**arguments)
    found = [[row for step, *rest in places(deal) if step == k for row in deal.rows(step, *rest)] for k in range(4)]
    assert [list(deal.rows_of_step(k)) for k in range(deal.num_steps)] == found[: deal.num_steps]


@given(deals)
def test_steps_get_equal_numbers_of_rows_and_processes_similar_numbers_of_tokens(arguments):
    lengths = arguments["lengths"]
    deal = deal_rows(**arguments)
    sizes = [len(deal.rows_of_step(step)) for step in range(deal.num_steps)]
    assert max(sizes) - min(sizes) <= 1
    for one in range(deal.num_steps):
        loads = [sum(lengths[row] for row in deal.rows(*place)) for place in places(deal) if place[0] == one]
        # Longest first onto the least loaded never leaves a gap larger than the longest row.
        assert max(loads) - min(loads) <= max((lengths[row] for row in deal.rows_of_step(one)), default=0)


def test_longest_rows_are_dealt_first_by_hand():
    # 4 -> first share, 3 -> second, 2 -> second (3 < 4), then 1 -> first (4 < 5): 5 and 5 tokens.
    assert deal_rows([1, 2, 3, 4], 1, 1, 2, seed=0) == Deal(1, 1, 2, ((0, 3), (1, 2)))
    assert deal_rows([1, 2, 3, 4], 1, 2, 1, seed=0) == Deal(1, 2, 1, ((0, 3), (1, 2)))
    # Six shares in the order (micro-step, process).
    assert deal_rows([6, 5, 4, 3, 2, 1], 1, 2, 3, seed=0) == Deal(1, 2, 3, ((0,), (1,), (2,), (3,), (4,), (5,)))


def test_the_worked_example_of_a_deal():
    deal = deal_rows([6, 5, 4, 3, 2, 1], 1, 2, 2, seed=0)
    said = re.findall(r"micro-step (\d), process (\d): rows (\(.*?\)), (\d) tokens +`(.*)`", Deal.__doc__ or "")
    assert len(said) == len(deal.shares)
    for micro_step, process, rows, tokens, code in said:
        share = deal.rows(0, int(micro_step), int(process))
        assert str(share) == rows and sum(6 - row for row in share) == int(tokens)
        assert eval(code, {"deal": deal})


@given(deals)
def test_deal_depends_on_nothing_but_its_arguments(arguments):
    assert deal_rows(**arguments) == deal_rows(**arguments)


def test_seed_decides_which_step_a_row_goes_to():
    splits = {deal_rows([5] * 8, 2, 1, 1, seed) for seed in range(20)}
    assert len(splits) > 10


def test_a_single_step_needs_no_luck():
    assert deal_rows([3, 1, 2], 1, 1, 1, seed=1) == deal_rows([3, 1, 2], 1, 1, 1, seed=2)


@given(deals)
def test_step_factors_undo_the_deal_on_average(arguments):
    # N_row / n_k: a quantity summed over step k's rows, times the factor, estimates the sum over all rows, so that the
    # mean of the estimates, weighted by n_k / N_row, is that sum.
    deal = deal_rows(**arguments)
    total = len(arguments["lengths"])
    values = np.random.default_rng(0).normal(size=total)
    estimate = 0.0
    for step in range(deal.num_steps):
        rows = list(deal.rows_of_step(step))
        factor = deal.factor(step)
        assert factor == (total / len(rows) if rows else 0.0)
        estimate += len(rows) / total * factor * values[rows].sum() if rows else 0.0
    assert estimate == pytest.approx(values.sum(), abs=1e-9)


# ---- micro-batches -------------------------------------------------------------------------------------------------


def test_packing_by_hand():
    # Sorted: 9 | 5 5 (2 x 5 = 10) | 4 3 (2 x 4 = 8; a third would take 12)  | 3 1
    assert pack_rows([3, 5, 1, 9, 5, 4, 3], 10) == [[3], [1, 4], [5, 0], [6, 2]]


@given(lengths=st.lists(st.integers(1, 60), max_size=30), budget=st.integers(1, 200))
def test_micro_batches_hold_every_row_once_within_the_budget(lengths, budget):
    batches = pack_rows(lengths, budget)
    assert sorted(itertools.chain(*batches)) == list(range(len(lengths)))
    for batch in batches:
        longest = max(lengths[row] for row in batch)
        assert len(batch) * longest <= budget or len(batch) == 1
    widths = [max(lengths[row] for row in batch) for batch in batches]
    assert widths == sorted(widths, reverse=True)


def test_packing_what_must_not_be_parted_by_hand():
    units = [(3, 5), (9,), (2, 2, 2), (4,)]
    # By the longest row: 9 | 5 3, to which 4 makes 3 x 5 = 15 | 4, to which 2 2 2 makes 4 x 4 = 16, or 6 x 5 | 2 2 2
    assert pack_units(units, 12) == [[1], [0], [3], [2]]
    assert pack_units(units, 16) == [[1], [0, 3], [2]]
    assert num_positions(units, 16) == 9 + 15 + 6
    # By the sum: 9 | 8 | 6 goes behind the 9 | 4 goes behind the 8
    assert pack_units(units, 16, padding_free=True) == [[1, 2], [0, 3]]
    assert num_positions(units, 16, padding_free=True) == 9 + 8 + 6 + 4


@given(
    units=st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=5), max_size=20),
    budget=st.integers(1, 300),
    padding_free=st.booleans(),
)
def test_no_unit_is_parted_and_the_budget_holds(units, budget, padding_free):
    batches = pack_units(units, budget, padding_free)
    assert sorted(itertools.chain(*batches)) == list(range(len(units)))
    costs = []
    for batch in batches:
        lengths = [length for unit in batch for length in units[unit]]
        costs.append(sum(lengths) if padding_free else max(lengths) * len(lengths))
        assert costs[-1] <= budget or len(batch) == 1
    assert num_positions(units, budget, padding_free) == sum(costs)


@pytest.mark.parametrize("budget", [0, -1])
def test_budget_without_room_is_refused(budget):
    with pytest.raises(ValueError, match=f"`max_tokens` must be at least 1, got {budget}"):
        pack_rows([1], budget)
