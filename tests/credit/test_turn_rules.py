"""AgentOPSD, GRSD, TurnSight: the numbers of their cards, and what happens at the edges."""

import math

import pytest

from taspo_trl.credit.agentopsd import AgentOPSD
from taspo_trl.credit.grsd import GRSD
from taspo_trl.credit.turnsight import TurnSight
from tests.credit import scored
from tests.credit.scored import Episode, Reply


LN2 = math.log(2.0)


# ---- AgentOPSD -----------------------------------------------------------------------------------------------------


def agentopsd(evidence, advantage=1.0, **options):
    """The first of two episodes, one of which succeeds: B_0 = 1/2."""
    rule = AgentOPSD(**{"gamma": 1.0, **options})
    batch = scored.batch(
        [
            Episode("a", advantage, scored.actions("random_success", *evidence), success=advantage > 0),
            Episode("b", -advantage, scored.actions("random_success", [0.0]), success=advantage < 0),
        ]
    )
    return rule(batch, scored.rows(batch))


def test_belief_by_hand():
    # e = (1, -1): B = .5, .731059, .5; q = ±.231059, z = ±1, m = (1.2, .8).
    weighed = agentopsd([[1.0], [-1.0]])
    assert weighed.supports[0] == pytest.approx([0.231059, -0.231059], abs=1e-6)
    assert weighed.advantages[0] == [[pytest.approx(1.1, abs=1e-6)], [pytest.approx(0.9, abs=1e-6)]]
    assert agentopsd([[1.0], [-1.0]], share=1.0).weights[0] == pytest.approx([1.2, 0.8], abs=2e-6)


def test_standardised_gains_by_hand():
    # e = (1, 0, -1): z = (1.224745, 0, -1.224745), cut at 1 ± b.
    assert agentopsd([[1.0], [0.0], [-1.0]], share=1.0).weights[0] == pytest.approx([1.2, 1.0, 0.8], abs=1e-6)
    # q = (.231059, .149738, -.149738, -.231059): z = ±(1.186786, .769102), the inner ones inside 1 ± .5.
    four = agentopsd([[1.0], [1.0], [-1.0], [-1.0]], share=1.0, reach=0.5)
    assert four.weights[0] == pytest.approx([1.5, 1.384551, 0.615449, 0.5], abs=1e-5)


def test_evidence_is_a_sum_and_fades():
    # Two tokens of .5 are one of 1; gamma .5: c = (1, .5), B = .731059, .622459.
    assert agentopsd([[0.5, 0.5], [0.0]], gamma=0.5).supports[0] == pytest.approx([0.231059, -0.108600], abs=1e-6)


def test_blame_turns_the_belief_around():
    assert agentopsd([[1.0], [-1.0]], advantage=-1.0).advantages[0] == [
        [pytest.approx(-0.9, abs=1e-6)],
        [pytest.approx(-1.1, abs=1e-6)],
    ]


def test_one_scored_turn_is_grpo():
    weighed = agentopsd([[5.0]])
    assert weighed.advantages[0] == [[1.0]]
    assert weighed.fallbacks[0] == "fewer_than_two_scorable_turns"


def test_beliefs_are_clamped():
    sure = AgentOPSD(gamma=1.0)
    batch = scored.batch([Episode("a", 1.0, scored.actions("random_success", [900.0], [-1900.0]), success=True)])
    first, second = sure(batch, scored.rows(batch)).supports[0]
    assert first == pytest.approx(1 - 1e-6 - 0.999, abs=1e-12)  # from the clamped prior to the clamped belief
    assert second == pytest.approx(2e-6 - 1.0, abs=1e-12)


# ---- GRSD ----------------------------------------------------------------------------------------------------------


def grsd(*episodes, **options):
    batch = scored.batch(episodes)
    return GRSD(**options)(batch, scored.rows(batch))


def contrasted(uid, advantage, *shifts_T, success):
    return Episode(uid, advantage, scored.actions("contrast", *shifts_T), success=success)


def unscored(uid, advantage, success):
    return Episode(uid, advantage, (Reply((True,), {}),), success=success)


def test_relative_turns_by_hand():
    # q = (1, -1/2), their mean size 3/4: g = (1.333333, -.666667).
    praised = grsd(contrasted("a", 1.0, [LN2], [-LN2], success=True), unscored("b", -1.0, False))
    assert praised.advantages[0] == [[pytest.approx(1.666667, abs=1e-6)], [pytest.approx(0.666667, abs=1e-6)]]
    blamed = grsd(contrasted("a", -1.0, [LN2], [-LN2], success=False), unscored("b", 1.0, True))
    assert blamed.advantages[0] == [[pytest.approx(-0.666667, abs=1e-6)], [pytest.approx(-1.666667, abs=1e-6)]]


def test_the_mean_size_is_the_groups():
    # q = 1 (A > 0, ln 2) and 3 (A < 0, -ln 4): mean 2, g = (.5, 1.5).
    both = grsd(contrasted("a", 1.0, [LN2], success=True), contrasted("b", -1.0, [-2 * LN2], success=False))
    assert both.weights == [[pytest.approx(1.25)], [pytest.approx(1.75)]]


def test_a_turn_is_a_mean_over_its_tokens():
    assert grsd(contrasted("a", 1.0, [3.0, -1.0], success=True)).supports == [[1.0]]


@pytest.mark.parametrize("success", [True, False])
def test_a_group_with_one_outcome_is_left_alone(success):
    weighed = grsd(contrasted("a", 1.0, [LN2], success=success), contrasted("b", -1.0, [-LN2], success=success))
    assert weighed.weights == [[1.0], [1.0]]
    assert weighed.fallbacks == ["one_outcome"] * 2


def test_bounds_of_a_relative_turn():
    # One loud turn among nine silent ones: q / mean = 10, cut at 3. Silent turns: exactly 1.
    loud = grsd(contrasted("a", 1.0, [1.0], *[[0.0]] * 9, success=True), unscored("b", -1.0, False))
    assert loud.weights[0] == [2.5, *[1.0] * 9]
    # 1 - .5 * 3 < .1: the floor. expm1(-20) is -1 against nine of 0.
    quiet = grsd(contrasted("a", 1.0, [-20.0], *[[0.0]] * 9, success=True), unscored("b", -1.0, False))
    assert quiet.weights[0][0] == 0.1
    launcher = grsd(contrasted("a", 1.0, [LN2], [-LN2], success=True), unscored("b", -1.0, False), clip=0.2)
    assert launcher.weights[0] == pytest.approx([1.1, 0.9])


# ---- TurnSight -----------------------------------------------------------------------------------------------------


def future(*shifts_D):
    """A turn whose teacher sees one, two, three turns of the future."""
    length = len(shifts_D[0])
    return Reply((True,) * length, {f"own_future_{d}": one for d, one in enumerate(shifts_D, start=1)})


def turnsight(*replies, advantage=1.0, **options):
    batch = scored.batch([Episode("a", advantage, replies)])
    return TurnSight(**options)(batch, scored.rows(batch))


def test_sight_by_hand():
    # delta = (.2, -.1, .3): two of three are positive, and .3 of the third horizon is the largest of them.
    first = future((0.2, 0.2), (-0.1, -0.1), (0.3, 0.3))
    # The gaps .3, .3 and -.1, -.1 of the chosen horizons have mean .1 and std .2: z = ±1.
    second = future((-0.1, -0.1), (-0.1, -0.1), (0.9, 0.9))
    weighed = turnsight(first, second)
    assert weighed.supports == [[pytest.approx(0.3), pytest.approx(-0.1)]]
    assert weighed.weights[0][0] == pytest.approx(1.190399, abs=1e-5)  # w = 1.380797
    assert weighed.weights[0][1] == pytest.approx(2 - 1.190399, abs=1e-5)
    assert turnsight(first, second, share=1.0).weights[0][0] == pytest.approx(1.380797, abs=1e-5)
    assert turnsight(first, second, advantage=-1.0).weights[0][0] == pytest.approx(0.809601, abs=1e-5)


def test_zero_counts_as_positive_and_a_tie_too():
    assert turnsight(future((0.0,), (-0.5,), (0.0,))).supports == [[0.0]]
    tied = turnsight(Reply((True,), {"own_future_1": (-0.5,), "own_future_2": (0.2,), "own_future_3": None}))
    assert tied.supports == [[0.2]]
    assert turnsight(future((-0.5,), (-0.1,), (3.0,))).supports == [[-0.5]]


def test_a_group_without_spread_is_left_alone():
    assert turnsight(future((0.5,), (0.5,), (0.5,)), future((0.5,), (0.5,), (0.5,))).weights == [[1.0, 1.0]]


def test_statistics_are_the_groups():
    alone = scored.batch([Episode("a", 1.0, (future((1.0,), (1.0,), (1.0,)),))])
    assert TurnSight()(alone, [[1.0]]).weights == [[1.0]]
    pair = scored.batch(
        [Episode(uid, 1.0, (future(*[(d,)] * 3),)) for uid, d in (("a", 1.0), ("b", -1.0))],
        [Episode("c", 1.0, (future(*[(9.0,)] * 3),))],
    )
    (first,), (second,), (other,) = TurnSight()(pair, [[1.0]] * 3).weights
    assert first == pytest.approx(1 + 0.25 * math.tanh(1.0), abs=1e-5)
    assert second == pytest.approx(1 - 0.25 * math.tanh(1.0), abs=1e-5)
    assert other == 1.0


def test_horizons_name_their_blocks():
    assert TurnSight(horizons=(1, 4)).needs.blocks == ("own_future_1", "own_future_4")
