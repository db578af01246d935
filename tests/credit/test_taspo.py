"""E4 to E7: hand-worked values, the guarantees as properties, and an independent solver for the constrained case."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from taspo_trl.credit import TurnWeights, action_support, credit_weights, token_weights
from taspo_trl.credit.base import OutcomeAdvantage, check_guarantees
from taspo_trl.credit.contrast import ContrastWeights
from taspo_trl.errors import InvariantError
from taspo_trl.types import Alternatives
from tests import reference
from tests.credit import scored as scored_batch
from tests.credit.assigning import ActionScore, assign_credit


NAN, INF = math.nan, math.inf
Q1 = math.tanh(1.0)  # 0.76159...

finite = st.floats(-5, 5)
supports = st.lists(st.one_of(finite, st.sampled_from([None, NAN, INF, -INF])), max_size=12)
advantages = st.one_of(st.floats(-3, 3), st.just(0.0))


# ---- E4 ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shifts", "kwargs", "support"),
    [
        ([0.5], {}, 0.5),
        ([1.0, -2.0, 0.5], {}, -1 / 6),
        ([5.0, -7.0, 1.0], {}, 1 / 3),  # (2 - 2 + 1) / 3
        ([5.0, 1.0], {"clip": 3.0}, 2.0),
        # Shifts below the threshold count as 0 and stay in the divisor; the threshold itself counts.
        ([0.04, -0.04, 0.05, 1.0], {"threshold": 0.05}, 1.05 / 4),
        ([0.04, -0.04], {"threshold": 0.05}, 0.0),
        ((0.25,), {"clip": 0.1}, 0.1),
    ],
)
def test_support_is_the_mean_of_clipped_shifts(shifts, kwargs, support):
    assert action_support(shifts, **kwargs) == pytest.approx(support, abs=1e-15)


@pytest.mark.parametrize("shifts", [[], (), [NAN], [0.1, INF], [-INF, 0.1], [0.1, NAN, 0.2]])
def test_no_or_non_finite_shifts_have_no_support(shifts):
    assert action_support(shifts) is None


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"clip": 0.0}, "`clip` must be positive, got 0.0"),
        ({"clip": -1.0}, "clip"),
        ({"clip": NAN}, "clip"),
        ({"threshold": -0.1}, "`threshold` must not be negative, got -0.1"),
        ({"threshold": NAN}, "threshold"),
    ],
)
def test_support_refuses_impossible_settings(kwargs, match):
    with pytest.raises(ValueError, match=match):
        action_support([0.1], **kwargs)


@example(shifts=[1.0, 1.0, 1.0], clip=0.1, threshold=0)  # 3 * 0.1 / 3 > 0.1 in floats
@given(
    shifts=st.lists(finite, min_size=1, max_size=20), clip=st.floats(0.1, 3), threshold=st.sampled_from([0, 0.05, 0.5])
)
def test_support_agrees_with_the_reference_and_stays_within_the_clip(shifts, clip, threshold):
    support = action_support(shifts, clip, threshold)
    assert support == pytest.approx(reference.support(shifts, clip, threshold), abs=1e-12)
    assert abs(support) <= clip


# ---- E5 to E7 ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [None, NAN, INF, -INF])
def test_unscorable_turn_keeps_weight_one_and_leaves_the_others_alone(bad):
    # CRD-2: d = (0.5, 0, -0.5) after centring, q = (tanh 1, 0, -tanh 1), w = 1 + 0.2 q.
    weights = credit_weights([0.5, 0.0, -0.5, bad], 0.7)
    assert weights == pytest.approx([1 + 0.2 * Q1, 1.0, 1 - 0.2 * Q1, 1.0], abs=1e-15)
    assert weights[3] == 1.0
    assert weights[0] == pytest.approx(1.152319, abs=1e-6)
    # Blame goes the other way.
    assert credit_weights([0.5, 0.0, -0.5, bad], -0.7) == pytest.approx([2 - w for w in weights], abs=1e-15)


def test_off_centre_supports_by_hand():
    # d^ = (0.8, -0.1, -0.7), tau = 1, eta = 0.3: q = tanh(d^); mean q = (0.66404 - 0.09967 - 0.60437) / 3 = -0.01333
    q = [0.664036770, -0.099667995, -0.604367777]
    expected = [1 + 0.3 * (one - sum(q) / 3) for one in q]
    weights = credit_weights([1.0, 0.1, -0.5], 2.0, temperature=1.0, weight_range=0.6)
    assert weights == pytest.approx(expected, abs=1e-8)
    assert weights == pytest.approx([1.203211, 0.974099, 0.822689], abs=1e-5)


@pytest.mark.parametrize(
    ("support", "advantage", "weights"),
    [
        ([0.5, -0.5], 1.0, [1.152319, 0.847681]),
        ([1.0, 0.0, -1.0], 1.0, [1.192806, 1.0, 0.807194]),
        ([1.0, 0.0, 0.0, 0.0], 1.0, [1.205090, *[0.931637] * 3]),
        ([1.0, 0.0, 0.0, 0.0], -1.0, [0.794910, *[1.068363] * 3]),
        ([2.0, -1.5], 1.0, [1.199636, 0.800364]),
    ],
)
def test_weights_of_the_card(support, advantage, weights):
    assert credit_weights(support, advantage) == pytest.approx(weights, abs=1e-6)
    assert credit_weights([d + 7 for d in support], advantage) == pytest.approx(weights, abs=1e-6)


def test_token_pool_of_the_card():
    first, second = token_weights([[1.0, 0.0], [-1.0]], 1.0)
    assert first == pytest.approx([1.192806, 1.0], abs=1e-6)
    assert second == pytest.approx([0.807194], abs=1e-6)


@pytest.mark.parametrize(
    ("support", "advantage"),
    [
        ([0.5, -0.5], 0.0),
        ([0.5, -0.5], -0.0),
        ([], 1.0),
        ([0.5], 1.0),
        ([0.5, None, NAN], 1.0),
        ([None, None], -1.0),
        ([0.1, 0.1, 0.1], 1.0),
    ],
)
def test_without_contrast_all_weights_are_exactly_one(support, advantage):
    assert credit_weights(support, advantage) == [1.0] * len(support)


@pytest.mark.parametrize(
    "kwargs", [{"weight_range": 0.0}, {"step_size": 0.0}, {"weight_range": 0.0, "step_size": 5.0}]
)
def test_no_room_to_move_gives_weights_of_exactly_one(kwargs):
    assert credit_weights([1.0, -1.0, 0.3], 1.0, **kwargs) == [1.0] * 3


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"advantage": NAN}, "`advantage` must be a finite number, got nan"),
        ({"advantage": INF}, "advantage"),
        ({"temperature": 0.0}, "`temperature` must be positive, got 0.0"),
        ({"temperature": -0.5}, "temperature"),
        ({"temperature": NAN}, "temperature"),
        ({"weight_range": 1.0}, r"`weight_range` must lie in \[0, 1\), got 1.0"),
        ({"weight_range": -0.1}, "weight_range"),
        ({"weight_range": NAN}, "weight_range"),
        ({"step_size": -1e-9}, "`step_size` must be a finite number that is not negative, got -1e-09"),
        ({"step_size": NAN}, "step_size"),
        ({"step_size": INF}, "step_size"),
    ],
)
@pytest.mark.parametrize("support", [[0.5, -0.5], []])
def test_weights_refuse_impossible_settings(support, kwargs, match):
    with pytest.raises(ValueError, match=match):
        credit_weights(support, **{"advantage": 1.0, **kwargs})


@settings(max_examples=300, deadline=None)
@given(
    support=supports,
    advantage=advantages,
    temperature=st.floats(0.05, 5),
    weight_range=st.floats(0, 0.99),
    step_size=st.one_of(st.none(), st.floats(0, 3), st.sampled_from([10.0, 1e3])),
)
def test_weights_agree_with_the_reference(support, advantage, temperature, weight_range, step_size):
    known = [NAN if d is None else d for d in support]
    expected = reference.weights(known, advantage, temperature, weight_range, step_size)
    weights = credit_weights(support, advantage, temperature, weight_range, step_size)
    assert np.asarray(weights) == pytest.approx(expected, abs=1e-9)


@settings(max_examples=300, deadline=None)
@given(
    support=supports,
    advantage=advantages,
    temperature=st.floats(1e-3, 5),
    weight_range=st.floats(0, 0.99),
    step_size=st.one_of(st.none(), st.floats(0, 100), st.sampled_from([1e6, 1e12, 1e300])),
)
@example(support=[0.0, 1e-9, -3.0], advantage=1.0, temperature=0.5, weight_range=0.4, step_size=1e15)
def test_weights_keep_bounds_mean_and_sign(support, advantage, temperature, weight_range, step_size):
    weights = credit_weights(support, advantage, temperature, weight_range, step_size)
    assert len(weights) == len(support)
    assert all(1 - weight_range - 1e-12 <= w <= 1 + weight_range + 1e-12 and w > 0 for w in weights)
    if support:
        assert math.fsum(weights) / len(weights) == pytest.approx(1.0, abs=1e-12)
    for d, w in zip(support, weights, strict=True):
        if d is None or not math.isfinite(d):
            assert w == 1.0
    reweighted = [advantage * w for w in weights]
    assert all(math.copysign(1, a) == math.copysign(1, advantage) for a in reweighted)


@settings(max_examples=200, deadline=None)
@given(support=st.lists(finite, min_size=2, max_size=12), step_size=st.one_of(st.none(), st.floats(0, 100)))
def test_more_support_is_never_credited_less_nor_blamed_more(support, step_size):
    praised = credit_weights(support, 1.0, step_size=step_size)
    blamed = credit_weights(support, -1.0, step_size=step_size)
    order = sorted(range(len(support)), key=support.__getitem__)
    for lower, higher in itertools.pairwise(order):
        assert praised[lower] <= praised[higher]
        assert blamed[lower] >= blamed[higher]


def test_more_support_is_credited_strictly_more_between_distinct_turns():
    weights = credit_weights([0.3, 0.1, 0.2], 1.0)
    assert weights[1] < weights[2] < weights[0]


@given(support=st.lists(finite, min_size=2, max_size=8), constant=st.floats(-3, 3))
def test_a_constant_added_to_all_supports_changes_nothing(support, constant):
    shifted = credit_weights([d + constant for d in support], 1.0)
    assert shifted == pytest.approx(credit_weights(support, 1.0), abs=1e-12)


@given(support=supports, advantage=st.floats(0.01, 3), data=st.data())
def test_permuted_turns_get_permuted_weights(support, advantage, data):
    order = data.draw(st.permutations(range(len(support))))
    weights = credit_weights(support, advantage)
    assert credit_weights([support[t] for t in order], advantage) == pytest.approx(
        [weights[t] for t in order], abs=1e-15
    )


@given(support=supports, advantage=st.floats(0.01, 3), factor=st.floats(0.1, 10))
def test_only_the_sign_of_the_advantage_counts(support, advantage, factor):
    assert credit_weights(support, advantage) == credit_weights(support, advantage * factor)


class TestLargeStepSize:
    """eta > eps_w / 2: max eta * sum q (w - 1) - 1/2 sum (w - 1)^2 with sum (w - 1) = 0 and |w - 1| <= eps_w."""

    def test_by_hand(self):
        # q = (tanh 1, 0, -tanh 1), eta = 1: the outer two are cut at the bound, the middle one stays.
        assert credit_weights([0.5, 0.0, -0.5], 1.0, step_size=1.0) == pytest.approx([1.4, 1.0, 0.6], abs=1e-15)

    def test_uneven_by_hand(self):
        # d^ = (1.5, -.5, -.5, -.5), tau = .5, eta = 1: q = (tanh 3, -tanh 1 x 3). The first is cut at +0.4; the other
        # three share -0.4 equally. Cutting without the multiplier would leave the mean at 1 + (0.4 - 1.2) / 4.
        weights = credit_weights([2.0, 0.0, 0.0, 0.0], 1.0, step_size=1.0)
        assert weights == pytest.approx([1.4, *[1 - 0.4 / 3] * 3], abs=1e-15)

    @pytest.mark.parametrize("seed", range(8))
    def test_agrees_with_a_general_solver(self, seed):
        rng = np.random.default_rng(seed)
        support = rng.normal(size=rng.integers(2, 9))
        eta, bound = rng.uniform(0.3, 3), rng.uniform(0.1, 0.9)
        q = np.tanh((support - support.mean()) / 0.5)
        solution = minimize(
            lambda x: 0.5 * x @ x - eta * q @ x,
            np.zeros(len(q)),
            jac=lambda x: x - eta * q,
            bounds=[(-bound, bound)] * len(q),
            constraints={"type": "eq", "fun": np.sum, "jac": np.ones_like},
            method="SLSQP",
            options={"ftol": 1e-14, "maxiter": 500},
        )
        assert solution.success
        weights = credit_weights(support.tolist(), 1.0, weight_range=bound, step_size=eta)
        assert np.asarray(weights) - 1 == pytest.approx(solution.x, abs=1e-6)

    @given(support=st.lists(finite, min_size=2, max_size=10))
    def test_default_step_size_touches_no_bound(self, support):
        default = credit_weights(support, 1.0)
        assert default == credit_weights(support, 1.0, step_size=0.2)
        assert all(0.6 < w < 1.4 for w in default)


class TestCappedTurns:
    """Ours: A w <= A on some turns, the weights the closest such ones (least squares) in the bounds with mean one."""

    def test_by_hand(self):
        # q = (tanh 1, 0, -tanh 1), eta = .2. The first is cut at 0; the others share its part: mu = -tanh 1 / 10.
        capped = credit_weights([0.5, 0.0, -0.5], 1.0, capped=[True, False, False])
        assert capped == pytest.approx([1.0, 1 + 0.1 * Q1, 1 - 0.1 * Q1], abs=1e-15)
        assert capped[0] == 1.0
        # Blame: the first one would be blamed less than the outcome says, and is not.
        blamed = credit_weights([0.5, 0.0, -0.5], -1.0, capped=[True, False, False])
        assert blamed == pytest.approx([1.0, 1 - 0.1 * Q1, 1 + 0.1 * Q1], abs=1e-15) and blamed[0] == 1.0

    def test_what_lies_below_one_stays_to_the_last_bit(self):
        free = credit_weights([0.5, 0.0, -0.5], 1.0)
        assert credit_weights([0.5, 0.0, -0.5], 1.0, capped=[False, True, True]) == free
        blamed = credit_weights([0.5, 0.0, -0.5], -1.0)
        assert credit_weights([0.5, 0.0, -0.5], -1.0, capped=[False, True, True]) == blamed
        assert credit_weights([0.5, 0.0, -0.5], 1.0, capped=[True] * 3) == [1.0] * 3

    @settings(max_examples=200, deadline=None)
    @given(
        support=supports,
        step_size=st.one_of(st.none(), st.floats(0, 100), st.sampled_from([1e6, 1e300])),
        data=st.data(),
    )
    def test_bounds_mean_and_cap_are_kept(self, support, step_size, data):
        capped = data.draw(st.lists(st.booleans(), min_size=len(support), max_size=len(support)))
        a = data.draw(st.sampled_from([1.0, -1.0]))
        weights = credit_weights(support, a, step_size=step_size, capped=capped)
        assert all(0.6 - 1e-12 <= w <= 1.4 + 1e-12 for w in weights)
        assert not support or math.fsum(weights) / len(weights) == pytest.approx(1.0, abs=1e-12)
        assert all(a * w <= a for w, is_capped in zip(weights, capped, strict=True) if is_capped)

    @pytest.mark.parametrize("seed", range(4))
    def test_agrees_with_a_general_solver(self, seed):
        rng = np.random.default_rng(seed)
        support = rng.normal(size=6)
        capped = rng.random(6) < 0.5
        eta = [0.2, 0.2, 1.0, 3.0][seed]
        q = np.tanh((support - support.mean()) / 0.5)
        solution = minimize(
            lambda x: 0.5 * x @ x - eta * q @ x,
            np.zeros(6),
            jac=lambda x: x - eta * q,
            bounds=[(-0.4, 0.0 if one else 0.4) for one in capped],
            constraints={"type": "eq", "fun": np.sum, "jac": np.ones_like},
            method="SLSQP",
            options={"ftol": 1e-14, "maxiter": 500},
        )
        weights = credit_weights(support.tolist(), 1.0, step_size=eta, capped=capped.tolist())
        assert np.asarray(weights) - 1 == pytest.approx(solution.x, abs=1e-6)

    @pytest.mark.parametrize("rule", [TurnWeights(cap_refused=True), ContrastWeights(cap_refused=True)])
    def test_refused_actions_get_no_better_credit_than_the_outcome(self, rule):
        episodes = [
            scored_batch.Episode(uid, a, scored_batch.actions("aligned", [1.5], [0.0], [-1.0]))
            for uid, a in (("won", 0.8), ("lost", -0.8))
        ]
        found = {
            (one.uid, t): Alternatives(("do", "rest"), ((-0.7,), (-0.7,)), {"aligned": ((d - 0.7,), (-0.7,))})
            for one in episodes
            for t, d in enumerate((1.5, 0.0, -1.0))
        }
        batch = scored_batch.batch(episodes, alternatives=found)
        refused = replace(
            batch,
            groups=tuple(
                replace(
                    group,
                    trajectories=tuple(
                        replace(t, turns=(replace(t.turns[0], valid=False), *t.turns[1:])) for t in group.trajectories
                    ),
                )
                for group in batch.groups
            ),
        )
        usual = replace(rule, cap_refused=False)
        advantages = OutcomeAdvantage()(batch)
        weighed = rule(refused, advantages)
        check_guarantees(refused, advantages, weighed, rule.needs, rule.guarantees)
        won, lost = weighed.weights
        free, let_off = usual(refused, advantages).weights
        assert free[0] > 1 and won[0] == 1.0 and won[1] > free[1]
        assert let_off[0] < 1 and lost[0] == 1.0 and lost[1] < let_off[1]
        assert rule(batch, advantages).weights == usual(batch, advantages).weights, "nothing is refused"


# ---- token-level allocation ----------------------------------------------------------------------------------------


def test_token_pool_by_hand():
    # Pool of the scorable turns: (0.5), (0, -0.5); their mean is 0. The turn with a NaN stays out as a whole.
    weights = token_weights([[0.5], [0.0, -0.5], [9.0, NAN], None, []], 1.0)
    assert weights == [
        [pytest.approx(1 + 0.2 * Q1)],
        [pytest.approx(1.0), pytest.approx(1 - 0.2 * Q1)],
        None,
        None,
        None,
    ]


def test_token_support_is_its_own_clipped_shift():
    assert token_weights([[50.0], [-0.04]], 1.0, threshold=0.05) == token_weights([[2.0], [0.0]], 1.0)
    assert token_weights([[50.0, 1.0]], 1.0, clip=1.0) == [[1.0, 1.0]]


def test_fewer_than_two_tokens_fall_back():
    assert token_weights([[0.5], None], 1.0) == [[1.0], None]
    assert token_weights([], 1.0) == []


@settings(max_examples=200, deadline=None)
@given(
    shifts=st.lists(st.lists(st.one_of(finite, finite, st.just(NAN)), max_size=5), max_size=5),
    advantage=advantages,
    step_size=st.one_of(st.none(), st.floats(0, 3)),
)
def test_token_weights_agree_with_the_reference(shifts, advantage, step_size):
    assume(shifts)
    expected = reference.token_weights(shifts, advantage, 2.0, 0.05, 0.5, 0.4, step_size)
    weights = token_weights(shifts, advantage, threshold=0.05, step_size=step_size)
    for turn, own, other in zip(shifts, weights, expected, strict=True):
        if own is None:
            assert not turn or not all(map(math.isfinite, turn))
        else:
            assert own == pytest.approx(other.tolist(), abs=1e-12)
    pool = [w for turn in weights if turn is not None for w in turn]
    if pool:
        assert math.fsum(pool) / len(pool) == pytest.approx(1.0, abs=1e-12)


# ---- a trajectory's credit -----------------------------------------------------------------------------------------


def scored(*shifts_T):
    """One score for each turn: a list of shifts, or a reason why there are none."""
    return [
        ActionScore(unscorable=one)
        if isinstance(one, str)
        else ActionScore(tuple(-1.0 for _ in one), tuple(-1.0 + shift for shift in one))
        for one in shifts_T
    ]


def masks(*lengths):
    """Replies of a token of reasoning, `length` action tokens and an end token."""
    return [(False, *[True] * length, False) if length else (False, False) for length in lengths]


def test_credit_of_paired_log_probabilities_by_hand():
    # CRD-2 through E3: plain log-probabilities -1, guided -0.5, -1.0, -1.5 and one that is not finite.
    scores = [
        ActionScore((-1.0,), (-0.5,)),
        ActionScore((-1.0,), (-1.0,)),
        ActionScore((-1.0,), (-1.5,)),
        ActionScore((-1.0,), (NAN,), unscorable="non_finite"),
    ]
    credit = assign_credit("t", 0.7, scores, masks(1, 1, 1, 1))
    assert credit.supports == (0.5, 0.0, -0.5, None)
    assert credit.weights == pytest.approx((1.152319, 1.0, 0.847681, 1.0), abs=1e-6)
    assert credit.weights[3] == 1.0
    assert (credit.traj_uid, credit.advantage, credit.fallback, credit.token_weights) == ("t", 0.7, "", None)
    assert [score.plain[1] for score in credit.scores] == [-1.0] * 4
    assert [score.guided["aligned"][1] for score in credit.scores][:3] == [-0.5, -1.0, -1.5]
    assert [score.unscorable for score in credit.scores] == ["", "", "", "non_finite"]


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_non_finite_score_without_a_mark_is_excluded_all_the_same(value):
    credit = assign_credit("t", 1.0, [*scored([0.5], [-0.5]), ActionScore((-1.0,), (value,))], masks(1, 1, 1))
    assert credit.supports[2] is None
    assert credit.weights[2] == 1.0
    assert credit.weights[0] > 1.0 > credit.weights[1]


@pytest.mark.parametrize(
    ("advantage", "scores", "kwargs", "reason"),
    [
        (1.0, [], {"no_guidance": "no_other_success"}, "no_other_success"),
        (0.0, [], {"no_guidance": "zero_advantage"}, "zero_advantage"),
        (0.0, scored([0.5], [-0.5]), {}, "zero_advantage"),
        (1.0, scored([0.5], "empty_mask"), {}, "fewer_than_two_scorable_turns"),
        (1.0, scored("over_window", "empty_mask"), {}, "fewer_than_two_scorable_turns"),
        (1.0, scored([0.5], "empty_mask"), {"allocation": "token"}, "fewer_than_two_scorable_tokens"),
        (1.0, scored("empty_mask", "empty_mask"), {"allocation": "token"}, "fewer_than_two_scorable_tokens"),
        (0.0, scored([0.5], [-0.5]), {"allocation": "token"}, "zero_advantage"),
        (1.0, [], {}, "fewer_than_two_scorable_turns"),
    ],
)
def test_fallback_has_a_reason_and_weights_of_exactly_one(advantage, scores, kwargs, reason):
    credit = assign_credit("t", advantage, scores, masks(1, 1), **kwargs)
    assert credit.fallback == reason
    assert credit.weights == (1.0, 1.0)
    assert credit.token_weights is None or set(sum(credit.token_weights, ())) == {1.0}


def test_token_weights_are_laid_over_the_reply():
    credit = assign_credit("t", 1.0, scored([0.5], "empty_mask", [0.0, -0.5]), masks(1, 0, 2), allocation="token")
    up, down = pytest.approx(1 + 0.2 * Q1), pytest.approx(1 - 0.2 * Q1)
    assert credit.token_weights == ((1.0, up, 1.0), (1.0, 1.0), (1.0, pytest.approx(1.0), down, 1.0))
    assert credit.weights == (pytest.approx(1 + 0.2 * Q1 / 3), 1.0, pytest.approx(1 - 0.2 * Q1 / 4))
    assert credit.fallback == ""


def test_one_turn_with_two_action_tokens_is_enough_for_token_allocation():
    credit = assign_credit("t", 1.0, scored([0.5, -0.5]), masks(2), allocation="token")
    assert credit.fallback == ""
    assert credit.token_weights[0][1] > 1.0 > credit.token_weights[0][2]


def test_empty_reply_counts_as_a_turn_of_weight_one():
    for allocation in ("action", "token"):
        scores = [*scored([0.5], [-0.5]), ActionScore(unscorable="no_reply")]
        credit = assign_credit("t", 1.0, scores, [*masks(1, 1), ()], allocation=allocation)
        assert len(credit.weights) == 3
        assert credit.weights[2] == 1.0


def test_settings_reach_the_equations():
    credit = assign_credit(
        "t",
        1.0,
        scored([9.0], [0.2], [-9.0]),
        masks(1, 1, 1),
        clip=1.0,
        threshold=0.3,
        temperature=2.0,
        weight_range=0.5,
        step_size=0.1,
    )
    assert credit.supports == (1.0, 0.0, -1.0)
    assert credit.weights == pytest.approx((1 + 0.1 * math.tanh(0.5), 1.0, 1 - 0.1 * math.tanh(0.5)), abs=1e-15)


@pytest.mark.parametrize("broken", [[1.2, 1.0], [1.5, 0.5], [NAN, 1.0]])
def test_broken_guarantee_is_raised_as_a_bug(monkeypatch, broken):
    monkeypatch.setattr("taspo_trl.credit.taspo.credit_weights", lambda *args: broken)
    with pytest.raises(InvariantError, match="'t' breaks its rule's promise"):
        assign_credit("t", 1.0, scored([0.5], [-0.5]), masks(1, 1))
