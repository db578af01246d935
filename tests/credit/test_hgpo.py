"""HGPO: values by hand, an independent float64 reference, and the odd cases."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taspo_trl.credit.hgpo import HGPO
from taspo_trl.errors import ConfigurationError
from tests.credit import drawn, toy


def reference(batch, history, alpha, gamma, std, base):
    """A_it of one group, row by row, each with boolean masks over all rows."""
    members = [t for t in batch.trajectories if t.is_usable]
    rewards = np.array([t.reward for t in members])
    rows = [
        (i, [turn.observation for turn in t.turns[: u + 1]], gamma ** (len(t.turns) - u - 1) * t.reward)
        for i, t in enumerate(members)
        for u in range(len(t.turns))
    ]
    gain = np.array([g for _, _, g in rows])
    found = [[] for _ in members]
    for i, seen, own in rows:
        above = below = 0.0
        if base:
            flat = len(rewards) < 2 or np.ptp(rewards) <= 1e-8
            a = 0.0 if flat else (rewards[i] - rewards.mean()) / (rewards.std(ddof=1) + 1e-4 if std else 1.0)
            above, below = a, float(a != 0)
        for k in range(1, min(history + 1, len(seen)) + 1):
            peers = gain[np.array([other[-k:] == seen[-k:] for _, other, _ in rows])]
            if np.ptp(peers) > 1e-8:
                a = (own - peers.mean()) / (peers.std() + 1e-6 if std else 1.0)
                above, below = above + (k + 1) ** alpha * a, below + (k + 1) ** alpha * (a != 0)
        found[i].append(above / below if below else 0.0)
    return dict(zip([t.uid for t in members], found, strict=True))


def test_std_mode_by_hand():
    assert HGPO()(toy.batch()) == toy.near(
        [[1.050589, 0.882841], [-0.999341, -0.999998], [-0.999341, -1.165683], [0.948093, 0.999998, 0.707105]]
    )


def test_mean_mode_by_hand():
    a, _, c, _ = HGPO(normalisation="mean_norm")(toy.batch())
    assert [a[1], c[1]] == pytest.approx([0.433333, -0.566667], abs=1e-6)


def test_no_history_compares_states_alone():
    a, *_ = HGPO(history_length=0, normalisation="mean_norm")(toy.batch())
    assert a == pytest.approx([0.486875, 1 / 3], abs=1e-9)


def test_the_base_group_adds_the_outcome():
    # a2: (1 * 0.5 + 2 * 1/3 + 3 * 0.5) / (1 + 2 + 3)
    a, *_ = HGPO(normalisation="mean_norm", base_group=True)(toy.batch())
    assert a[1] == pytest.approx((0.5 + 2 / 3 + 1.5) / 6, abs=1e-9)
    a, *_ = HGPO(base_group=True)(toy.batch())
    assert a[1] == pytest.approx((0.865875 + 2 * 0.707105 + 3 * 0.999998) / 6, abs=1e-6)


@settings(max_examples=150, deadline=None)
@given(
    one=drawn.groups(),
    history=st.integers(0, 3),
    alpha=st.sampled_from([0.0, 1.0, 2.0]),
    gamma=st.sampled_from([0.0, 0.95, 1.0]),
    std=st.booleans(),
    base=st.booleans(),
)
def test_agrees_with_the_reference(one, history, alpha, gamma, std, base):
    batch = toy.batch(one)
    rule = HGPO(history, alpha, gamma, "mean_std_norm" if std else "mean_norm", base)
    expected = reference(batch, history, alpha, gamma, std, base)
    for t, row in zip(batch.trajectories, rule(batch), strict=True):
        assert row == pytest.approx(expected[t.uid] if t.is_usable else [0.0] * len(row), abs=1e-8, rel=1e-6)


def test_a_state_that_nobody_shares_gets_no_gradient():
    group = toy.group(toy.play("a", ("s0", "A", "s1", "B", "x"), 1.0), toy.play("b", ("s2", "A", "s3", "B", "y"), 0.0))
    assert HGPO()(toy.batch(group)) == [[0.0, 0.0], [0.0, 0.0]]
    assert HGPO().report(toy.batch(group)) == {"credit/singleton_turns": 1.0}
    assert HGPO(base_group=True)(toy.batch(group)) == toy.near([[0.707007] * 2, [-0.707007] * 2])


def test_terms_of_zero_leave_the_normaliser():
    # b's last turn: in s1 the mean of (0, 1, 2) is its own 1, so that only the pair (s0, s1) of returns (1, 2) counts.
    group = toy.group(
        toy.play("a", ("s2", "A", "s1", "B", "x"), 0.0),
        toy.play("b", ("s0", "A", "s1", "B", "x"), 1.0),
        toy.play("c", ("s0", "A", "s1", "B", "x"), 2.0),
    )
    _, b, _ = HGPO(normalisation="mean_norm")(toy.batch(group))
    assert b[1] == pytest.approx(-0.5, abs=1e-12)


def test_a_state_visited_twice_by_one_trajectory_is_its_own_peer():
    alone = toy.group(toy.play("a", ("s0", "A", "s1", "A", "s0", "B", "s2", "B", "solved"), 1.0))
    (row,) = HGPO(normalisation="mean_norm")(toy.batch(alone))
    assert row == pytest.approx([-0.0463125, 0.0, 0.0463125, 0.0], abs=1e-12)


def test_one_turn_gives_the_centred_reward():
    group = toy.group(*(toy.play(f"t{i}", ("s0", "A", "x"), r) for i, r in enumerate((1.0, 0.0, 0.0))))
    assert HGPO(normalisation="mean_norm")(toy.batch(group)) == toy.near([[2 / 3], [-1 / 3], [-1 / 3]], 1e-12)


def test_report_counts_turns_that_stand_alone():
    lone = toy.group(toy.play("e", ("s7", "A", "s8", "A", "s9", "A", "x")), group_id="h")
    assert HGPO().report(toy.batch(toy.t0(), lone)) == {"credit/singleton_turns": 3 / 12}
    assert HGPO().report(toy.batch(toy.group())) == {"credit/singleton_turns": 0.0}


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"history_length": -1}, "`history_length` must be a whole number of at least 0, got -1"),
        ({"history_length": 1.5}, "history_length"),
        ({"alpha": -0.5}, r"`alpha` must be a number in \[0, inf\), got -0.5"),
        ({"alpha": math.nan}, "alpha"),
        ({"gamma": 2}, "gamma"),
        ({"normalisation": "mean"}, "normalisation"),
        ({"base_group": "yes"}, "`base_group` must be one of True, False, got 'yes'"),
    ],
)
def test_impossible_options_are_refused(options, match):
    with pytest.raises(ConfigurationError, match=match):
        HGPO(**options)
