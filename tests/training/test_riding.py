"""Scoring that rides on the pass of log pi_old: the same numbers, and only block and tail computed in addition."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from transformers import LlamaModel

from taspo_trl.guidance.base import Construction
from taspo_trl.guidance.stage import GuidanceStage
from taspo_trl.training import rollout_batch
from taspo_trl.training.arrival import GRACE_SECONDS
from taspo_trl.training.rollout_batch import ExperienceMaker
from taspo_trl.types import Block, Guidance
from tests import tiny
from tests.methods.test_training import ROWS, acting


class Given(Construction):
    """A block for every target, by default of three tokens."""

    name, needs_success, ids = "aligned", True, (20, 21, 22)

    def build(self, context, group, target):
        return Guidance(target.uid, self.name, {self.name: Block.whole(self.ids, len(target.turns))})


class Empty(Given):
    ids = ()


def play(folder, patch, construction=Given, dtype=torch.float64, **values):
    """One rollout batch of two optimizer steps: what it came to, and (rows, positions, positions taken over, tokens
    that are no padding) of each forward of its passes."""
    made = tiny.trainer(
        folder,
        model=tiny.model(dtype=dtype),
        policy=tiny.ScriptedPolicy(acting),
        train_dataset=Dataset.from_list(ROWS),
        shuffle_dataset=False,
        per_device_train_batch_size=4,
        steps_per_generation=2,
        micro_batch_tokens=800,
        max_turns=6,
        max_completion_length=16,
        **values,
    )
    maker = made.experience_maker
    maker.guidance._construction = construction()
    made.current_gradient_accumulation_steps = 1
    found = SimpleNamespace(forwards=[], pairs=())
    forward, plan_pairs, make = LlamaModel.forward, rollout_batch.plan_pairs, maker.make

    def noting(model, *positional, **inputs):
        found.forwards.append(tiny.size_of(inputs))
        return forward(model, *positional, **inputs)

    def planning(*positional):
        plan = plan_pairs(*positional)
        found.pairs = plan.pairs
        return plan

    def making(*positional, **keywords):
        found.experience = make(*positional, **keywords)
        return found.experience

    with patch.context() as inner:
        inner.setattr(LlamaModel, "forward", noting)
        inner.setattr(rollout_batch, "plan_pairs", planning)
        maker.make = making
        made._new_rollout([made.train_dataset[0]] * 4 + [made.train_dataset[1]] * 4)
    made.close()
    found.trainer = made
    found.rows = [row for micro in found.experience.micro_batches for batch in micro for row in batch]
    found.credits = [record.credit for record in found.experience.records]
    found.scores = [score for credit in found.credits for score in credit.scores if not score.unscorable]
    return found


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_numbers_are_those_of_two_passes(tmp_path, monkeypatch, dtype):
    riding = play(tmp_path / "a", monkeypatch, dtype=dtype)
    with monkeypatch.context() as patch:
        patch.setattr(ExperienceMaker, "_ride", lambda *_: None)
        apart = play(tmp_path / "b", monkeypatch, dtype=dtype)
    assert [row.old_logps for row in riding.rows] == [row.old_logps for row in apart.rows]
    assert len(riding.scores) == len(apart.scores) > 10
    tolerance = 1e-9 if dtype == torch.float64 else 1e-5
    weights = [[w for credit in one.credits for w in credit.weights] for one in (riding, apart)]
    assert weights[0] == pytest.approx(weights[1], abs=tolerance) and set(weights[0]) != {1.0}
    # The plain branch is log pi_old itself.
    known = {value for row in riding.rows for value in row.old_logps}
    assert all(value in known for score in riding.scores for value in score.plain if value == value)


def test_block_and_tail_alone_are_computed_in_addition(tmp_path, monkeypatch):
    riding = play(tmp_path / "a", monkeypatch)
    plain = play(tmp_path / "b", monkeypatch, guidance="none")
    whole = [one for one in riding.forwards if one[2] == 0]
    continued = [one for one in riding.forwards if one[2] > 0]
    assert sorted(whole) == sorted(plain.forwards)
    assert all(rows * (width + taken) <= 800 for rows, width, taken, _ in continued)
    needed = sum(len(pair.blocks[0]) + len(pair.ids) - pair.splice_index for pair in riding.pairs)
    assert sum(num_tokens for *_, num_tokens in continued) == needed


def test_an_empty_block_shifts_nothing_and_costs_nothing(tmp_path, monkeypatch):
    riding = play(tmp_path / "a", monkeypatch, Empty, torch.float32)
    assert riding.scores and all(score.guided["aligned"] == score.plain for score in riding.scores if score.guided)
    assert not any(taken for _, _, taken, _ in riding.forwards)


def test_the_pass_does_not_stand_still_for_guidance(tmp_path, monkeypatch):
    """What is late is scored after the pass, with the numbers of two passes."""
    riding = play(tmp_path / "a", monkeypatch)
    asked = []

    def is_done(stage, timeout=0.0):
        asked.append(timeout)
        return len(asked) > 1

    monkeypatch.setattr(GuidanceStage, "is_done", is_done)
    late = play(tmp_path / "b", monkeypatch)
    assert asked == [GRACE_SECONDS, 0.0]
    assert any(taken > 0 for _, _, taken, _ in late.forwards) and len(late.forwards) > len(riding.forwards)
    assert [row.old_logps for row in late.rows] == [row.old_logps for row in riding.rows]
    for one, other in zip(late.credits, riding.credits, strict=True):
        assert one.weights == pytest.approx(other.weights, abs=1e-9)


def test_with_full_determinism_the_pass_waits_and_repeats(tmp_path, monkeypatch):
    """How fast the analyzer answers would else show in the last bits of float32."""
    monkeypatch.setattr("transformers.trainer.enable_full_determinism", lambda seed: None)  # it holds for the process
    settings = {"dtype": torch.float32, "full_determinism": True}
    quick = play(tmp_path / "a", monkeypatch, **settings)
    monkeypatch.setattr(GuidanceStage, "is_done", lambda stage, timeout=0.0: False)
    late = play(tmp_path / "b", monkeypatch, **settings)
    assert late.forwards == quick.forwards and any(taken > 0 for _, _, taken, _ in late.forwards)
    assert [one.weights for one in late.credits] == [one.weights for one in quick.credits]
