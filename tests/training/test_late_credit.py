"""Scoring in the update's own forward: the update of two passes, and only block and tail computed in addition."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import LlamaModel

from taspo_trl.credit.taspo import TurnWeights
from taspo_trl.errors import InvariantError
from taspo_trl.guidance.base import Construction
from taspo_trl.records import read_records
from taspo_trl.training import assembly, passes
from taspo_trl.types import Block, Guidance
from tests import tiny
from tests.methods.test_training import ROWS, acting


class Given(Construction):
    """A block for every target but the last of each group."""

    name, needs_success, ids = "aligned", True, (20, 21, 22)

    def build(self, context, group, target):
        is_last = target.generation_idx == 3
        blocks = {} if is_last else {self.name: Block.whole(self.ids, len(target.turns))}
        return Guidance(target.uid, self.name, blocks, abstain_reason="nothing_fits" if is_last else "")


class Empty(Given):
    ids = ()


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
    made.experience_maker.guidance._construction = construction()
    found = SimpleNamespace(trainer=made, forwards=[], needed=0)
    forward, branch_logps = LlamaModel.forward, passes.branch_logps

    def noting(model, *positional, **inputs):
        cache = inputs.get("past_key_values")
        taken = cache.get_seq_length() if cache is not None else 0
        mask = inputs.get("attention_mask")
        is_padded = mask is not None and mask.dim() == 2
        num_tokens = int(mask[:, taken:].sum()) if is_padded else inputs["input_ids"].numel()
        found.forwards.append((len(inputs["input_ids"]), taken, num_tokens, torch.is_grad_enabled()))
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
    found.weights = [one.credit.weights for one in found.records]
    return found


SETTINGS = {
    "a row for each turn": {},
    "a row for each trajectory": {"context": "conversation"},
    "some that fit into no micro-batch": {"micro_batch_tokens": 300},
    "two micro-steps": {
        "per_device_train_batch_size": 4, "steps_per_generation": 2, "gradient_accumulation_steps": 2,
    },
    "without padding": {"padding_free": True},
    "token allocation": {"allocation": "token"},
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
            tolerance = 1e-5 if name == "two micro-steps" else 1e-8
            assert late.log[key] == pytest.approx(value, abs=tolerance, nan_ok=True), key


def test_block_and_tail_alone_are_computed_in_addition(tmp_path, monkeypatch):
    late = trained(tmp_path / "late", monkeypatch)
    learned = sum(tokens for _, _, tokens, has_gradient in late.forwards if has_gradient)
    plain = trained(tmp_path / "plain", monkeypatch, guidance="none")
    assert learned == sum(tokens for _, _, tokens, _ in plain.forwards)
    assert sum(tokens for *_, tokens, has_gradient in late.forwards if not has_gradient) == late.needed > 0
    assert all(rows * taken < 2400 for rows, taken, _, _ in late.forwards)


def test_an_empty_block_shifts_nothing_and_costs_nothing(tmp_path, monkeypatch):
    late = trained(tmp_path, monkeypatch, construction=Empty, dtype=torch.float32)
    scores = [score for one in late.records for score in one.credit.scores if score.guided]
    assert scores and all(score.guided["aligned"] == score.plain for score in scores)
    assert all(has_gradient and not taken for _, taken, _, has_gradient in late.forwards)
    assert {w for weights in late.weights for w in weights} == {1.0}


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


def test_where_the_update_is_not_asked(tmp_path, monkeypatch):
    def is_asked(name, **values):
        made = tiny.trainer(tmp_path / name, max_turns=1, max_completion_length=1, **values)
        maker, layout = made.experience_maker, made._update_layout()
        made.close()
        return maker._scores_in_update(layout.is_off_policy, maker._batch([], [], 0, 0))

    dropped = tiny.model()
    for layer in dropped.model.layers:
        layer.self_attn.attention_dropout = 0.1
    before = torch.random.get_rng_state()
    assert not assembly.is_alike_in_training(dropped)
    assert torch.equal(torch.random.get_rng_state(), before)  # looking draws no number of the run
    assert is_asked("here")
    assert not is_asked("dropout", peft_config=LoraConfig(r=4, target_modules=["q_proj"], lora_dropout=0.1))
    assert not is_asked("recomputed", gradient_checkpointing=True)
    assert not is_asked("log pi_old", per_device_train_batch_size=4, steps_per_generation=2)
    assert not is_asked("beside", score_during_rollout=True)
    assert not is_asked("reference", beta=0.1)
    assert not is_asked("another teacher", method="serl")
    assert not is_asked("nothing scored", method="grpo")
