"""The ceiling and its placebo: weights by hand, what both promise, and what the shuffle may depend on."""

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taspo_trl.credit.base import OutcomeAdvantage, check_guarantees
from taspo_trl.credit.oracle import OracleWeights
from taspo_trl.errors import ConfigurationError
from tests.credit.scored import Episode, Reply, batch


def played(*gained_T, advantage=1.0, uid="a"):
    """An episode whose turns brought the goal so much nearer; None = nobody knows."""
    replies = tuple(Reply((True, False), {}) for _ in gained_T)
    told = {(uid, t): one for t, one in enumerate(gained_T) if one is not None}
    return batch([Episode(uid, advantage, replies)], progress=told)


def weights(one, **options):
    (row,) = OracleWeights(**options)(one, OutcomeAdvantage()(one)).weights
    return row


@pytest.mark.parametrize("sign", [1, -1])
def test_by_hand(sign):
    """Progress 1 and 0 about their mean of a half: q = tanh(1/2 : 1/2) = tanh 1, so w = 1 +- range tanh(1) / 2."""
    moved = sign * 0.2 * math.tanh(1.0)
    assert weights(played(1.0, 0.0, advantage=sign * 0.7)) == pytest.approx([1 + moved, 1 - moved])
    assert weights(played(1.0, None, 0.0, advantage=sign), weight_range=0.8) == pytest.approx(
        [1 + 2 * moved, 1.0, 1 - 2 * moved]
    )


@pytest.mark.parametrize("shuffled", [False, True])
@settings(max_examples=40, deadline=None)
@given(
    gained=st.lists(st.none() | st.sampled_from([-2.0, -1.0, 0.0, 1.0]), min_size=1, max_size=8),
    advantage=st.sampled_from([-1.3, 0.7, 0.0]),
    weight_range=st.sampled_from([0.0, 0.4, 0.95]),
)
def test_what_is_promised_is_kept(shuffled, gained, advantage, weight_range):
    one = played(*gained, advantage=advantage)
    rule, rows = OracleWeights(weight_range, shuffled=shuffled), OutcomeAdvantage()(one)
    weighed = rule(one, rows)
    check_guarantees(one, rows, weighed, rule.needs, rule.guarantees)
    (row,) = weighed.weights
    assert all(0 < 1 - weight_range - 1e-12 <= w <= 1 + weight_range + 1e-12 for w in row)
    assert math.fsum(row) == pytest.approx(len(gained))
    assert sorted(row) == sorted(weights(one, weight_range=weight_range)), "a placebo has the oracle's weights"


def test_a_placebo_is_drawn_from_row_and_uid_alone():
    gained = [1.0, 0.0, 0.0, 1.0, -1.0, 0.0, 1.0, 0.0]
    one = played(*gained)
    drawn = weights(one, shuffled=True)
    assert drawn == weights(played(*gained), shuffled=True) != weights(one)
    assert drawn != weights(played(*gained, uid="b"), shuffled=True)
    (group,) = one.groups
    seeded = dataclasses.replace(group.trajectories[0], seed=7)
    other = dataclasses.replace(one, groups=(dataclasses.replace(group, trajectories=(seeded,)),))
    assert drawn != weights(other, shuffled=True)


def test_what_is_not_known_keeps_the_outcome_s_advantage():
    for one, reason in [
        (played(1.0, None), "fewer_than_two_turns_with_progress"),
        (played(1.0, 0.0, advantage=0.0), "zero_advantage"),
    ]:
        weighed = OracleWeights()(one, OutcomeAdvantage()(one))
        assert weighed.weights == [[1.0, 1.0]] and weighed.fallbacks == [reason]


@pytest.mark.parametrize("options", [{"weight_range": 1.0}, {"temperature": 0.0}])
def test_impossible_options_are_refused_by_their_names(options):
    with pytest.raises(ConfigurationError, match=r"`range`|`temperature`"):
        OracleWeights(**options)
