"""GRPO: one advantage for a trajectory, over trajectories or over rows."""

import pytest

from taspo_trl.credit.grpo import GRPO
from taspo_trl.errors import ConfigurationError
from tests.credit import toy


def test_trajectories_by_hand():
    a, b, c, d = GRPO()(toy.batch())
    assert a == [pytest.approx(0.865875, abs=1e-6)] * 2
    assert b == c == [pytest.approx(-0.865875, abs=1e-6)] * 2
    assert d == [pytest.approx(0.865875, abs=1e-6)] * 3


def test_rows_by_hand():
    # Nine rows, five of successes: mean 5/9, sample std 0.527046, reward 10. One long success depresses everybody.
    a, b, c, d = GRPO(stats="rows")(toy.batch())
    assert a == [pytest.approx(0.843274, abs=1e-6)] * 2
    assert b == c == [pytest.approx(-1.054092, abs=1e-6)] * 2
    assert d == [pytest.approx(0.843274, abs=1e-6)] * 3


def test_a_group_of_one_and_a_flat_group_get_zero_over_rows():
    alone = toy.group(toy.play("a", ("s", "A", "t", "B", "u"), 1.0))
    flat = toy.group(*(toy.play(u, ("s", "A", "t"), 0.7) for u in "bcd"), group_id="h")
    assert GRPO(stats="rows")(toy.batch(alone, flat)) == [[0.0, 0.0], [0.0], [0.0], [0.0]]


def test_other_statistics_are_refused():
    with pytest.raises(ConfigurationError, match="`stats` must be one of 'trajectories', 'rows', got 'turns'"):
        GRPO(stats="turns")
