"""A first batch from which nothing can be learned is told with its remedy, once; a usable one is not mentioned."""

import dataclasses
import logging

import numpy as np
import pytest

from taspo_trl.environments import ResetResult, StepResult, TextEnvironment
from taspo_trl.methods import METHODS
from taspo_trl.records import TrajectoryRecord
from taspo_trl.reporting.first_batch import FirstBatch, first_batch_findings
from taspo_trl.types import Credit, FinishReason, Guidance, ReplyScore, StopReason
from tests import tiny
from tests.builders import guided, trajectory, turn
from tests.trainer.test_trainer import rows


TASPO, GRPO = (METHODS[name].make(tiny.config("unused", method=name)) for name in ("taspo", "grpo"))
SOLVED = {"success": True, "stop_reason": StopReason.SOLVED, "verdict": "bool", "rewards": {"success": 1.0}}
FAILED = {"success": False, "stop_reason": StopReason.FAILED, "verdict": "bool", "rewards": {"success": 0.0}}


def record(values=FAILED, turns=None, guidance=None, credit=None, uid="t"):
    played = trajectory([turn(), turn()] if turns is None else turns, uid, **values)
    return TrajectoryRecord(played, "g", 0, 0, guidance=guidance, credit=credit)


def credited(weights, fallback="", unscorable=""):
    return Credit("t", 1.0, weights, scores=(ReplyScore(unscorable=unscorable),) * 2, fallback=fallback)


def found(records, advantages, recipe=TASPO):
    return [f"{one.what} {one.remedy}" for one in first_batch_findings(records, advantages, recipe)]


def test_a_batch_with_contrast_verdict_and_credit_is_fine():
    given = guided(num_turns=2)
    fine = [
        record(SOLVED, guidance=Guidance("t", "aligned", abstain_reason="no_other_success")),
        record(guidance=given, credit=credited((0.9, 1.1))),
    ]
    assert found(fine, [1.0, -1.0]) == [] == found(fine, [1.0, -1.0], GRPO)


def test_replies_without_an_action_are_quoted_and_cut_ones_named():
    lost = [turn(action="", reply_text="I would \x1b[2J go north", action_mask=(False, False), valid=False)] * 2
    (said,) = found([record(turns=lost), record(SOLVED)][:1] * 2, [1.0, -1.0], GRPO)
    assert "None of the 4 replies holds an action" in said and "'I would \\x1b[2J go north'" in said
    assert "warm start" in said
    cut = [dataclasses.replace(one, finish_reason=FinishReason.LENGTH) for one in lost]
    (said,) = found([record(turns=cut)] * 2, [1.0, -1.0], GRPO)
    assert "4 of them were cut, at up to 2 tokens: raise `max_completion_length`" in said


def test_verdicts_that_never_come_or_are_no_verdicts():
    silent = {**FAILED, "verdict": ""}
    (said,) = found([record(silent)] * 2, [1.0, -1.0], GRPO)
    assert 'None of the 2 episodes gave a verdict: `info["success"]` never came' in said and "_get_success" in said
    (said,) = found([record({**silent, "stop_reason": StopReason.MAX_TURNS})] * 2, [1.0, -1.0], GRPO)
    assert "max_turns 2" in said and "raise `max_turns`" in said
    graded = {**silent, "rewards": {"environment": 0.5}}
    assert found([record(graded)] * 2, [1.0, -1.0], GRPO) == []  # neither reward nor method asks for it
    assert "gave a verdict" in found([record(graded)] * 2, [1.0, -1.0], TASPO)[0]


def test_no_contrast_is_told_by_how_many_were_solved():
    (said,) = found([record()] * 4, [0.0] * 4)
    assert "0 of 4 were solved" in said and "warm start" in said
    (said,) = found([record(SOLVED)] * 4, [0.0] * 4)
    assert "4 of 4" in said and "too easy" in said


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        ("no_other_success", "more `num_generations`"),
        ("all_rejected", "a stronger analyzer"),
        ("time_budget: 3 s", "`analyzer_time_budget`"),
        ("rate_limit", "`taspo doctor --config"),
    ],
)
def test_guidance_that_reaches_nobody_is_told_by_its_reason(reason, remedy):
    nobody = [record(SOLVED, guidance=Guidance("t", "aligned", abstain_reason=reason))] * 2
    (said,) = found(nobody, [1.0, -1.0])
    assert "None of the 2 episodes with an advantage has guidance" in said and remedy in said
    assert found(nobody, [1.0, -1.0], GRPO) == []


def test_guidance_that_cannot_be_scored_reaches_nobody_either():
    hidden = credited((1.0, 1.0), "fewer_than_two_scorable_turns", "no_splice_index")
    (said,) = found([record(SOLVED, guidance=guided(num_turns=2), credit=hidden)] * 2, [1.0, -1.0])
    assert "moved the credit of none (no_splice_index 4)" in said and "templates.md" in said


def test_it_is_said_once_and_without_secrets(caplog, monkeypatch):
    monkeypatch.setenv("WORLD_API_KEY", "CANARY-0123456789")
    leaky = [turn(action="", reply_text="the key is CANARY-0123456789", action_mask=(False, False))]
    look = FirstBatch(GRPO, "runs/x").look
    for _ in range(2):
        look([record(turns=leaky)] * 2, [1.0, -1.0])
    (said,) = [one.getMessage() for one in caplog.records]
    assert "None of the 2 replies" in said and "runs/x" in said and "CANARY" not in said


class Numpy(TextEnvironment):
    """Judges with the comparison of an array."""

    max_turns = 2

    def reset(self, *, seed, task, **row):
        return ResetResult("You can: look inventory", {"task": task})

    def step(self, action):
        return StepResult("Done.", 0.0, True, False, {"success": np.array([1.0])[0] == 1.0})


@pytest.mark.filterwarnings("ignore:`Numpy` gave")
def test_a_run_whose_world_judges_with_numpy_hears_of_it_in_its_first_step(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    policy = tiny.ScriptedPolicy(lambda uid, turn: "<action>look</action>")
    made = tiny.trainer(tmp_path, policy=policy, train_dataset=rows(), environment_factory=Numpy, max_steps=2)
    made.train()
    made.close()
    said = [one.getMessage() for one in caplog.records if "After the first rollout batch" in one.getMessage()]
    assert len(said) == 1
    assert '8 of 8 episodes gave `info["success"]` as numpy.bool' in said[0] and "bool(...)" in said[0]
    assert "No group has a better and a worse episode" in said[0]
