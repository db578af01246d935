"""GiGPO and PACE-Q: values by hand, an independent float64 reference, and the odd cases."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taspo_trl.credit.gigpo import GiGPO
from taspo_trl.errors import ConfigurationError
from tests.credit import drawn, toy


def step_term(rule, batch):
    """A^S_it, the part that is not A_i."""
    without = GiGPO(normalisation=rule.normalisation, omega=0.0)(batch)
    return [[x - a for x, a in zip(*rows, strict=True)] for rows in zip(rule(batch), without, strict=True)]


def reference(batch, gamma, std, by_action=False):
    """A_it of one group as matrix products: S_rs = 1 where rows r and s stand in one state."""
    members = [t for t in batch.trajectories if t.is_usable]
    r = np.array([t.reward for t in members])
    owner = np.repeat(np.arange(len(members)), [len(t.turns) for t in members]).astype(int)
    if len(owner) == 0:
        return {}
    centred = r - r.mean() if np.ptp(r) > 1e-8 else np.zeros(len(r))
    episode = centred / (r.std(ddof=1) + 1e-4) if std and len(r) > 1 and np.ptp(r) > 1e-8 else centred
    left = np.concatenate([np.arange(len(t.turns))[::-1] for t in members])
    gain = gamma**left * r[owner]
    seen = np.array([turn.observation for t in members for turn in t.turns])
    done = np.array([turn.action for t in members for turn in t.turns])
    same = (seen[:, None] == seen[None, :]).astype(float)
    count = same.sum(1)
    mean = same @ gain / count
    spread = np.array([np.ptp(gain[row > 0]) for row in same])
    variance = (same * (gain[None, :] - mean[:, None]) ** 2).sum(1) / np.maximum(count - 1, 1)
    alike = same * (done[:, None] == done[None, :]) if by_action else np.eye(len(gain))
    value = alike @ gain / alike.sum(1)
    term = np.where(spread > 1e-8, (value - mean) / (np.sqrt(variance) + 1e-6 if std else 1.0), 0.0)
    total = episode[owner] + term
    return {t.uid: total[owner == i].tolist() for i, t in enumerate(members)}


def test_mean_norm_by_hand():
    rule = GiGPO(normalisation="mean_norm")
    assert step_term(rule, toy.batch()) == toy.near(
        [[0.486875, 0.333333], [-0.463125, -0.475], [-0.463125, -0.666667], [0.439375, 0.475, 0.333333]]
    )
    # A_i = r_i - mean = 0.5, without the standard deviation.
    assert rule(toy.batch())[0] == pytest.approx([0.986875, 0.833333], abs=1e-6)


def test_mean_std_norm_by_hand():
    a, b, c, _ = step_term(GiGPO(), toy.batch())
    assert [c[1], b[1], a[0]] == pytest.approx([-1.154699, -0.707106, 0.909837], abs=1e-6)
    assert GiGPO()(toy.batch())[0][0] == pytest.approx(0.865875 + 0.909837, abs=2e-6)


def test_pace_q_by_hand():
    a, b, c, d = step_term(GiGPO(normalisation="mean_norm", peers="action"), toy.batch())
    assert [a[0], c[0], b[0], d[0]] == pytest.approx([0.011875, 0.011875, -0.011875, -0.011875], abs=1e-12)
    assert [a[1], c[1], b[1], d[1]] == pytest.approx([0.333333, -0.666667, -0.475, 0.475], abs=1e-6)
    assert d[2] == pytest.approx(0.333333, abs=1e-6)


def test_omega_weighs_the_step_term():
    once, thrice = step_term(GiGPO(), toy.batch()), step_term(GiGPO(omega=3.0), toy.batch())
    assert thrice == toy.near([[3 * x for x in row] for row in once], 1e-12)


@settings(max_examples=150, deadline=None)
@given(one=drawn.groups(), gamma=st.sampled_from([0.0, 0.5, 0.95, 1.0]), std=st.booleans(), by_action=st.booleans())
def test_agrees_with_the_reference(one, gamma, std, by_action):
    batch = toy.batch(one)
    rule = GiGPO("mean_std_norm" if std else "mean_norm", gamma=gamma, peers="action" if by_action else "state")
    expected = reference(batch, gamma, std, by_action)
    for t, row in zip(batch.trajectories, rule(batch), strict=True):
        assert row == pytest.approx(expected[t.uid] if t.is_usable else [0.0] * len(row), abs=1e-8, rel=1e-6)


def test_among_successes_the_earlier_end_is_better():
    group = toy.group(
        toy.play("a", ("s0", "A", "s1", "B", "solved"), 1.0),
        toy.play("b", ("s0", "C", "s2", "C", "s3", "B", "solved"), 1.0),
    )
    a, b = GiGPO(normalisation="mean_norm")(toy.batch(group))
    assert a == pytest.approx([0.02375, 0.0], abs=1e-12)
    assert b == pytest.approx([-0.02375, 0.0, 0.0], abs=1e-12)


def test_a_state_visited_twice_by_one_trajectory_is_its_own_peer():
    # Returns .857375 and .95 in s0: half their difference, 0.0463125, is taken from the earlier visit.
    alone = toy.group(toy.play("a", ("s0", "A", "s1", "A", "s0", "B", "s2", "B", "solved"), 1.0))
    (row,) = GiGPO(normalisation="mean_norm")(toy.batch(alone))
    assert row == pytest.approx([-0.0463125, 0.0, 0.0463125, 0.0], abs=1e-12)


def test_one_turn_gives_the_centred_reward_twice():
    group = toy.group(*(toy.play(f"t{i}", ("s0", "A", "x"), r) for i, r in enumerate((1.0, 0.0, 0.0))))
    assert GiGPO(normalisation="mean_norm")(toy.batch(group)) == toy.near([[4 / 3], [-2 / 3], [-2 / 3]], 1e-12)


def test_similar_texts_are_one_state_when_asked():
    text = "You are at the shelf 1. You see a mug 1 and a plate 2."
    near = text.replace("mug 1", "mug 3")
    group = toy.group(toy.play("a", (text, "A", "x"), 1.0), toy.play("b", (near, "B", "y"), 0.0))
    apart, together = GiGPO("mean_norm"), GiGPO("mean_norm", similarity=0.95)
    assert apart(toy.batch(group)) == [[0.5], [-0.5]]
    assert together(toy.batch(group)) == [[1.0], [-1.0]]
    assert (apart.report(toy.batch(group)), together.report(toy.batch(group))) == (
        {"credit/singleton_turns": 1.0},
        {"credit/singleton_turns": 0.0},
    )


def test_the_order_of_trajectories_does_not_decide_what_is_similar():
    # "aaaa" is like "aaab" and "aaab" like "aabb" (ratio 3/4), but the first is not like the last (2/4).
    members = [toy.play(text, (text, "A", "x"), float(i == 2)) for i, text in enumerate(("aaaa", "aaab", "aabb"))]
    rule = GiGPO("mean_norm", similarity=0.75)
    values = dict(zip(["aaaa", "aaab", "aabb"], rule(toy.batch(toy.group(*members))), strict=True))
    assert values["aaaa"] == values["aaab"] == pytest.approx([-1 / 3])
    turned = rule(toy.batch(toy.group(*members[::-1])))
    assert dict(zip(["aabb", "aaab", "aaaa"], turned, strict=True)) == values


def test_similarity_of_what_is_no_text_is_refused():
    batch = toy.batch(state_key=lambda trajectory, t: (toy.observation(trajectory, t), None))
    with pytest.raises(ConfigurationError, match=r"`similarity` \(0.95\) compares texts.*'observation'"):
        GiGPO(similarity=0.95)(batch)


def test_report_counts_turns_that_stand_alone():
    # T0: four turns stand in s0, three in s1, two in s2.
    assert GiGPO().report(toy.batch()) == {"credit/singleton_turns": 0.0}
    lone = toy.group(toy.play("e", ("s7", "A", "s8", "A", "s9", "A", "x")), group_id="h")
    assert GiGPO().report(toy.batch(toy.t0(), lone)) == {"credit/singleton_turns": 3 / 12}
    assert GiGPO().report(toy.batch(toy.group())) == {"credit/singleton_turns": 0.0}


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"normalisation": "std"}, "`normalisation` must be one of 'mean_std_norm', 'mean_norm', got 'std'"),
        ({"peers": "both"}, "`peers` must be one of 'state', 'action', got 'both'"),
        ({"omega": -1.0}, r"`omega` must be a number in \[0, inf\), got -1.0"),
        ({"omega": math.inf}, "omega"),
        ({"gamma": 1.01}, r"`gamma` must be a number in \[0, 1\], got 1.01"),
        ({"gamma": math.nan}, "gamma"),
        ({"gamma": "0.9"}, "gamma"),
        ({"similarity": 0.0}, r"`similarity` must be a number in \(0, 1\], got 0.0"),
    ],
)
def test_impossible_options_are_refused(options, match):
    with pytest.raises(ConfigurationError, match=match):
        GiGPO(**options)
