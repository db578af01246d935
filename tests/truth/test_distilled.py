"""The credit of a distillation term against its gradient, written down by hand."""

import math
from types import SimpleNamespace

import pytest

from taspo_trl.config import TASPOConfig
from taspo_trl.errors import ConfigurationError
from taspo_trl.loss.distillation.sdar import SDAR
from taspo_trl.methods import METHODS
from taspo_trl.truth.assess import credit_of, measured_needs, recipes_of
from taspo_trl.truth.distilled import distilled_credit
from taspo_trl.types import ReplyScore
from tests.credit import toy


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def test_sampled_tokens_are_pushed_as_hard_as_the_gate_is_open():
    """SDAR's gradient on log pi is -sigmoid(beta * shift) for a token; the policy's is A~."""
    trajectories = [SimpleNamespace(uid="a")]
    scores = {("a", 0): ReplyScore((-1.0, -2.0), {"skill": (-0.5, -3.0)}), ("a", 1): ReplyScore(unscorable="too long")}
    weighed = SimpleNamespace(advantages=[[[0.5, 0.7], [-0.2], []]])
    batch = SimpleNamespace(trajectories=trajectories, scores=scores)
    credit = distilled_credit(batch, weighed, SDAR(slope=2.0, weight=0.1, policy=0.8, block="skill"))
    pushed = 0.1 * (sigmoid(2.0 * 0.5) + sigmoid(2.0 * -1.0)) / 2
    assert credit == pytest.approx({("a", 0): 0.8 * 0.6 + pushed, ("a", 1): 0.8 * -0.2})


@pytest.mark.parametrize(("name", "why"), [("opsd", "vocabulary"), ("opd", "another model")])
def test_what_saved_episodes_cannot_tell_is_said_before_they_are_played(name, why, tmp_path):
    args = TASPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to="none")
    with pytest.raises(ConfigurationError, match=f"'{name}'.*{why}"):
        measured_needs(recipes_of([name], args))


def test_methods_of_different_teachers_are_measured_together(tmp_path):
    """One policy before its first update is its stale and its frozen copy as well."""
    args = TASPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to="none")
    recipes = recipes_of(["taspo", "serl", "sdar"], args)
    assert {recipe.needs.teacher for recipe in recipes.values()} > {"rollout"}
    needs = measured_needs(recipes)
    assert needs.teacher == "rollout" and {*recipes["serl"].needs.blocks, "aligned"} <= {*needs.blocks}


def test_true_states_that_a_batch_brings_are_the_ones_that_are_compared(tmp_path):
    args = TASPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to="none")
    recipe = METHODS["gigpo"].make(args, state_key="world")
    apart = toy.batch(state_key=lambda trajectory, t: (trajectory.uid, t))
    credit = credit_of(recipe, apart)
    assert credit and all(value == apart.outcome_of[uid] for (uid, _), value in credit.items()), "no state is shared"
    assert credit_of(recipe, toy.batch()) != credit, "here some are"
