"""Number formats: what the machine has, and what float16's loss scaler can take."""

import pytest
import torch

from taspo_trl import TASPOConfig
from taspo_trl import config as precision
from taspo_trl.errors import ConfigurationError
from taspo_trl.training.assembly import keep_trained_weights_in_float32
from tests import tiny


@pytest.mark.parametrize("in_hardware", [True, False])
def test_a_gpu_that_emulates_bfloat16_does_not_have_it(monkeypatch, in_hardware):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation or in_hardware
    )
    assert precision.has_bf16_gpu() is in_hardware


@pytest.mark.parametrize("use_cpu", [True, False])
def test_cpu_beside_a_gpu_with_bfloat16_trains_in_float32(monkeypatch, tmp_path, use_cpu):
    """F38: what counts is where the model trains, not what else the machine has."""
    monkeypatch.setattr(precision, "has_bf16_gpu", lambda: True)
    monkeypatch.setattr(precision, "is_torch_bf16_gpu_available", lambda: True)
    monkeypatch.setattr("transformers.training_args.is_torch_bf16_gpu_available", lambda: True)
    assert TASPOConfig(str(tmp_path), use_cpu=use_cpu).bf16 is not use_cpu
    assert TASPOConfig(str(tmp_path), use_cpu=True, bf16=True).bf16 is True, "asked for is asked for"


def test_bfloat16_that_is_not_there_is_refused_with_its_remedies(monkeypatch, tmp_path):
    monkeypatch.setattr(precision, "is_torch_bf16_gpu_available", lambda: False)
    with pytest.raises(ConfigurationError, match=r"Leave `bf16` out .*`fp16=True`.*`use_cpu=True`"):
        TASPOConfig(str(tmp_path), use_cpu=False, bf16=True)


def test_trained_half_precision_weights_become_float32_and_others_stay():
    model = torch.nn.ModuleList(
        torch.nn.Linear(2, 2, dtype=dtype) for dtype in (torch.bfloat16, torch.float16, torch.float64)
    )
    frozen = torch.nn.Linear(2, 2, dtype=torch.bfloat16).requires_grad_(False)
    model.append(frozen)
    values = [parameter.detach().clone() for parameter in model.parameters()]
    keep_trained_weights_in_float32(model)
    assert [layer.weight.dtype for layer in model] == [torch.float32, torch.float32, torch.float64, torch.bfloat16]
    assert all(torch.equal(now.to(value.dtype), value) for now, value in zip(model.parameters(), values, strict=True))


@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
def test_bfloat16_training_decodes_from_kept_keys(tmp_path, weights):
    """accelerate turns what a forward gives into float32, and looks into everything that is in it."""
    made = tiny.trainer(tmp_path, model=tiny.model(dtype=weights), bf16=True, max_turns=2)
    engine = made.engine.engine
    made.train()
    assert engine.why_generate == "" and engine.counts["reply_tokens"] > 0
    made.close()
