"""Supports relative to the admissible actions: bounds, the mean under the policy, exact zeros; weights from them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taspo_trl.credit.base import OutcomeAdvantage, check_guarantees
from taspo_trl.credit.contrast import ContrastWeights, contrast_supports
from taspo_trl.credit.taspo import TurnWeights
from taspo_trl.types import Alternatives
from tests.credit.scored import Episode, actions, batch


FORMS = ("shift", "probability")
logp = st.floats(-6, -0.01)


def alternatives(plain, guided, block="aligned"):
    names = tuple(f"action {k}" for k in range(len(plain)))
    return Alternatives(names, tuple(map(tuple, plain)), {block: tuple(map(tuple, guided))})


@st.composite
def drawn(draw, num_actions=None):
    number = num_actions or draw(st.integers(2, 6))
    sizes = [draw(st.integers(1, 4)) for _ in range(number)]
    plain, guided = ([[draw(logp) for _ in range(size)] for size in sizes] for _ in range(2))
    return alternatives(plain, guided)


def policy_of(one):
    totals = [math.exp(math.fsum(row)) for row in one.plain]
    return [total / math.fsum(totals) for total in totals]


def test_by_hand():
    # pi = (1/2, 1/4, 1/4); mean shifts 0.4, 0, -0.4: their mean under pi is 0.1.
    half, quarter = math.log(0.5), math.log(0.25)
    one = alternatives([[half], [quarter], [quarter]], [[half + 0.4], [quarter], [quarter - 0.4]])
    assert contrast_supports(one, "aligned") == pytest.approx([0.3, -0.1, -0.5])
    # Guided probabilities proportional to e^0.4 / 2, 1 / 4, e^-0.4 / 4.
    guided = [math.exp(0.4) / 2, 0.25, math.exp(-0.4) / 4]
    guided = [g / sum(guided) for g in guided]
    mean = guided[0] / 2 + guided[1] / 4 + guided[2] / 4
    assert contrast_supports(one, "aligned", "probability") == pytest.approx([g - mean for g in guided])


@pytest.mark.parametrize("form", FORMS)
@given(one=drawn(), clip=st.floats(0.1, 3))
def test_the_mean_under_the_policy_is_zero_and_the_bounds_hold(form, one, clip):
    supports = contrast_supports(one, "aligned", form, clip)
    bound = 2 * clip if form == "shift" else 1.0
    assert all(abs(support) <= bound + 1e-12 for support in supports)
    assert math.fsum(p * s for p, s in zip(policy_of(one), supports, strict=True)) == pytest.approx(0, abs=1e-12)


@given(drawn())
def test_without_any_shift_every_contrast_of_shifts_is_exactly_zero(one):
    same = alternatives(one.plain, one.plain)
    assert contrast_supports(same, "aligned") == [0.0] * len(one.actions)


def test_a_sure_action_stands_out_though_it_has_no_shift():
    """The policy is all but certain, the guidance agrees: no shift at all, but the alternatives lose."""
    sure, rest = math.log(0.998), math.log(0.001)
    one = alternatives([[sure], [rest], [rest]], [[sure], [rest - 1], [rest - 1]])
    found = contrast_supports(one, "aligned")
    assert found[0] > 0 > found[1]


@pytest.mark.parametrize("broken", [math.nan, -math.inf])
def test_what_cannot_be_compared_has_no_support(broken):
    assert contrast_supports(alternatives([[-1.0]], [[-1.0]]), "aligned") is None
    assert contrast_supports(alternatives([[-1.0], [-2.0]], [[-1.0], [broken]]), "aligned") is None
    assert contrast_supports(alternatives([[-1.0], []], [[-1.0], []]), "aligned") is None
    assert contrast_supports(alternatives([[-1.0], [-2.0]], [[-1.0], [-2.0]]), "another") is None


@pytest.mark.parametrize("form", FORMS)
@given(found=st.lists(drawn(3), min_size=2, max_size=5), advantage=st.sampled_from([-1.3, 0.7, 0.0]))
def test_the_weights_keep_what_taspo_promises(form, found, advantage):
    episode = Episode("a", advantage, actions("aligned", *([0.1] for _ in found)))
    played = batch([episode], alternatives={("a", t): one for t, one in enumerate(found)})
    rule = ContrastWeights(form, weight_range=0.3)
    advantages = OutcomeAdvantage()(played)
    weighed = rule(played, advantages)
    check_guarantees(played, advantages, weighed, rule.needs, rule.guarantees)
    (weights,) = weighed.weights
    assert math.fsum(weights) / len(weights) == pytest.approx(1)
    assert all(0.7 - 1e-12 <= w <= 1.3 + 1e-12 for w in weights)
    assert advantage or weights == [1.0] * len(found)


def test_a_turn_without_alternatives_keeps_the_neutral_weight():
    one = alternatives([[-0.1], [-3.0]], [[-0.1], [-4.0]])
    other = alternatives([[-0.1], [-3.0]], [[-0.5], [-1.0]])
    played = batch(
        [Episode("a", 1.0, actions("aligned", [0.1], [0.2], [0.3]))], alternatives={("a", 0): one, ("a", 2): other}
    )
    (weights,) = ContrastWeights()(played, OutcomeAdvantage()(played)).weights
    assert weights[1] == 1.0 and weights[0] > 1 > weights[2]
    alone = batch([Episode("a", 1.0, actions("aligned", [0.1], [0.2]))], alternatives={("a", 0): one})
    weighed = ContrastWeights()(alone, OutcomeAdvantage()(alone))
    assert weighed.weights == [[1.0, 1.0]] and weighed.fallbacks == ["fewer_than_two_scorable_turns"]


def test_it_is_asked_for_and_off_by_default():
    assert ContrastWeights().needs.alternatives and not TurnWeights().needs.alternatives
