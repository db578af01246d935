"""Training on rows without padding: the numbers of padded rows, from log pi_old to the weights after the update."""

from __future__ import annotations

import pytest
import torch
from datasets import Dataset

from taspo_trl.errors import ConfigurationError
from taspo_trl.scoring.projection import selected_forward
from taspo_trl.training.checks import wanted_without_padding
from tests import tiny
from tests.methods.test_training import ROWS, acting
from tests.training.test_riding import play


def test_a_rollout_batch_is_scored_as_with_padding(tmp_path, monkeypatch):
    padded = play(tmp_path / "a", monkeypatch)
    found = play(tmp_path / "b", monkeypatch, padding_free=True)
    by_ids = {row.ids: row for row in padded.rows}
    assert len(found.rows) == len(padded.rows) > 2
    for row in found.rows:
        assert row.old_logps == pytest.approx(by_ids[row.ids].old_logps, abs=1e-9)
    for one, other in zip(found.credits, padded.credits, strict=True):
        assert one.weights == pytest.approx(other.weights, abs=1e-9)
    passes = [num for rows, width, taken, num in found.forwards if not taken]
    assert all(rows == 1 for rows, _, taken, _ in found.forwards if not taken)
    # Every row once, in forwards of as many tokens as allowed.
    assert sum(passes) == sum(len(row.ids) for row in found.rows) and max(passes) <= 800
    assert sum(passes) < sum(rows * width for rows, width, taken, _ in padded.forwards if not taken)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_first_ratio_of_the_update_is_one(tmp_path, monkeypatch, dtype):
    """Though the pass of log pi_old keeps keys, for which its mask is made in another place."""
    found = play(tmp_path, monkeypatch, dtype=dtype, padding_free=True)
    assert any(taken for *_, taken, _ in found.forwards)
    batch = found.experience.micro_batches[0][0]
    tensors = found.trainer.experience_maker.passes.collate(batch)
    assert "attention_mask" not in tensors and len(batch) > 1
    with torch.no_grad():
        logps = selected_forward(found.trainer.model.eval(), tensors).logps
    assert torch.equal(logps, tensors["old_logps"])


def trained(folder, **values):
    made = tiny.trainer(
        folder,
        model=tiny.model(dtype=torch.float64),
        policy=tiny.ScriptedPolicy(acting),
        train_dataset=Dataset.from_list(ROWS),
        shuffle_dataset=False,
        per_device_train_batch_size=4,
        steps_per_generation=2,
        num_iterations=2,
        max_steps=4,
        micro_batch_tokens=800,
        max_turns=6,
        max_completion_length=16,
        beta=0.1,
        entropy_coef=0.01,
        **values,
    )
    made.train()
    made.close()
    return made


def test_training_ends_with_the_same_weights(tmp_path):
    padded, found = trained(tmp_path / "a"), trained(tmp_path / "b", padding_free=True)
    began = tiny.model(dtype=torch.float64).state_dict()
    for name, weight in found.model.state_dict().items():
        torch.testing.assert_close(weight, padded.model.state_dict()[name], atol=1e-7, rtol=0)
    assert not torch.allclose(padded.model.lm_head.weight, began["lm_head.weight"], atol=1e-3)
    names = ("loss", "kl", "entropy", "clip_ratio/region_mean")
    for one, other in zip(found.state.log_history, padded.state.log_history, strict=True):
        shared = [name for name in names if name in one]
        assert [one[name] for name in shared] == pytest.approx([other[name] for name in shared], abs=1e-6)


def test_a_model_without_positions_is_refused_when_it_is_asked_for(tmp_path):
    from transformers import MptConfig, MptForCausalLM

    tok = tiny.tokenizer()
    model = MptForCausalLM(MptConfig(vocab_size=len(tok), d_model=16, n_heads=2, n_layers=1, expansion_ratio=2))
    with pytest.raises(ConfigurationError, match="`padding_free` is True, but the forward of MptModel takes no"):
        tiny.trainer(tmp_path, model=model, padding_free=True)


@pytest.mark.parametrize("given", [True, None])
def test_an_adapter_that_looks_into_the_whole_row_keeps_it_padded(tmp_path, given):
    from types import SimpleNamespace

    adapter = SimpleNamespace(peft_type="LORA", alora_invocation_tokens=[5, 6])
    model, args = SimpleNamespace(peft_config={"default": adapter}), tiny.config(tmp_path, padding_free=given)
    if given is None:
        assert wanted_without_padding(args, model) is False
        assert wanted_without_padding(args, tiny.model()) is None
    else:
        with pytest.raises(ConfigurationError, match="`padding_free` is True, but an activated LoRA looks for"):
            wanted_without_padding(args, model)
