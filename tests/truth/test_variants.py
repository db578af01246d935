"""What benchmarks/credit_variants.py tries, by hand: which tokens count, what is left to do, equal doses."""

import math

import pytest

from benchmarks.credit_variants import (
    after_the_last_done,
    behind_the_nearest,
    contrast,
    credit,
    equal_dose_temperature,
    left_to_do,
    shift,
    where_alternatives_differ,
)
from taspo_trl.types import Alternatives
from tests import builders
from tests.credit import scored


TAKE, GO, LOOK = (1, 5, 7, 9), (1, 5, 8, 9), (1, 6, 9)
"""<a> take mug </a>, <a> take cup </a>, <a> look </a>."""


def test_tokens_count_where_another_action_goes_on_otherwise():
    assert where_alternatives_differ([TAKE, GO, LOOK]) == [
        [False, True, True, False],
        [False, True, True, False],
        [False, True, False],
    ]
    assert behind_the_nearest([TAKE, GO, LOOK]) == [
        [False, False, True, True],
        [False, False, True, True],
        [False, True, True],
    ]


def test_supports_over_these_tokens():
    found = Alternatives(
        ("take", "look"), ((-1.0, -1.0, -1.0), (-2.0, -1.0, -0.5)), {"b": ((-0.4, -0.2, -1.0), (-2.5, -1.0, -0.5))}
    )
    tokens = ((1, 5, 9), (1, 6, 9))
    assert shift(where_alternatives_differ)(found, tokens, "b") == pytest.approx(0.8)
    assert shift(behind_the_nearest)(found, tokens, "b") == pytest.approx((0.8 + 0.0) / 2)
    assert shift(where_alternatives_differ)(found, tokens, "other") is None
    # Effects 0.8 and 0; the policy's weights e^-3 and e^-3.5.
    mean = 0.8 * math.exp(-3) / (math.exp(-3) + math.exp(-3.5))
    assert contrast("shift", where_alternatives_differ)(found, tokens, "b") == pytest.approx(0.8 - mean)


def test_what_was_done_is_left_out():
    turns = [
        builders.turn(action="Go to  shelf 1", valid=True),
        builders.turn(action="take mug 1", valid=False),
        builders.turn(action="open safe 1", valid=True),
    ]
    t = builders.trajectory(turns)
    lines = [
        ("go", frozenset({"go to shelf 1"})),
        ("take", frozenset({"take mug 1"})),
        ("open", frozenset({"open safe 1"})),
    ]
    assert [left_to_do(lines, t, k) for k in range(3)] == [["go", "take", "open"], ["take", "open"], ["take", "open"]]
    assert after_the_last_done(lines, t, 1) == ["take", "open"]
    done = builders.trajectory([*turns, builders.turn(action="look")])
    assert left_to_do(lines, done, 3) == ["take"] and after_the_last_done(lines, done, 3) == []


def test_a_temperature_reaches_a_dose():
    batch = scored.batch([scored.Episode("a", 0.8, scored.actions("x", [0.1], [0.2], [0.3]))])
    supports = [[0.3, 0.0, -0.3]]
    temperature = equal_dose_temperature(batch, supports, 0.05)
    weights = [c / 0.8 for c in credit(batch, supports, temperature).values()]
    assert math.sqrt(sum((w - 1) ** 2 for w in weights) / 3) == pytest.approx(0.05, abs=1e-4)
    # q = (tanh(.3 / tau), 0, -tanh(.3 / tau)), eta = .2
    assert 0.2 * math.tanh(0.3 / temperature) * math.sqrt(2 / 3) == pytest.approx(0.05, abs=1e-4)
