"""The study's statistics against values worked out by hand."""

from __future__ import annotations

import math

import pytest

from benchmarks.study.inference import (
    half_width,
    holm,
    is_equivalent,
    mean_interval,
    seed_task_interval,
    share,
    sign_flip_p,
)


def test_the_t_interval_is_the_one_of_the_tables():
    # Mean 2, standard deviation 1, t(0.975, 2) = 4.3027: half = 4.3027 / sqrt(3).
    found = mean_interval([1.0, 2.0, 3.0])
    assert found.value == 2.0 and found.high - 2.0 == pytest.approx(4.302653 / math.sqrt(3), abs=1e-5)
    # Ten seeds of the same spread: t(0.975, 9) = 2.2622.
    assert half_width([1.0, 2.0, 3.0], seeds=10) == pytest.approx(2.262157 / math.sqrt(10), abs=1e-5)
    assert math.isnan(mean_interval([1.0]).low) and math.isnan(mean_interval([]).value)


def test_sign_flips_are_counted_exactly():
    assert sign_flip_p([0.1] * 5) == 2 / 2**5
    assert sign_flip_p([0.3, 0.1, 0.2, 0.4, 0.5, 0.6, 0.7, 0.1, 0.2, 0.3]) == 2 / 2**10
    assert sign_flip_p([1.0, -1.0]) == 1.0
    # Sums of ±1 ±2 ±3: 6, 4, 2, 0 and their negatives, 0 twice; as far from 0 as 1 + 2 - 3 = 0 is everything, as 4
    # (-1 + 2 + 3) are four of eight.
    assert sign_flip_p([1.0, 2.0, -3.0]) == 1.0 and sign_flip_p([-1.0, 2.0, 3.0]) == 4 / 8
    assert sign_flip_p([0.0] * 3) == 1.0
    with pytest.raises(ValueError, match="21 differences"):
        sign_flip_p([1.0] * 21)


def test_holm_steps_down_and_never_falls():
    # Sorted .01 x 4 = .04, .02 x 3 = .06, .03 x 2 = .06, .5 x 1.
    assert holm({"a": 0.03, "b": 0.01, "c": 0.5, "d": 0.02}) == pytest.approx(
        {"a": 0.06, "b": 0.04, "c": 0.5, "d": 0.06}
    )
    assert holm({"a": 0.04, "b": 0.03}) == pytest.approx({"a": 0.06, "b": 0.06})  # .04 x 1 would be below its elder
    assert holm({"a": 0.9, "b": 0.8})["b"] == 1.0


def test_a_share_of_the_ceiling_is_known_where_the_ceiling_is():
    # A ceiling without spread: the interval of the gains, divided.
    gains, plain = [0.01, 0.02, 0.03], mean_interval([0.01, 0.02, 0.03])
    found = share(gains, [0.1] * 3)
    assert (found.value, found.low, found.high) == pytest.approx(
        [one / 0.1 for one in (plain.value, plain.low, plain.high)]
    )
    # Half of the ceiling in every seed: the ratio is known exactly though both vary.
    exact = share([0.05, 0.10, 0.06], [0.10, 0.20, 0.12])
    assert (exact.value, exact.low, exact.high) == pytest.approx((0.5, 0.5, 0.5))
    assert math.isnan(share(gains, [-0.1, -0.2, -0.1]).value), "an oracle that learns less is no ceiling"
    vague = share(gains, [-0.1, 0.2, 0.01])
    assert math.isfinite(vague.value) and math.isnan(vague.low)


def test_equivalence_takes_the_90_percent_interval():
    assert is_equivalent([0.01, -0.01, 0.0, 0.005], 0.05)
    assert not is_equivalent([0.2, -0.2, 0.0], 0.05)  # a mean of 0 proves nothing
    # Mean .03, deviation .02 / sqrt(2): inside with 90 % (half .0166), not with 95 % (half .0225).
    values = [0.04, 0.02, 0.04, 0.02]
    assert mean_interval(values).high > 0.048 > mean_interval(values, 0.9).high
    assert is_equivalent(values, 0.048)


def test_drawing_seeds_and_tasks_keeps_the_mean_and_is_wider_than_nothing():
    found = seed_task_interval([[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0, 1.0]])
    assert found.value == 0.5 and 0.0 <= found.low < 0.5 < found.high <= 1.0
    constant = seed_task_interval([[0.25] * 4] * 3)
    assert (constant.low, constant.high) == pytest.approx((0.25, 0.25))
