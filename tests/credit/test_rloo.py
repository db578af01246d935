"""RLOO and the baseline of REINFORCE++: values by hand, and that each group sums to zero."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taspo_trl.credit.rloo import RLOO
from taspo_trl.errors import ConfigurationError
from tests.credit import drawn, toy


def ragged(rewards, **options):
    members = [toy.play(f"t{i}", ("s", "A", "t", "B", "u"), r) for i, r in enumerate(rewards)]
    return RLOO(**options)(toy.batch(toy.group(*members)))


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([1, 0, 0, 1], [2 / 3, -2 / 3, -2 / 3, 2 / 3]),
        ([1, 0, 0, 0], [1, -1 / 3, -1 / 3, -1 / 3]),
        ([1, 0], [1, -1]),
        ([1], [0]),
        ([0.3, 0.3, 0.3], [0, 0, 0]),
        ([], []),
    ],
)
def test_leave_one_out_by_hand(rewards, expected):
    assert ragged(rewards) == toy.near([[a, a] for a in expected], 1e-12)


def test_t0_by_hand():
    a, b, c, d = RLOO()(toy.batch())
    assert [a[0], b[0], c[0], d[2]] == pytest.approx([0.666667, -0.666667, -0.666667, 0.666667], abs=1e-6)
    a, b, c, d = RLOO(scale="batch")(toy.batch())
    assert [a[0], b[0], c[0], d[2]] == pytest.approx([0.866025, -0.866025, -0.866025, 0.866025], abs=1e-6)


def test_the_batch_scale_goes_over_all_groups():
    # Differences (.5, -.5) and (1, -1): sample std sqrt(2.5 / 3) = 0.912871. The third group has no peer to offer.
    groups = [
        toy.group(*(toy.play(f"{g}{i}", ("s", "A", "t"), r) for i, r in enumerate(rewards)), group_id=g)
        for g, rewards in {"g": (1, 0), "h": (2, 0), "k": (7,)}.items()
    ]
    values = RLOO(scale="batch")(toy.batch(*groups))
    s = math.sqrt(2.5 / 3)
    assert values == toy.near([[0.5 / s], [-0.5 / s], [1 / s], [-1 / s], [0]], 1e-12)


@given(rewards=st.lists(drawn.rewards, min_size=2, max_size=8))
def test_a_reward_is_compared_with_the_mean_of_the_others(rewards):
    values = [row[0] for row in ragged(rewards)]
    assert math.fsum(values) == pytest.approx(0, abs=1e-9)
    if max(rewards) - min(rewards) > 1e-8:
        for i, (r, a) in enumerate(zip(rewards, values, strict=True)):
            others = rewards[:i] + rewards[i + 1 :]
            assert a == pytest.approx(r - sum(others) / len(others), abs=1e-9)


def test_report_counts_who_has_no_peer():
    pair = toy.group(*(toy.play(u, ("s", "A", "t"), 0.0) for u in "abc"))
    alone = toy.group(toy.play("d", ("s", "A", "t"), 1.0), toy.play("e", ("s", "A", "t"), usable=False), group_id="h")
    assert RLOO().report(toy.batch(pair, alone)) == {"credit/without_peer": 0.25}
    assert RLOO().report(toy.batch(toy.group())) == {"credit/without_peer": 0.0}


def test_another_scale_is_refused():
    with pytest.raises(ConfigurationError, match="`scale` must be one of 'none', 'batch', got 'group'"):
        RLOO(scale="group")
