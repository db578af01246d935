"""Distillation terms in the trainer: their gradients move the policy, their teachers survive a checkpoint."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from taspo_trl.credit.base import Needs
from taspo_trl.credit.rlsd import RLSD
from taspo_trl.credit.taspo import TurnWeights
from taspo_trl.loss.distillation.opd import opd
from taspo_trl.loss.distillation.opsd import OPSD
from taspo_trl.loss.distillation.sdar import SDAR
from taspo_trl.loss.distillation.sdpo import SDPO
from taspo_trl.methods import Recipe
from taspo_trl.records import METHOD_FILE, read_records
from tests import tiny
from tests.trainer.test_trainer import Script, replies, rows


BLOCK = "random_success"


def new_trainer(folder, monkeypatch, recipe, *, by_member=("inventory", "look", "look", "inventory"), **values):
    """A trainer with a recipe of the test's own, over groups in which half of the members succeed."""
    monkeypatch.setattr("taspo_trl.trainer.recipe_for", lambda args: recipe)
    defaults = {
        "train_dataset": rows(),
        "environment_factory": Script,
        "guidance": BLOCK,
        "learning_rate": 1e-2,
        "max_steps": 2,
        "shuffle_dataset": False,
    }
    policy = tiny.ScriptedPolicy(replies(by_member, 2))
    return tiny.trainer(folder, policy=policy, **{**defaults, **values})


def moved(made, before):
    return max((value - before[name]).abs().max().item() for name, value in tiny.parameters(made).items())


@pytest.mark.parametrize(
    "term",
    [
        SDAR(block=BLOCK),
        OPSD(block=BLOCK),
        OPSD(block=BLOCK, top_k=4),
        OPSD(block=BLOCK, form="sampled"),
        SDPO(block=BLOCK),
    ],
    ids=lambda term: f"{type(term).__name__} {term.needs.vocabulary} {term.needs.teacher}",
)
def test_every_form_of_a_term_trains(tmp_path, monkeypatch, term):
    made = new_trainer(tmp_path, monkeypatch, Recipe("test", distill=term), max_steps=1)
    before = tiny.parameters(made)
    made.train()
    assert 0 < moved(made, before) < 1
    losses = [entry["distill/loss"] for entry in made.state.log_history if "distill/loss" in entry]
    assert len(losses) == 1 and losses[0] != 0
    made.close()
    # The records hold m_k, which sums to one over the distilled tokens; beside them stands what the method is.
    records = list(read_records(tmp_path / "_trajectories"))
    lengths = [[len(turn.reply_ids) for turn in one.trajectory.turns] for one in records]
    shares = [
        m * n
        for one, of_turns in zip(records, lengths, strict=True)
        for m, n in zip(one.credit.distill, of_turns, strict=True)
    ]
    assert sum(shares) == pytest.approx(1) and min(shares) > 0
    told = json.loads((tmp_path / "_trajectories" / METHOD_FILE).read_text())
    assert (told["name"], told["num_steps"], told["distill"]["rule"]) == ("test", 1, type(term).__name__)


def test_share_of_zero_is_grpo_to_the_bit(tmp_path, monkeypatch):
    finals = []
    for name, recipe in (
        ("grpo", Recipe("grpo")),
        ("sdar", Recipe("test", distill=SDAR(block=BLOCK, weight=0.0))),
    ):
        # With beta every trajectory keeps its rows in both, so that both deal the same ones.
        made = new_trainer(tmp_path / name, monkeypatch, recipe, beta=1e-9)
        if recipe.distill is not None:
            monkeypatch.setattr(type(made.experience_maker.teacher), "score", None)  # which is not asked
        made.train()
        finals.append(tiny.parameters(made))
        made.close()
    assert all(torch.equal(value, finals[1][name]) for name, value in finals[0].items())


@dataclasses.dataclass(frozen=True)
class Late(SDAR):
    """Its share begins with the second update."""

    def share(self, step):
        return self.weight if step >= 1 else 0.0


def test_a_share_that_begins_inside_a_batch_is_scored(tmp_path, monkeypatch):
    made = new_trainer(tmp_path, monkeypatch, Recipe("test", distill=Late(block=BLOCK)), num_iterations=2, max_steps=2)
    made.train()
    losses = [entry["distill/loss"] for entry in made.state.log_history if "distill/loss" in entry]
    assert losses[0] == 0.0 != losses[1]
    made.close()


def test_teacher_that_is_the_student_teaches_nothing(tmp_path, monkeypatch):
    term = opd(teacher="frozen")
    made = new_trainer(tmp_path, monkeypatch, Recipe("test", distill=term), max_steps=1, guidance="none")
    before = tiny.parameters(made)
    made.train()
    assert [entry["distill/loss"] for entry in made.state.log_history if "distill/loss" in entry] == [0.0]
    assert moved(made, before) == 0
    made.close()


def test_without_a_block_anywhere_nothing_is_learned(tmp_path, monkeypatch):
    recipe = Recipe("test", distill=OPSD(block=BLOCK))
    made = new_trainer(tmp_path, monkeypatch, recipe, max_steps=1, by_member=("look",) * 4)
    before = tiny.parameters(made)
    made.train()
    assert moved(made, before) == 0
    made.close()


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe("test", distill=SDPO(block=BLOCK)),
        Recipe("test", distill=OPSD(block=BLOCK)),
        Recipe("test", weight=RLSD(block=BLOCK, teacher="stale", teacher_every=2)),
    ],
    ids=["ema", "frozen", "stale"],
)
def test_resumed_run_has_the_teacher_of_the_unbroken_one(tmp_path, monkeypatch, recipe):
    settings = {
        "max_steps": 4,
        "save_steps": 1,
        "save_strategy": "steps",
        "steps_per_generation": 2,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 1,
    }
    whole = new_trainer(tmp_path / "whole", monkeypatch, recipe, **settings)
    whole.train()
    for step in (1, 2):  # inside a rollout batch, and between two
        resumed = new_trainer(tmp_path / f"resumed{step}", monkeypatch, recipe, **settings)
        resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{step}"))
        for name, value in tiny.parameters(whole).items():
            assert torch.equal(value, resumed.model.get_parameter(name)), f"{name} differs after checkpoint-{step}"
        resumed.close()
    state = torch.load(tmp_path / "whole" / "checkpoint-2" / "taspo_teacher.pt", weights_only=True)
    assert state["teacher"]
    whole.close()


def test_checkpoint_of_another_method_has_no_teacher_to_resume(tmp_path, monkeypatch):
    settings = {"max_steps": 2, "save_steps": 1, "save_strategy": "steps"}
    new_trainer(tmp_path, monkeypatch, Recipe("grpo"), **settings).train()
    recipe = Recipe("test", distill=SDPO(block=BLOCK))
    made = new_trainer(tmp_path / "other", monkeypatch, recipe, **settings)
    with pytest.raises(Exception, match="teacher"):
        made.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))


def test_stale_teacher_scores_the_guided_branch_with_its_own_weights(tmp_path, monkeypatch):
    """At the first update the copy is the policy, so its shifts are those of the shared-prefix scoring."""
    shifts = []
    for name, rule in (
        ("rollout", RLSD(block=BLOCK, teacher="rollout")),
        ("stale", RLSD(block=BLOCK, teacher="stale", teacher_every=10)),
    ):
        made = new_trainer(tmp_path / name, monkeypatch, Recipe("test", weight=rule), max_steps=2)
        made.train()
        lines = [
            json.loads(line)
            for file in sorted((tmp_path / name / "_trajectories").glob("*.jsonl"))
            for line in file.read_text().splitlines()
        ]
        shifts.append([one["credit"]["scores"] for one in lines if one["rollout"] == 0])
        made.close()
    flat = [
        [x for record in run for score in record for x in (*score["plain"], *(score["guided"].get(BLOCK) or ()))]
        for run in shifts
    ]
    assert len(flat[0]) > 20 and flat[0] == pytest.approx(flat[1], abs=1e-5)


def test_rows_without_advantage_are_kept_where_the_method_says_so(tmp_path, monkeypatch):
    """Flat groups: TASPO drops their rows, a rule that moves them keeps them."""

    class Everywhere(TurnWeights):
        @property
        def needs(self):
            return Needs(blocks=(self.block,), scope="action", flat_groups=True)

    counts = []
    for name, rule in (("dropped", TurnWeights(block=BLOCK)), ("kept", Everywhere(block=BLOCK))):
        recipe = Recipe("test", weight=rule)
        made = new_trainer(tmp_path / name, monkeypatch, recipe, max_steps=1, by_member=("look",) * 4)
        made.train()
        rows_of = [row for micro in made._buffer for batch in micro for row in batch]
        counts.append(sum(any(row.coefficients) for row in rows_of))
        made.close()
    assert counts[0] == 0 and counts[1] > 0
