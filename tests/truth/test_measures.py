"""AUC, ranks, signs and dose on values that can be counted by hand; intervals; the two ends of the scale."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from taspo_trl.truth import Labelled, agreement, difference, reliability
from taspo_trl.truth.measures import MEASURES, ranks


def one(credit, labels, group="g0", weights=()):
    return Labelled(group, credit, labels, weights)


def test_by_hand():
    # Two good turns, three others: 6 pairs, of which 4 are won and one is tied.
    found = agreement([one([3, 1, 1, 2, 0], [1, 1, 0, 0, -1], weights=[1.2, 0.8, 1, 1, 1])])
    assert found.auc.value == pytest.approx((3 + 1 + 0.5) / 6)
    assert found.sign.value == pytest.approx(2 / 2), "of the turns with credit and label: the first two"
    assert found.dose.value == pytest.approx(math.sqrt(0.08 / 5))
    assert (found.num_turns, found.num_trajectories, found.num_groups) == (5, 1, 1)


@given(st.lists(st.lists(st.integers(-3, 3), min_size=1, max_size=8), min_size=1, max_size=5), st.floats(-2, 2))
def test_constant_credit_has_an_auc_of_exactly_one_half(labels, credit):
    found = agreement([one([credit] * len(row), row, f"g{k}") for k, row in enumerate(labels)], num_resamples=50)
    assert math.isnan(found.auc.value) or found.auc.value == 0.5 == found.auc.low == found.auc.high
    assert math.isnan(found.rank_correlation.value)


@given(st.lists(st.integers(-3, 3), min_size=2, max_size=8))
def test_the_labels_themselves_are_perfect(labels):
    found = agreement([one(labels, labels)], num_resamples=20)
    assert math.isnan(found.auc.value) or found.auc.value == 1.0
    assert math.isnan(found.rank_correlation.value) or found.rank_correlation.value == pytest.approx(1.0)


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=3, max_size=9))
def test_one_trajectory_agrees_with_scipy(pairs):
    credit, labels = zip(*pairs, strict=True)
    found = agreement([one(credit, labels)], num_resamples=5).rank_correlation.value
    expected = spearmanr(credit, labels).statistic if len(set(credit)) > 1 and len(set(labels)) > 1 else math.nan
    assert found == pytest.approx(expected, nan_ok=True)


def test_only_turns_of_one_trajectory_are_compared():
    """All good turns lie in the trajectory with less credit everywhere: across trajectories the AUC would be 0.25."""
    found = agreement([one([1, 0], [1, 0], "a"), one([11, 10], [-1, -2], "b")])
    assert found.auc.value == 1.0


def test_rounding_makes_no_order():
    assert ranks(np.array([0.3, 0.1 + 0.2, 1.0])).tolist() == [0.5, 0.5, 2.0]
    assert agreement([one([0.3, 0.1 + 0.2], [1, 0])]).auc.value == 0.5


def test_the_interval_covers_the_truth():
    """Credit that is right with probability 0.8 in groups of their own: 95 % intervals hold 0.8 about as often."""
    rng, hits = np.random.default_rng(0), 0
    for trial in range(120):
        right = rng.random(50) < 0.8
        rows = [one([2 * x - 1, 0], [1, 0], f"g{k}") for k, x in enumerate(right)]
        auc = agreement(rows, num_resamples=150, seed=trial).auc
        hits += auc.low <= 0.8 <= auc.high
    assert 107 <= hits < 120


def test_a_paired_difference_is_narrower_than_its_parts():
    rng = np.random.default_rng(1)
    labels = rng.normal(size=(60, 6))
    noise = rng.normal(size=(60, 6)) * 2
    first = [one(row + more, row, f"g{k}") for k, (row, more) in enumerate(zip(labels, noise, strict=True))]
    second = [one(row + 1.05 * more, row, f"g{k}") for k, (row, more) in enumerate(zip(labels, noise, strict=True))]
    apart = agreement(first).auc
    paired = difference(first, second)["auc"]
    assert paired.value == pytest.approx(apart.value - agreement(second).auc.value)
    assert paired.high - paired.low < 0.5 * (apart.high - apart.low)
    assert set(difference(first, first)) == set(MEASURES)
    assert difference(first, first)["auc"].to_json() == [0.0, 0.0, 0.0]
    with pytest.raises(ValueError, match="same groups"):
        difference(first, second[:-1])


def test_reliability():
    rng = np.random.default_rng(2)
    truth = rng.normal(size=(400, 6))
    halves = [(row + rng.normal(size=6), row + rng.normal(size=6)) for row in truth]
    # Each half has as much noise as truth, so the whole has half as much: reliability 1 / (1 + 1/2).
    assert reliability(halves) == pytest.approx(2 / 3, abs=0.05)
    assert reliability([(row, row) for row in truth]) == pytest.approx(1.0)
    assert math.isnan(reliability([([1.0, 1.0], [2.0, 2.0])]))


def test_nothing_gives_no_number():
    found = agreement([])
    assert math.isnan(found.auc.value) and found.num_turns == 0
    assert found.to_json()["auc"] == [None, None, None]
