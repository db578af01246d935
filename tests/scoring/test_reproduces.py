"""What our forwards do not reproduce is refused by name, or scored in whole forwards; the rest passes."""

from __future__ import annotations

import copy
import logging

import pytest
import torch
import transformers

from taspo_trl.errors import ConfigurationError
from taspo_trl.scoring import projection
from taspo_trl.scoring.paired import PairedRow, score_pairs
from taspo_trl.scoring.projection import add_selected_projection
from taspo_trl.scoring.reproduces import compare, require_reproduction


SMALL = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "pad_token_id": 0,
}
GROUPED = {**SMALL, "num_key_value_heads": 2}
PASSES, WHOLE, REFUSED = "passes", "whole forwards", "refused"
CLASSES = {
    "Llama": (GROUPED, PASSES),
    "Qwen2": (GROUPED, PASSES),
    "Qwen3": ({**GROUPED, "head_dim": 8}, PASSES),
    "Phi3": (GROUPED, PASSES),
    "Cohere": ({**GROUPED, "logit_scale": 0.5}, PASSES),
    "GPT2": ({"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4}, PASSES),
    # Its own forward calls a part of the backbone.
    "OPT": ({**SMALL, "ffn_dim": 64, "word_embed_proj_dim": 32, "max_position_embeddings": 64}, PASSES),
    "Gemma2": ({**GROUPED, "head_dim": 8, "sliding_window": 8, "final_logit_softcapping": 5.0}, WHOLE),
    "Mistral": ({**GROUPED, "sliding_window": 8}, WHOLE),
    "Mpt": ({"vocab_size": 99, "d_model": 32, "n_heads": 4, "n_layers": 2, "expansion_ratio": 2}, WHOLE),
    "RecurrentGemma": (
        {**GROUPED, "num_key_value_heads": 1, "num_hidden_layers": 3, "lru_width": 32, "attention_window_size": 16},
        WHOLE,
    ),
    "ModernBertDecoder": ({**SMALL, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}, REFUSED),
    # Its `base_model` is the model itself.
    "Llama4Text": ({**GROUPED, "head_dim": 8, "intermediate_size_mlp": 64, "num_local_experts": 2}, WHOLE),
    "Bert": ({**SMALL, "is_decoder": True}, REFUSED),
}


def build(name, dtype=torch.float64):
    """A random model of the class, with weights large enough for its attention to matter."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**CLASSES[name][0])
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0, parameter.shape[-1] ** -0.5)
    model = model.to(dtype).eval()
    add_selected_projection(model, 0.7)
    return model


@pytest.mark.parametrize("name", CLASSES)
def test_classes(name, recwarn):
    model, outcome = build(name), CLASSES[name][1]
    if outcome == REFUSED:
        with pytest.raises(ConfigurationError, match=rf"^{type(model).__name__} computes its logits"):
            require_reproduction(model, 0.7)
        return
    found = require_reproduction(model, 0.7)
    assert not found.skipped
    assert found.continues is (outcome == PASSES)
    assert found.difference < 1e-6
    warned = [str(one.message) for one in recwarn if "whole forwards" in str(one.message)]
    assert bool(warned) is (name == "Mpt")


def test_what_falls_back_is_exact():
    """MPT counts absolute keys: continued with padding between it is wrong, and in whole forwards it is right."""
    model = build("Mpt")
    rows = [
        PairedRow(tuple(range(9, 20)), 4, ((3, 5, 7),), (6, 9)),
        PairedRow(tuple(range(40, 60)), 12, ((8,),), (15,)),
    ]
    with torch.no_grad():
        continued = score_pairs(model, rows, max_tokens=10_000)
        with pytest.warns(UserWarning, match="MptForCausalLM cannot continue"):
            require_reproduction(model, 0.7)
        whole = score_pairs(model, rows, max_tokens=10_000)
        ids = torch.tensor([[*rows[0].ids[:4], 3, 5, 7, *rows[0].ids[4:]]])
        logps = torch.log_softmax(model(input_ids=ids).logits[0] / 0.7, -1)
    expected = [logps[p + 2, rows[0].ids[p]].item() for p in rows[0].positions]
    assert whole[0].guided[0] == pytest.approx(expected, abs=1e-5)  # MPT's softmax is in float32
    assert continued[0].guided[0] != pytest.approx(expected, abs=1e-3)


def test_a_soft_cap_that_is_not_seen_is_found_at_small_logits(monkeypatch):
    model = build("Gemma2", torch.float32)
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(1e-3)  # logits around 0.01: the cap bends nothing yet
    assert not compare(model, 0.7).refused
    monkeypatch.setattr(projection, "_logit_transform", lambda config: (1.0, None))
    del model.forward
    add_selected_projection(model, 0.7)
    assert "differ by up to" in compare(model, 0.7).refused


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_precision_passes_and_flags_stay(dtype):
    model = build("Qwen2", dtype).train()
    model.model.layers[0].eval()
    before = copy.deepcopy({name: module.training for name, module in model.named_modules()})
    torch.manual_seed(5)
    drawn = torch.rand(1)
    torch.manual_seed(5)
    found = require_reproduction(model, 0.7)
    assert torch.equal(torch.rand(1), drawn)
    assert found.continues and not found.refused and not found.skipped
    assert {name: module.training for name, module in model.named_modules()} == before
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not model.model._forward_hooks


def test_what_cannot_be_seen_is_skipped_with_a_reason(caplog):
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**GROUPED))
    add_selected_projection(model)
    with caplog.at_level(logging.INFO, "taspo_trl"):
        assert require_reproduction(model).skipped == "its weights are on the meta device"
    assert "LlamaForCausalLM was not compared" in caplog.text
    assert require_reproduction(build("Llama"), is_sharded=True).skipped == "its weights are sharded"


def test_processes_come_to_one_decision():
    model, other = build("Llama"), compare(build("Mpt"), 0.7)
    with pytest.warns(UserWarning, match="MptForCausalLM"):
        assert not require_reproduction(model, 0.7, gather=lambda mine: [*mine, other]).continues
    refused = compare(build("ModernBertDecoder"), 0.7)
    with pytest.raises(ConfigurationError, match="ModernBertDecoder"):
        require_reproduction(model, 0.7, gather=lambda mine: [*mine, refused])
