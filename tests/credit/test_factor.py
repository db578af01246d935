"""FACTOR and its composition with TASPO: the numbers of the cards, conservation, schedules, the table of siblings."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taspo_trl.credit.base import check_guarantees
from taspo_trl.credit.factor import HTA, TAC
from taspo_trl.credit.taspo import credit_weights
from taspo_trl.credit.taspo_factor import TASPOFactor
from taspo_trl.errors import InvariantError
from tests.credit import scored, toy
from tests.credit.scored import Episode, Reply


LN3 = math.log(3.0)
NOW = {"zero_at": 0, "warmup": 0}
"""eta at its full 0.7 from the first update."""


# ---- TAC -----------------------------------------------------------------------------------------------------------


def three_turns(num_turns=3, **fields):
    """A success of three turns beside a failure of one: b = 1/2."""
    replies = scored.actions("serl_immediate", *[[0.0]] * num_turns)
    return scored.batch([Episode("a", 0.7, replies, success=True), Episode("b", -0.7, replies[:1])], **fields)


def test_differences_of_the_potential_by_hand():
    batch = three_turns(values={("a", 1): 0.7, ("a", 2): 0.2})
    won, lost = TAC(value="continuations")(batch)
    assert won == pytest.approx([0.2, -0.5, 0.8])
    assert math.fsum(won) == pytest.approx(0.5)
    assert lost == [-0.5]  # one turn: A^seq


def test_an_unknown_value_is_the_baseline():
    assert TAC(value="continuations")(three_turns(values={("a", 2): 0.2}))[0] == pytest.approx([0.0, -0.3, 0.8])


def test_warmup_shares_the_outcome_equally():
    rule = TAC(value="continuations", warmup=10)
    values = {("a", 1): 0.7, ("a", 2): 0.2}
    assert rule(three_turns(values=values, step=9))[0] == pytest.approx([0.5 / 3] * 3)
    assert rule(three_turns(values=values, step=10))[0] == pytest.approx([0.2, -0.5, 0.8])


def test_the_table_of_siblings_in_the_toy_batch():
    # b = 1/2. V without the own episode: s1 of a: c, d -> 1/2; s2 of b: d -> 1; s1 of c: a, d -> 1;
    # d: s2 met by b -> 0, s1 by a, c -> 1/2.
    rows = TAC()(toy.batch())
    assert rows == toy.near([[0.0, 0.5], [0.5, -1.0], [0.5, -1.0], [-0.5, 0.5, 0.5]])
    left_out = TAC(baseline="leave_one_out")(toy.batch())
    assert [math.fsum(row) for row in left_out] == pytest.approx([2 / 3, -2 / 3, -2 / 3, 2 / 3])


def test_a_state_that_nobody_shares_is_worth_the_baseline():
    group = toy.group(
        toy.play("a", ("s0", "A", "s1", "B", "end"), 1.0), toy.play("b", ("s0", "C", "s9", "D", "end"), 0.0)
    )
    assert TAC()(toy.batch(group)) == toy.near([[0.0, 0.5], [0.0, -0.5]])


@settings(deadline=None)
@given(data=st.data(), baseline=st.sampled_from(["group_mean", "leave_one_out"]))
def test_credits_sum_to_the_outcome(data, baseline):
    rewards = data.draw(st.lists(st.sampled_from([0.0, 1.0, 0.35]), min_size=1, max_size=5))
    paths = [data.draw(st.lists(st.sampled_from("uvwxy"), min_size=1, max_size=4)) for _ in rewards]
    usable = [data.draw(st.booleans()) for _ in rewards]
    members = [
        toy.play(f"m{i}", [x for state in path for x in (state, "A")] + ["end"], reward, usable=ok)
        for i, (reward, path, ok) in enumerate(zip(rewards, paths, usable, strict=True))
    ]
    for t, row in zip(members, TAC(baseline=baseline)(toy.batch(toy.group(*members))), strict=True):
        others = [o.reward for o in members if o.is_usable and o is not t]
        if not t.is_usable or not others:
            assert row == [0.0] * len(t.turns)
        else:
            counted = others + ([t.reward] if baseline == "group_mean" else [])
            assert math.fsum(row) == pytest.approx(t.reward - math.fsum(counted) / len(counted), abs=1e-12)


def test_an_unusable_sibling_is_worth_nothing():
    members = [*toy.t0().trajectories, toy.play("e", ("s0", "A1", "s1", "B1", "x"), 5.0, usable=False)]
    rows = TAC()(toy.batch(toy.group(*members)))
    assert rows[:4] == TAC()(toy.batch())
    assert rows[4] == [0.0, 0.0]


def test_tac_asks_for_what_it_reads():
    assert TAC().needs.state_key and TAC().needs.values == 0
    assert TAC(value="continuations", continuations=2).needs.values == 2
    with pytest.raises(InvariantError, match="no state key"):
        TAC()(toy.batch(state_key=None))


# ---- HTA -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("credit", "expected"), [(1.0, [1.35, 0.65]), (-1.0, [-0.65, -1.35])])
def test_shares_of_a_turns_credit_by_hand(credit, expected):
    # softmax(ln 3, 0) = (3/4, 1/4); blamed (1/4, 3/4): L rho = .3 + 1.4 * softmax.
    batch, _ = scored.one_group("serl_immediate", 0.9, [LN3, 0.0])
    weighed = HTA(**NOW)(batch, [[credit]])
    assert weighed.advantages == [[pytest.approx(expected)]]


def test_a_single_token_carries_the_whole_turn():
    batch, _ = scored.one_group("serl_immediate", 0.9, [2.7])
    assert HTA(**NOW)(batch, [[-0.4]]).advantages == [[[-0.4]]]


def test_tokens_outside_the_action_get_the_outcome():
    reply = Reply((False, True, True, False), {"serl_immediate": (9.0, LN3, 0.0, 9.0)})
    batch = scored.batch([Episode("a", 0.9, (reply, Reply((False, False), {})))], scope="action")
    rows = [[1.0, -0.5]]
    assert HTA(**NOW)(batch, rows).advantages == [[[0.5, pytest.approx(1.35), pytest.approx(0.65), 0.5], [0.5, 0.5]]]
    own = HTA(**NOW, outside="turn")(batch, rows).advantages
    assert own == [[[1.0, pytest.approx(1.35), pytest.approx(0.65), 1.0], [-0.5, -0.5]]]


def test_shifts_are_cut():
    batch, _ = scored.one_group("serl_immediate", 0.9, [50.0, 3.0, -3.0, -50.0])
    first, second, third, fourth = HTA(**NOW)(batch, [[1.0]]).advantages[0][0]
    assert first == second > third == fourth


@pytest.mark.parametrize(
    ("step", "eta"), [(0, 0.0), (9, 0.0), (10, 0.546), (24, 0.35), (48, 0.014), (49, 0.0), (70, 0.0)]
)
def test_hta_is_active_in_updates_11_to_49(step, eta):
    batch, _ = scored.one_group("serl_immediate", 0.9, [LN3, 0.0], step=step)
    weighed = HTA()(batch, [[1.0]])
    assert weighed.advantages == [[pytest.approx([1 + eta / 2, 1 - eta / 2])]]
    assert weighed.fallbacks == ["" if eta else "zero_share"]


@settings(deadline=None)
@given(
    shifts=st.lists(st.floats(-1.2, 1.2), min_size=1, max_size=6),
    constant=st.floats(-1.5, 1.5),
    credit=st.sampled_from([1.0, -0.3]),
)
def test_a_constant_added_to_all_shifts_does_nothing_inside_the_cut(shifts, constant, credit):
    def tokens(values):
        batch, _ = scored.one_group("serl_immediate", 0.9, values)
        return HTA(**NOW)(batch, [[credit]]).advantages[0][0]

    own = tokens(shifts)
    assert tokens([d + constant for d in shifts]) == pytest.approx(own, abs=1e-12)
    assert math.fsum(own) / len(own) == pytest.approx(credit, abs=1e-12)


# ---- TASPO between turns, FACTOR inside them -----------------------------------------------------------------------


def both(*shifts_T, mask=None):
    """Turns with the same shifts under both blocks."""
    return tuple(Reply(mask or (True,) * len(d), {"aligned": d, "serl_immediate": d}) for d in shifts_T)


def test_the_composition_by_hand():
    # d = (.5, -.5): w = (1.152319, .847681). Inside the first turn softmax(1, 0) = (.731059, .268941):
    # L rho = 1 ± .7 * .462117.
    batch = scored.batch([Episode("a", 2.0, both((1.0, 0.0), (-0.5, -0.5)))])
    rows = scored.rows(batch)
    weighed = TASPOFactor(**NOW)(batch, rows)
    assert weighed.weights == [pytest.approx([1.152319, 0.847681], abs=1e-6)]
    assert weighed.advantages[0][0] == pytest.approx(
        [2 * 1.152319 * (1 + 0.7 * 0.462117), 2 * 1.152319 * (1 - 0.7 * 0.462117)], abs=1e-5
    )
    assert weighed.advantages[0][1] == pytest.approx([2 * 0.847681] * 2, abs=1e-5)
    assert weighed.supports == [[0.5, -0.5]]
    assert weighed.token_weights[0][0] == pytest.approx([x / 2 for x in weighed.advantages[0][0]])


def test_tokens_outside_the_action_follow_their_turn():
    batch = scored.batch(
        [Episode("a", -1.0, both((9.0, 1.0, 0.0), (9.0, -0.5, -0.5), mask=(False, True, True)))], scope="action"
    )
    weighed = TASPOFactor(**NOW)(batch, scored.rows(batch))
    assert [turn[0] for turn in weighed.advantages[0]] == pytest.approx([-w for w in weighed.weights[0]])


@settings(max_examples=60, deadline=None)
@given(groups=scored.groups(["aligned", "serl_immediate"]))
def test_both_means_are_kept(groups):
    batch = scored.batch(*groups, scope="action")
    rows = scored.rows(batch)
    weighed = TASPOFactor(**NOW)(batch, rows)
    for a, row, turns in zip(batch.outcome, weighed.weights, weighed.advantages, strict=True):
        assert math.fsum(row) / len(row) == pytest.approx(1.0, abs=1e-12)
        for w, turn in zip(row, turns, strict=True):
            if turn:
                assert math.fsum(turn) / len(turn) == pytest.approx(a * w, abs=1e-12)


def test_a_turn_that_one_block_lacks_keeps_the_other():
    half = (*both((1.0,), (-1.0,)), Reply((True, True), {"aligned": None, "serl_immediate": (1.0, 0.0)}))
    batch = scored.batch([Episode("a", 1.0, half)])
    weighed = TASPOFactor(**NOW)(batch, scored.rows(batch))
    assert weighed.weights[0] == credit_weights([1.0, -1.0, None], 1.0)
    assert weighed.advantages[0][2] == pytest.approx([1 + 0.7 * 0.462117, 1 - 0.7 * 0.462117], abs=1e-6)


def test_fallback_is_told_only_where_neither_moves_anything():
    lone = scored.batch([Episode("a", 1.0, both((1.0, 0.0)))])
    assert TASPOFactor()(lone, [[1.0]]).fallbacks == ["fewer_than_two_scorable_turns"]
    assert TASPOFactor(**NOW)(lone, [[1.0]]).fallbacks == [""]
    pair = scored.batch([Episode("a", 1.0, both((1.0,), (0.0,)))])
    assert TASPOFactor()(pair, [[1.0, 1.0]]).fallbacks == [""]


def test_a_broken_inner_mean_is_caught(monkeypatch):
    monkeypatch.setattr(HTA, "_spread", lambda self, shifts, a, turn, eta: [1.1] * len(turn.reply_ids))
    batch = scored.batch([Episode("a", 1.0, both((1.0,), (0.0,)))])
    with pytest.raises(InvariantError, match="do not keep their turn's credit"):
        TASPOFactor(**NOW)(batch, [[1.0, 1.0]])
    with pytest.raises(InvariantError, match="mean one over each_action"):
        check_guarantees(batch, [[1.0, 1.0]], HTA(**NOW)(batch, [[1.0, 1.0]]), HTA().needs, HTA().guarantees)
