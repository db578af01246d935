"""Scoring in the update's own forward: the update of two passes, and only block and tail computed in addition."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset
from peft import LoKrConfig, LoraConfig, get_peft_model
from transformers import LlamaModel, TrainerCallback

from taspo_trl.credit.taspo import TurnWeights
from taspo_trl.errors import InvariantError
from taspo_trl.guidance.base import Construction
from taspo_trl.records import read_records
from taspo_trl.scoring.projection import add_selected_projection
from taspo_trl.scoring.reproduces import why_training_differs
from taspo_trl.training import assembly, passes
from taspo_trl.training.checkpoint import load_state
from taspo_trl.types import Block, Guidance
from tests import tiny
from tests.methods.test_training import ROWS, acting


class Given(Construction):
    """The blocks of a method for every target but the last of each group."""

    name, needs_success, ids = "aligned", True, (20, 21, 22)

    def __init__(self, recipe):
        self.recipe = recipe

    def words(self, turn_idx):
        return self.ids

    def build(self, context, group, target):
        if target.generation_idx == 3:
            return Guidance(target.uid, self.name, abstain_reason="nothing_fits")
        turns = tuple(self.words(turn_idx) for turn_idx in range(len(target.turns)))
        block = Block(turns, place=self.recipe.place)
        return Guidance(target.uid, self.name, dict.fromkeys(self.recipe.needs.blocks, block))


class Empty(Given):
    ids = ()


class EmptyNow(Given):
    """Nothing is said of every second turn."""

    def words(self, turn_idx):
        return self.ids if turn_idx % 2 else ()


def trained(folder, patch, *, apart=False, construction=Given, dtype=torch.float64, fail_at=None, **values):
    """A run of one update: the trainer, its records, its log, and of each forward that scores or learns (rows, tokens
    taken over, tokens that are no padding, whether it has a gradient)."""
    with patch.context() as inner:
        if apart:
            inner.setattr(assembly, "scores_in_update", lambda *_: False)
        made = tiny.trainer(
            folder,
            policy=tiny.ScriptedPolicy(acting),
            **{
                "model": tiny.model(dtype=dtype),
                "train_dataset": Dataset.from_list(ROWS),
                "shuffle_dataset": False,
                "micro_batch_tokens": 2400,
                "max_turns": 6,
                "max_completion_length": 16,
                "optim": "sgd",
                **values,
            },
        )
    made.experience_maker.guidance._construction = construction(made._recipe)
    found = SimpleNamespace(trainer=made, forwards=[], needed=0)
    forward, branch_logps = LlamaModel.forward, passes.branch_logps

    def noting(model, *positional, **inputs):
        rows, _, taken, num_tokens = tiny.size_of(inputs)
        found.forwards.append((rows, taken, num_tokens, torch.is_grad_enabled()))
        if fail_at is not None and len(found.forwards) > fail_at:
            raise RuntimeError("out of memory, say")
        return forward(model, *positional, **inputs)

    def counting(model, branches, *positional, **options):
        found.needed += sum(len(one.ids) - one.start for one in branches)
        return branch_logps(model, branches, *positional, **options)

    try:
        with patch.context() as inner:
            inner.setattr(LlamaModel, "forward", noting)
            inner.setattr(passes, "branch_logps", counting)
            made.train()
    finally:
        found.records = [one for path in sorted(folder.rglob("rollout_*.jsonl")) for one in read_records(path)]
        made.close()
    found.log = made.state.log_history[0]
    found.weights = [one.credit.weights for one in found.records if one.credit is not None]
    return found


SETTINGS: dict[str, dict[str, Any]] = {
    "a row for each turn": {},
    "a row for each trajectory": {"context": "conversation"},
    "some that fit into no micro-batch": {"micro_batch_tokens": 300, "padding_free": True},
    "two micro-steps": {
        "per_device_train_batch_size": 4, "steps_per_generation": 2, "gradient_accumulation_steps": 2,
    },
    "without padding": {"padding_free": True},
    "token allocation": {"allocation": "token"},
    "two batches in one update": {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
    "blocks before the chat": {"method": "rlsd"},
    "another rule": {"method": "opid"},
    "several blocks": {"method": "taspo_factor", "method_options": {"warmup": 0}},
    "an adapter": {"peft_config": LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)},
}  # fmt: skip


@pytest.mark.parametrize("name", SETTINGS)
def test_the_update_is_that_of_scoring_apart(tmp_path, monkeypatch, name):
    late = trained(tmp_path / "late", monkeypatch, **SETTINGS[name])
    apart = trained(tmp_path / "apart", monkeypatch, apart=True, **SETTINGS[name])
    assert any(taken and not has_gradient for _, taken, _, has_gradient in late.forwards)
    whole = [
        sum(not taken and not has_gradient for _, taken, _, has_gradient in one.forwards) for one in (late, apart)
    ]
    assert whole[0] < whole[1]  # plain branches that are computed for scoring alone
    assert (whole[0] == 0) is (name != "some that fit into no micro-batch")
    assert len(late.weights) == 8 and any(w != 1.0 for weights in late.weights for w in weights)
    for one, other in zip(late.records, apart.records, strict=True):
        assert one.credit.weights == pytest.approx(other.credit.weights, abs=1e-9)
        assert one.credit.fallback == other.credit.fallback
        assert [score.unscorable for score in one.credit.scores] == [score.unscorable for score in other.credit.scores]
    for key, value in tiny.parameters(apart.trainer).items():
        assert torch.allclose(late.trainer.model.get_parameter(key), value, atol=1e-10, rtol=0), key
    assert set(late.log) == set(apart.log)
    for key, value in apart.log.items():
        if isinstance(value, float) and "time" not in key and "seconds" not in key:
            # TRL averages over micro-steps, to which the rows are dealt otherwise.
            tolerance = 1e-5 if name.startswith("two") else 1e-8
            assert late.log[key] == pytest.approx(value, abs=tolerance, nan_ok=True), key


def test_mixed_precision_keeps_every_gradient(tmp_path, monkeypatch):
    """A weight that was cast for a branch without gradient must not serve the update's forward, nor the reverse."""
    start = tiny.parameters(SimpleNamespace(model=tiny.model(dtype=torch.float32)))
    values = {"bf16": True, "dtype": torch.float32, "learning_rate": 1.0}
    late = trained(tmp_path / "late", monkeypatch, **values)
    apart = trained(tmp_path / "apart", monkeypatch, apart=True, **values)
    assert sum(not taken and not has_gradient for _, taken, _, has_gradient in late.forwards) == 0
    for one, other in zip(late.records, apart.records, strict=True):
        assert one.credit.weights == pytest.approx(other.credit.weights, abs=0.02)
    for name, before in start.items():
        steps = [one.trainer.model.get_parameter(name) - before for one in (late, apart)]
        assert steps[1].norm() > 0 and (steps[0] - steps[1]).norm() < 0.1 * steps[1].norm(), name


def test_block_and_tail_alone_are_computed_in_addition(tmp_path, monkeypatch):
    late = trained(tmp_path / "late", monkeypatch)
    learned = sum(tokens for _, _, tokens, has_gradient in late.forwards if has_gradient)
    plain = trained(tmp_path / "plain", monkeypatch, guidance="none")
    assert learned == sum(tokens for _, _, tokens, _ in plain.forwards)
    assert sum(tokens for *_, tokens, has_gradient in late.forwards if not has_gradient) == late.needed > 0
    assert all(rows * taken < 2400 for rows, taken, _, _ in late.forwards)


def test_empty_blocks_make_the_update_of_grpo_to_the_last_bit(tmp_path, monkeypatch):
    empty = trained(tmp_path / "empty", monkeypatch, construction=Empty, dtype=torch.float32)
    plain = trained(tmp_path / "plain", monkeypatch, guidance="none", dtype=torch.float32)
    scores = [score for one in empty.records for score in one.credit.scores if score.guided]
    assert scores and all(score.guided["aligned"] == score.plain for score in scores)
    for key, value in tiny.parameters(plain.trainer).items():
        assert torch.equal(empty.trainer.model.get_parameter(key), value), key


def test_an_empty_block_beside_a_full_one_shifts_nothing_and_costs_nothing(tmp_path, monkeypatch):
    late = trained(tmp_path, monkeypatch, construction=EmptyNow, dtype=torch.float32)
    shifts = {True: [], False: []}
    for one in late.records:
        for turn_idx, score in enumerate(one.credit.scores):
            if score.guided:
                shifts[turn_idx % 2 == 0].append(score.guided["aligned"] != score.plain)
    assert shifts[True] and not any(shifts[True]) and any(shifts[False])
    assert sum(tokens for *_, tokens, has_gradient in late.forwards if not has_gradient) == late.needed > 0


def test_guided_branches_are_the_time_of_scoring_and_not_of_the_update(tmp_path, monkeypatch):
    branch_logps = passes.branch_logps

    def slow(*positional, **options):
        time.sleep(0.3)
        calls.append(None)
        return branch_logps(*positional, **options)

    calls: list[None] = []
    monkeypatch.setattr(passes, "branch_logps", slow)
    log = trained(tmp_path, monkeypatch).log
    # Had the update counted the branches too, the parts would be more than the whole.
    assert calls and log["time/scoring"] >= 0.3 * len(calls)
    assert log["time/update"] <= log["step_time"] - log["time/scoring"]


def test_what_breaks_in_the_update_costs_no_episode_and_no_guidance(tmp_path, monkeypatch):
    with pytest.raises(RuntimeError, match="out of memory"):
        trained(tmp_path, monkeypatch, fail_at=1)
    records = list(read_records(next(tmp_path.rglob("rollout_*.jsonl"))))
    assert len(records) == 8 and sum(bool(one.guidance) for one in records) == 6
    assert [one.credit is None for one in records] == [bool(one.guidance) for one in records]  # the rest was known


def test_a_rule_that_looks_at_others_is_found_out(tmp_path, monkeypatch):
    weigh = TurnWeights.__call__

    def with_a_look_around(rule, batch, advantages):
        factor = 1.0 + 0.01 * len(batch.trajectories)
        return weigh(rule, batch, [[factor * a for a in row] for row in advantages])

    monkeypatch.setattr(TurnWeights, "__call__", with_a_look_around)
    monkeypatch.setattr("taspo_trl.methods.recipe.check_guarantees", lambda *_: None)
    with pytest.raises(InvariantError, match="per_trajectory"):
        trained(tmp_path, monkeypatch)


def test_where_the_update_is_not_asked(tmp_path, caplog):
    def is_asked(name, **values):
        caplog.clear()
        made = tiny.trainer(tmp_path / name, max_turns=1, max_completion_length=1, **values)
        maker, layout = made.experience_maker, made._update_layout()
        made.close()
        return maker._scores_in_update(layout, layout.is_off_policy, maker._batch([], [], 0, 0))

    caplog.set_level("INFO", "taspo_trl.training.assembly")
    assert is_asked("here") and not caplog.records
    assert not is_asked("dropout", peft_config=LoraConfig(r=4, target_modules=["q_proj"], lora_dropout=0.1))
    assert "it has dropout" in caplog.text
    assert not is_asked("recomputed", gradient_checkpointing=True)
    assert "gradient checkpointing keeps no keys" in caplog.text
    assert not is_asked("log pi_old", per_device_train_batch_size=4, steps_per_generation=2)
    twice = {"gradient_accumulation_steps": 4, "per_device_train_batch_size": 4, "steps_per_generation": 2}
    assert not is_asked("two passes in one update", num_iterations=2, **twice)
    assert not is_asked("beside", score_during_rollout=True)
    assert not is_asked("reference", beta=0.1)
    assert not is_asked("another teacher", method="serl")
    assert not is_asked("trajectories compared", method="grsd")
    assert not is_asked("nothing scored", method="grpo")


def test_dropout_is_seen_where_a_fresh_model_does_not_show_it():
    dropped, hidden = (
        tiny.model(),
        get_peft_model(tiny.model(), LoKrConfig(target_modules=["q_proj"], module_dropout=0.5)),
    )
    for layer in dropped.model.layers:
        layer.self_attn.attention_dropout = 0.1
    before = torch.random.get_rng_state()
    for one in (dropped, hidden.get_base_model()):
        add_selected_projection(one)
    assert why_training_differs(dropped) and why_training_differs(hidden) == "it has dropout"
    assert torch.equal(torch.random.get_rng_state(), before)  # looking draws no number of the run


def test_a_rule_whose_known_credit_changes_later_is_found_out(tmp_path, monkeypatch):
    """Trajectories that did not wait for the update are compared, too."""
    weigh = TurnWeights.__call__

    def with_a_look_at_all_scores(rule, batch, advantages):
        found = weigh(rule, batch, advantages)
        if len(batch.trajectories) == 8 and any(score.guided for score in batch.scores.values()):
            found.advantages[3] = [[2 * a for a in turn] for turn in found.advantages[3]]
        return found

    monkeypatch.setattr(TurnWeights, "__call__", with_a_look_at_all_scores)
    monkeypatch.setattr("taspo_trl.methods.recipe.check_guarantees", lambda *_: None)
    with pytest.raises(InvariantError, match="per_trajectory"):
        trained(tmp_path, monkeypatch)


def test_a_stop_inside_the_update_costs_its_batch_and_no_weight(tmp_path, monkeypatch):
    """The rows of a batch whose credit is not found yet are no rows to go on with: they are played again."""

    class Stop(TrainerCallback):
        def on_substep_end(self, args, state, control, **kwargs):
            control.should_training_stop = control.should_save = True

    two = SETTINGS["two micro-steps"] | {"save_strategy": "epoch", "max_steps": 2}
    made = trained(tmp_path, monkeypatch, callbacks=[Stop()], **two).trainer
    state = load_state(str(next(tmp_path.glob("checkpoint-*"))), 0)
    assert state.step == 1 and state.buffer is None and made.state.global_step == 0
