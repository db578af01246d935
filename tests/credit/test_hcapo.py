"""HCAPO: values by hand, that hindsight never harms a success, and turns without a score."""

import math

import pytest
from hypothesis import given, settings

from taspo_trl.credit.hcapo import HCAPO
from taspo_trl.errors import ConfigurationError
from taspo_trl.types import ReplyScore
from tests.credit import drawn, toy


def scored(a=(-1.0, -2.0), d=(-1.5, -1.5, -1.5), **fields):
    """T0 with the mean hindsight log-probability of each turn of the successes; None = without a score."""
    batch = toy.batch()
    scores = {}
    for member, means in ((batch.trajectories[0], a), (batch.trajectories[3], d)):
        for t, mean in enumerate(means):
            if mean is not None:
                # Plain -1 and two tokens around the mean: what is read is the guided branch alone.
                scores[member.uid, t] = toy.score(member.turns[t], outcome=(mean + 1.25, mean + 0.75))
    return toy.batch(scores=scores, **fields)


def test_t0_by_hand():
    # rho_a = (1.099668, .900332); mu = .533057, sigma = .507644 + 1e-4.
    assert HCAPO()(scored()) == toy.near(
        [[1.873524, 1.589222], [-1.915730] * 2, [-1.915730] * 2, [1.593492, 1.687043, 1.785518]]
    )


def test_the_ratio_is_cut():
    # p = (1, e^-2): 1.76 and .24 of their mean are cut to 1.2 and .8, so that Q_a = (1.14, .8).
    q = [1.14, 0.8, 0, 0, 0, 0, 0.9025, 0.95, 1]
    mu = math.fsum(q) / 9
    sigma = math.sqrt(math.fsum((x - mu) ** 2 for x in q) / 8) + 1e-4
    a, *_ = HCAPO(omega=2.0)(scored(a=(0.0, -10.0)))
    assert a == pytest.approx([0.8658754 + 2 * (x - mu) / sigma for x in q[:2]], abs=1e-6)


def test_smoothing_averages_with_the_next_turn():
    # Q_d = (.9025, .95, 1) becomes (.92625, .975, 1); Q_a = (1.044685, .900332) becomes (.972508, .900332).
    q = [0.972508, 0.900332, 0, 0, 0, 0, 0.92625, 0.975, 1]
    mu = math.fsum(q) / 9
    sigma = math.sqrt(math.fsum((x - mu) ** 2 for x in q) / 8) + 1e-4
    a, _, _, d = HCAPO(smoothing=True)(scored())
    assert a == pytest.approx([0.865875 + (x - mu) / sigma for x in q[:2]], abs=2e-6)
    assert d == pytest.approx([0.865875 + (x - mu) / sigma for x in q[6:]], abs=2e-6)


@pytest.mark.parametrize("gap", ["absent", "unscorable", "other_block", "non_finite", "empty_mask"])
def test_a_turn_without_a_score_counts_as_ratio_one_and_leaves_the_mean(gap):
    batch = scored()
    a, d = batch.trajectories[0], batch.trajectories[3]
    scores = dict(batch.scores)
    gapped = {
        "absent": None,
        "unscorable": ReplyScore(unscorable="over_window"),
        "other_block": toy.score(d.turns[1], other=(0.0, 0.0)),
        "non_finite": toy.score(d.turns[1], outcome=(0.0, math.nan)),
        "empty_mask": toy.score(d.turns[1], outcome=(0.0, 0.0)),
    }[gap]
    scores["d", 1] = gapped
    if gapped is None:
        del scores["d", 1]
    group = toy.t0()
    if gap == "empty_mask":
        masks = [toy.MASK, (False,) * 4, toy.MASK]
        group = toy.group(*group.trajectories[:3], toy.play("d", toy.PATHS["d"], 1.0, masks=masks))
    expected = scored(d=(-1.5, None, -1.5))
    assert HCAPO()(toy.batch(group, scores=scores)) == HCAPO()(expected)
    assert HCAPO()(expected)[3] == pytest.approx([1.593492, 1.687043, 1.785518], abs=1e-6)
    assert a.success


def test_likelihoods_that_underflow_still_compare():
    a, *_ = HCAPO()(scored(a=(-1e6, -1e6 - 5.0)))
    b, *_ = HCAPO()(scored(a=(-1.0, -6.0)))
    assert a == pytest.approx(b, abs=1e-9)


def test_failures_are_not_asked():
    batch = scored()
    failing = batch.trajectories[1]
    scores = {
        **batch.scores,
        ("b", 0): toy.score(failing.turns[0], outcome=(-9.0, -9.0)),
        ("b", 1): toy.score(failing.turns[1], outcome=(-1.0, -1.0)),
    }
    assert HCAPO()(toy.batch(scores=scores)) == HCAPO()(batch)
    # Not even those with a reward of their own: Q_b = .3 (.95, 1) whatever hindsight says.
    members = [*batch.trajectories[:1], toy.play("b", toy.PATHS["b"], 0.3, success=False)]
    assert HCAPO()(toy.batch(toy.group(*members), scores=scores)) == HCAPO()(
        toy.batch(toy.group(*members), scores=batch.scores)
    )


def test_no_success_gives_zero():
    group = toy.group(toy.play("a", ("s0", "A", "x")), toy.play("b", ("s0", "A", "s1", "B", "x")))
    assert HCAPO()(toy.batch(group)) == [[0.0], [0.0, 0.0]]


def test_successes_alone_move_up_and_never_down():
    group = toy.group(toy.play("a", ("s0", "A", "solved"), 1.0), toy.play("b", ("s0", "A", "s1", "B", "solved"), 1.0))
    a, b = HCAPO()(toy.batch(group))
    assert a[0] > 0
    assert b[0] == 0.0
    assert b[1] > 0


@settings(max_examples=80, deadline=None)
@given(one=drawn.groups())
def test_a_success_never_falls_below_its_outcome(one):
    batch = drawn.hindsight(toy.batch(one))
    for t, row in zip(batch.trajectories, HCAPO()(batch), strict=True):
        if t.success:
            assert all(a >= batch.outcome_of[t.uid] for a in row)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"omega": -0.1}, r"`omega` must be a number in \[0, inf\), got -0.1"),
        ({"gamma": 1.5}, "gamma"),
        ({"smoothing": 0.5}, "`smoothing` must be one of True, False, got 0.5"),
    ],
)
def test_impossible_options_are_refused(options, match):
    with pytest.raises(ConfigurationError, match=match):
        HCAPO(**options)
