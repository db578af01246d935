"""GraphGPO: the graph of T0 by hand, ways that are joined from several trajectories, and the odd cases."""

import pytest
from hypothesis import given, settings

from taspo_trl.credit.graphgpo import GraphGPO
from taspo_trl.errors import ConfigurationError
from tests.credit import drawn, toy


def term(batch, **options):
    """A^G_it alone."""
    return GraphGPO(episode_weight=0.0, **options)(batch)


def test_t0_by_hand():
    # dist: s1 1, s0 2, s2 2, x = y = 3. R: a (1, 10), b (.1, .01), c (1, .01), d (.1, 1, 10).
    assert term(toy.batch()) == toy.near(
        [
            [0.866024, 0.577350],
            [-0.866024, -0.707106],
            [0.866024, -1.154700],
            [-0.866024, 0.707106, 0.577350],
        ]
    )


def test_a_failure_may_gain_by_a_good_step():
    _, _, c, _ = GraphGPO()(toy.batch())
    assert c[0] > 0 > c[1]
    assert c[0] == pytest.approx(-0.865875 + 0.866024, abs=1e-5)


def test_weights_of_both_terms():
    outcome, steps = GraphGPO(step_weight=0.0)(toy.batch()), term(toy.batch())
    assert outcome == toy.near([[toy.HIGH] * 2, [toy.LOW] * 2, [toy.LOW] * 2, [toy.HIGH] * 3])
    assert GraphGPO(episode_weight=2.0, step_weight=0.5)(toy.batch()) == toy.near(
        [[2 * o + 0.5 * s for o, s in zip(*rows, strict=True)] for rows in zip(outcome, steps, strict=True)], 1e-12
    )


def test_the_difference_counts_from_the_state_now():
    # In s0 (dist 2) going to s1 (1) gives 10 * .5^0, to s2 (2) 10 * .5^1: the same order, only scaled.
    a, b, *_ = term(toy.batch(), step_return="difference", gamma=0.5)
    assert (a[0], b[0]) == (pytest.approx(0.866025, abs=1e-5), pytest.approx(-0.866025, abs=1e-5))


def test_without_a_success_there_is_no_goal():
    group = toy.group(toy.play("a", ("s0", "A", "s1", "B", "x"), 0.4, success=False), toy.play("b", ("s0", "B", "y")))
    assert term(toy.batch(group)) == [[0.0, 0.0], [0.0]]


def test_ways_are_joined_from_several_trajectories():
    # c never reaches the goal, but its s3 -> s1 joins a's way: s3 has dist 2, and going there beats going to x (3).
    group = toy.group(
        toy.play("a", ("s0", "A", "s1", "B", "solved"), 1.0),
        toy.play("c", ("s2", "A", "s3", "A", "s1", "C", "x")),
        toy.play("d", ("s2", "B", "x")),
    )
    _, c, d = term(toy.batch(group))
    assert c[0] > 0 > d[0]
    assert c[1] == 0.0


def test_a_state_without_a_way_is_one_further_than_the_furthest():
    # s0 and s1 are one step away, and nothing is further: x, which has no way, counts as two.
    group = toy.group(
        toy.play("a", ("s0", "A", "solved"), 1.0),
        toy.play("b", ("s0", "B", "s1", "A", "solved"), 1.0),
        toy.play("c", ("s0", "C", "x")),
    )
    worth = [10 * 0.5**0, 10 * 0.5**1, 10 * 0.5**2]
    mean = sum(worth) / 3
    std = (sum((r - mean) ** 2 for r in worth) / 2) ** 0.5
    values = term(toy.batch(group), gamma=0.5)
    assert [row[0] for row in values] == pytest.approx([(r - mean) / std for r in worth], abs=1e-6)


def test_what_is_seen_at_the_goal_is_no_state():
    # The success ends with the text that another turn started from: that turn does not stand at the goal.
    group = toy.group(
        toy.play("a", ("s0", "A", "Nothing happens."), 1.0),
        toy.play("b", ("s0", "B", "Nothing happens.", "C", "x")),
    )
    a, b = term(toy.batch(group))
    assert a[0] > 0 > b[0]


def test_a_state_visited_twice_counts_the_later_exit():
    alone = toy.group(toy.play("a", ("s0", "A", "s0", "B", "solved"), 1.0))
    assert term(toy.batch(alone)) == toy.near([[-0.707107, 0.707107]], 1e-5)


def test_one_turn_and_no_turn():
    group = toy.group(
        toy.play("a", ("s0", "A", "solved"), 1.0), toy.play("b", ("s0", "B", "x")), toy.play("c", ("s0",))
    )
    assert term(toy.batch(group)) == toy.near([[0.707107], [-0.707107], []], 1e-5)


@settings(max_examples=60, deadline=None)
@given(one=drawn.groups())
def test_a_step_nearer_to_the_goal_is_never_worth_less(one):
    # The term of a turn orders a state's turns by how far their next state is, whatever the distances are.
    batch = toy.batch(one)
    by_exit = {}
    for t, row in zip(batch.trajectories, term(batch), strict=True):
        for k, value in enumerate(row):
            is_goal = t.success and k == len(row) - 1
            by_exit.setdefault((toy.observation(t, k), is_goal or toy.observation(t, k + 1)), []).append((t, value))
    for (state, following), found in by_exit.items():
        values = [value for t, value in found if t.is_usable]
        assert values == pytest.approx(values[:1] * len(values), abs=1e-12)
        if following is True and values:
            others = [v for (s, _), seen in by_exit.items() if s == state for t, v in seen if t.is_usable]
            assert values[0] >= max(others) - 1e-12


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"gamma": 0.0}, r"`gamma` must be a number in \(0, 1\], got 0.0"),
        ({"step_weight": -1}, "step_weight"),
        ({"episode_weight": "x"}, "episode_weight"),
        ({"step_return": "now"}, "`step_return` must be one of 'next', 'difference', got 'now'"),
    ],
)
def test_impossible_options_are_refused(options, match):
    with pytest.raises(ConfigurationError, match=match):
        GraphGPO(**options)
