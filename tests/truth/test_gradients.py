"""Gradients of distributions beside the true direction: exact where they are known, none where nothing is said."""

from dataclasses import dataclass, replace

import pytest
import torch

from taspo_trl.credit.base import Needs
from taspo_trl.loss.distillation import OPSD, SDPO, grpo_opsd
from taspo_trl.truth.gradients import ComparedTerm, TurnToCompare, turn_cosines
from tests import builders, tiny


@dataclass(frozen=True)
class Pushed:
    """Every sampled token pushed up by `by`, beside a share of the policy's own loss."""

    by: float
    policy: float = 0.0
    needs = Needs(scope="reply", plain_only=True)
    reduction = "token_mean"

    def policy_share(self, step):
        return self.policy

    def share(self, step):
        return 1.0

    def token_loss(self, student, teacher, old_logps, advantages):
        return -self.by * student.logps


@pytest.fixture(scope="module")
def policy():
    return tiny.model().eval()


def turn(outcome=0.7, value=0.3, **blocks):
    one = builders.turn(prompt_ids=(5, 9, 4, 8, 11, 3), reply_ids=(7, 6, 10), splice_index=4)
    return TurnToCompare(builders.trajectory([one]), 0, outcome, value, blocks)


def test_one_credit_for_all_tokens_has_the_sign_of_its_agreement(policy):
    terms = {
        "up": ComparedTerm(Pushed(0.5)),
        "down": ComparedTerm(Pushed(-0.5)),
        "both": ComparedTerm(Pushed(-0.5, policy=1.0)),  # 1.0 * 0.7 - 0.5 > 0
        "none": ComparedTerm(Pushed(-0.7, policy=1.0)),
    }
    good, bad = turn_cosines(policy, [turn(value=0.3), turn(value=-0.3)], terms)
    assert good["grpo"] == 1.0 and bad["grpo"] == -1.0
    for found, expected in ((good, 1.0), (bad, -1.0)):
        assert found["up"] == pytest.approx(expected) and found["down"] == pytest.approx(-expected)
        assert found["both"] == pytest.approx(expected)
    assert turn_cosines(policy, [turn(outcome=0.0)], {})[0] == {"grpo": 0.0}


def test_a_block_that_says_nothing_gives_no_direction_and_another_one_does(policy):
    terms = {
        "opsd": ComparedTerm(OPSD(), "plan"),
        "sdpo": ComparedTerm(SDPO(top_k=5), "plan"),
        "grpo_opsd": ComparedTerm(grpo_opsd(), "plan"),
        "absent": ComparedTerm(OPSD(), "other"),
    }
    (silent,) = turn_cosines(policy, [turn(plan=())], terms)
    assert silent["opsd"] == pytest.approx(0, abs=1e-3) and silent["sdpo"] == pytest.approx(0, abs=1e-3)
    assert silent["grpo_opsd"] == pytest.approx(1.0) and "absent" not in silent
    (told,) = turn_cosines(policy, [turn(plan=(12, 13, 14))], terms)
    assert 1e-3 < abs(told["opsd"]) < 1 and 1e-3 < abs(told["sdpo"]) < 1


def test_matching_a_teacher_that_is_surer_of_what_was_done_pushes_it_up(policy):
    """KL(T || S) towards a teacher that puts all weight on the sampled tokens has the gradient of -log pi of them."""
    one = turn()
    sure = tiny.model().eval()
    own_forward = sure.forward

    def forward(input_ids):
        out = own_forward(input_ids=input_ids)
        logits = torch.zeros_like(out.logits)
        logits[0, :-1].scatter_(-1, input_ids[0, 1:, None], 40.0)
        return replace_logits(out, logits)

    sure.forward = forward
    term = OPSD(beta=0.0, temperature=1.0, block=None, teacher="model")
    (found,) = turn_cosines(policy, [one], {"opd": ComparedTerm(term, None, sure)})
    assert found["opd"] == pytest.approx(1.0, abs=1e-4)
    (against,) = turn_cosines(policy, [replace(one, value=-0.3)], {"opd": ComparedTerm(term, None, sure)})
    assert against["opd"] == pytest.approx(-found["opd"])


def replace_logits(out, logits):
    out.logits = logits
    return out
