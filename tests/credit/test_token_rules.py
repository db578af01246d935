"""RLSD, SERL, StepOPSD, OPID: the numbers of their cards, references in float64, what happens at the edges."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taspo_trl.credit.agentopsd import AgentOPSD
from taspo_trl.credit.base import Needs
from taspo_trl.credit.factor import HTA
from taspo_trl.credit.grpo import GRPO
from taspo_trl.credit.opid import OPID
from taspo_trl.credit.rlsd import RLSD
from taspo_trl.credit.serl import SERL, inside_the_tags
from taspo_trl.credit.stepopsd import StepOPSD
from taspo_trl.methods import Recipe
from tests.credit import scored
from tests.credit.scored import Episode, Reply


LN2 = math.log(2.0)
BLOCK = {RLSD: "random_success", SERL: "serl_immediate", StepOPSD: "first_success_failed_only"}


def tokens(rule, advantage, *shifts_T, **fields):
    """A~ of a single episode whose replies are all action."""
    batch, rows = scored.one_group(rule.needs.blocks[0], advantage, *shifts_T, **fields)
    return rule(batch, rows).advantages[0]


# ---- RLSD and SERL: one formula ------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [RLSD(), SERL()])
@pytest.mark.parametrize(
    ("advantage", "shift", "expected"),
    [
        (1.0, LN2, 1.1),
        (1.0, -1.0, 0.9),
        (-1.0, LN2, -0.9),
        (1.0, 0.1, 1.052585),
        (-1.0, 0.1, -0.952419),
        (0.0, LN2, 0.0),
    ],
)
def test_token_values_by_hand(rule, advantage, shift, expected):
    assert tokens(rule, advantage, [shift]) == [pytest.approx([expected], abs=1e-6)]


def test_weights_before_the_share_by_hand():
    # lambda = 1 shows w itself.
    rule = RLSD(share=1.0)
    assert tokens(rule, 1.0, [LN2, -1.0, 0.1]) == [pytest.approx([1.2, 0.8, 1.105171], abs=1e-6)]
    assert tokens(rule, -1.0, [LN2, 0.1]) == [pytest.approx([-0.8, -0.904837], abs=1e-6)]


@pytest.mark.parametrize("rule", [RLSD(), SERL(), StepOPSD(normalise=False)])
@pytest.mark.parametrize(("step", "share"), [(0, 0.5), (10, 0.4), (25, 0.25), (50, 0.0), (60, 0.0)])
def test_the_share_falls_to_zero_in_fifty_updates(rule, step, share):
    assert tokens(rule, 1.0, [5.0], step=step) == [[pytest.approx(1.0 + 0.2 * share, abs=1e-12)]]


def test_schedules_of_other_lengths():
    constant, third = SERL(zero_at=0), SERL(zero_at=None)
    assert tokens(constant, 1.0, [5.0], step=1000) == [[pytest.approx(1.1)]]
    assert tokens(third, 1.0, [5.0], step=10, num_steps=60) == [[pytest.approx(1.05)]]
    assert tokens(third, 1.0, [5.0], step=25) == [[pytest.approx(1.05)]]  # a run without an end: the literal 50


@pytest.mark.parametrize("rule", [RLSD(share=0.0), SERL(share=0.0), SERL(zero_at=5), RLSD(zero_at=5)])
def test_without_a_share_it_is_grpo_to_the_last_bit(rule):
    batch, rows = scored.one_group(rule.needs.blocks[0], 0.865875, [3.0, -1.0], step=5)
    weighed = rule(batch, rows)
    assert weighed.advantages == [[[0.865875, 0.865875]]]
    assert weighed.fallbacks == ["zero_share"]


@pytest.mark.parametrize(
    "rule",
    [RLSD(zero_at=5), SERL(zero_at=5), StepOPSD(zero_at=5), AgentOPSD(zero_at=5), HTA(zero_at=6), HTA(warmup=6)],
    ids=repr,
)
def test_scores_without_a_share_need_not_be_there(rule):
    block = rule.needs.blocks[0]
    batch, rows = scored.one_group(block, 0.865875, [3.0, -1.0], [2.0], step=5)
    unscored = dataclasses.replace(batch, scores={})
    recipe = Recipe("test", weight=rule)
    assert not recipe.reads_scores(batch) and batch.scores
    assert rule(unscored, rows).advantages == rule(batch, rows).advantages
    assert rule(unscored, rows).fallbacks == ["zero_share"]
    before = dataclasses.replace(batch, step=4)
    assert recipe.reads_scores(before) == (not isinstance(rule, HTA))
    assert dataclasses.replace(recipe, advantage=Scored()).reads_scores(batch), "another rule reads them"


class Scored(GRPO):
    needs = Needs(("random_success",), "action")


def test_rlsd_may_weigh_blame_only():
    rule = RLSD(blame_only=True)
    assert tokens(rule, 1.0, [LN2]) == [[1.0]]
    assert tokens(rule, -1.0, [LN2]) == [[pytest.approx(-0.9)]]


def reference(shifts, mask, advantage, step, *, share=0.5, zero_at=50, clip=0.2):
    """A~ of one turn in NumPy, written from the papers' formula; `mask`: the tokens that are weighed."""
    lam = share * max(0.0, 1.0 - step / zero_at)
    weight = np.clip(np.exp(np.sign(advantage) * np.asarray(shifts, dtype=np.float64)), 1 - clip, 1 + clip)
    return np.where(mask, advantage * ((1 - lam) + lam * weight), advantage)


@settings(max_examples=100, deadline=None)
@given(groups=scored.groups(["b"], spoiled=False), step=st.integers(0, 60), clip=st.sampled_from([0.05, 0.2, 0.9]))
def test_rlsd_and_serl_agree_with_the_reference(groups, step, clip):
    for rule, scope in ((RLSD(block="b", clip=clip), "reply"), (SERL(block="b", clip=clip), "action")):
        batch = scored.batch(*groups, scope=scope, step=step)
        weighed = rule(batch, scored.rows(batch))
        for episode, of_turns in zip((e for group in groups for e in group), weighed.advantages, strict=True):
            for reply, own in zip(episode.replies, of_turns, strict=True):
                mask = [True] * len(reply.mask) if scope == "reply" else reply.mask
                expected = reference(reply.shifts["b"], mask, episode.advantage, step, clip=clip)
                assert own == pytest.approx(expected.tolist(), abs=1e-12)


def test_huge_shifts_stay_finite():
    assert tokens(RLSD(), 1.0, [1e6, -1e6]) == [pytest.approx([1.1, 0.9])]
    assert tokens(StepOPSD(kernel="exp", normalise=False), -1.0, [1e6, -1e6]) == [pytest.approx([-0.9, -1.1])]


# ---- SERL's span ---------------------------------------------------------------------------------------------------


def test_serl_leaves_tokens_outside_the_action_alone():
    reply = Reply((False, True, True, False), {"serl_immediate": (9.0, LN2, -1.0, 9.0)})
    batch = scored.batch([Episode("a", 1.0, (reply,))], scope="action")
    weighed = SERL()(batch, scored.rows(batch))
    assert weighed.advantages == [[[1.0, pytest.approx(1.1), pytest.approx(0.9), 1.0]]]
    assert weighed.supports == [[pytest.approx((LN2 - 1.0) / 2)]]
    assert weighed.fallbacks == [""]


@dataclasses.dataclass
class Tagged:
    action_mask: tuple[bool, ...]
    content_mask: tuple[bool, ...] = ()


def test_the_tags_are_left_out_where_the_turn_knows_them():
    assert inside_the_tags(Tagged((True,) * 3, (False, True, False))) == (False, True, False)
    assert inside_the_tags(Tagged((True,) * 3)) == (True,) * 3
    # A tag that was never closed: no executed action, but a content.
    assert inside_the_tags(Tagged((False,) * 3, (False, True, True))) == (False, True, True)


def test_serl_reports_how_far_it_moves_the_mean_of_an_action():
    # exp(.1) = 1.105171; cut 1.2 and .8 have mean 1; A < 0: exp(-.1) = .904837. The median of .105171, 0, .095163.
    replies = scored.actions("serl_immediate", [0.1], [LN2, -1.0])
    batch = scored.batch(
        [Episode("a", 1.0, replies), Episode("b", -1.0, replies[:1]), Episode("c", 0.0, replies[:1])], step=60
    )
    metrics = SERL()(batch, scored.rows(batch)).metrics  # the schedule has ended; the teacher's word is the same
    assert metrics == {"credit/action_mean_drift": pytest.approx(0.095163, abs=1e-6)}
    nothing = scored.batch([Episode("a", 0.0, replies)])
    assert SERL()(nothing, scored.rows(nothing)).metrics == {}


# ---- StepOPSD ------------------------------------------------------------------------------------------------------


def test_stepopsd_token_by_hand():
    # 2 sigmoid(1) = 1.462117, cut to 1.2, mixed to 1.1.
    assert tokens(StepOPSD(normalise=False), 1.0, [1.0]) == [[pytest.approx(1.1)]]
    assert tokens(StepOPSD(normalise=False, clip=0.9, share=1.0), 1.0, [1.0]) == [[pytest.approx(1.462117, abs=1e-6)]]
    exp = StepOPSD(normalise=False, kernel="exp", clip=0.9, share=1.0)
    assert tokens(exp, -1.0, [0.1]) == [[pytest.approx(-0.904837, abs=1e-6)]]


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_stepopsd_takes_back_what_it_said_between_the_steps(advantage):
    # Means 1.1 and .9: factors 1 / 1.1 = .909091 and 1 / .9 = 1.111111.
    first, second = tokens(StepOPSD(), advantage, [3.0], [-3.0])
    assert first == [pytest.approx(advantage)]
    assert second == [pytest.approx(advantage)]


def test_stepopsd_keeps_credit_inside_a_step():
    # (1.1, .9) has mean 1 and (1.1, 1.1) mean 1.1: target 1.05, factors 1.05 and 1.05 / 1.1.
    first, second = tokens(StepOPSD(), 1.0, [3.0, -3.0], [3.0, 3.0])
    assert first == pytest.approx([1.155, 0.945])
    assert second == pytest.approx([1.05, 1.05])


def test_stepopsd_cuts_the_factor_at_a_half_and_two():
    # share 1, clip .99: means 1.99 and .01, target 1: factors .502513 and 2 (not 100).
    rule = StepOPSD(share=1.0, clip=0.99, kernel="exp")
    assert tokens(rule, 1.0, [9.0], [-9.0]) == [[pytest.approx(1.0)], [pytest.approx(0.02)]]


def test_stepopsd_with_one_step_is_not_normalised():
    assert tokens(StepOPSD(), 1.0, [3.0]) == [[pytest.approx(1.1)]]
    # Nor does a turn without score count as a step.
    replies = (*scored.actions("first_success_failed_only", [3.0]), Reply((True,), {}))
    batch = scored.batch([Episode("a", 1.0, replies)])
    assert StepOPSD()(batch, scored.rows(batch)).advantages == [[[pytest.approx(1.1)], [1.0]]]


def test_stepopsd_leaves_tokens_outside_the_action_alone():
    span = {"first_success_failed_only": (9.0, 3.0, 9.0)}
    batch = scored.batch(
        [
            Episode(
                "a", -2.0, (Reply((False, True, False), span), *scored.actions("first_success_failed_only", [-3.0]))
            )
        ],
        scope="action",
    )
    assert StepOPSD()(batch, scored.rows(batch)).advantages == [
        [[-2.0, pytest.approx(-2.0), -2.0], [pytest.approx(-2.0)]]
    ]


# ---- OPID ----------------------------------------------------------------------------------------------------------


def opid(advantage, shifts, usable=True, **options):
    batch = scored.batch([Episode("a", advantage, (Reply((True,), shifts),), usable=usable)])
    return OPID(**options)(batch, scored.rows(batch))


@pytest.mark.parametrize(("advantage", "shift", "expected"), [(1.0, 0.8, 1.0008), (0.0005, -0.8, -0.0003)])
@pytest.mark.parametrize("block", ["episode", "step"])
def test_opid_by_hand(advantage, shift, expected, block):
    weighed = opid(advantage, {block: (shift,)})
    assert weighed.advantages == [[[pytest.approx(expected, abs=1e-15)]]]
    assert weighed.supports == [[pytest.approx(shift / 1000)]]


def test_a_step_skill_replaces_the_episode_skill_of_its_turn():
    both = {"episode": (0.8,), "step": (-2.0,)}
    assert opid(1.0, both).advantages == [[[pytest.approx(0.998, abs=1e-15)]]]
    assert opid(1.0, both, additive=True).advantages == [[[pytest.approx(0.9988, abs=1e-15)]]]
    assert opid(1.0, both, additive=True, episode_weight=0.1, step_weight=0.0).advantages == [[[pytest.approx(1.08)]]]


def test_opid_moves_a_flat_group_but_no_unusable_trajectory():
    flat = opid(0.0, {"episode": (0.8,)})
    assert flat.advantages == [[[pytest.approx(0.0008)]]]
    assert flat.fallbacks == [""]
    broken = opid(0.0, {"episode": (0.8,)}, usable=False)
    assert broken.advantages == [[[0.0]]]
    assert broken.fallbacks == ["unusable"]
    assert opid(0.0, {}).fallbacks == ["no_scored_turn"]
