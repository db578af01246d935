"""The activation formula against what autograd really keeps for the backward, byte for byte."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from taspo_trl.cli.doctor.memory import Precision, Setup, activation_bytes
from taspo_trl.cli.doctor.model_shape import shape_of
from taspo_trl.scoring.layout import lay_out


ROWS, LENGTH = 4, 128
SIZES = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": LENGTH,
}


def kept_bytes(model, layout: str) -> int:
    """Bytes of the storages that a forward of the decoder saves, weights left out."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    storages = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            storages[storage.data_ptr()] = (storage.nbytes(), tensor)  # held, so that no address is used twice
        return tensor

    ids = torch.zeros(ROWS, LENGTH, dtype=torch.long)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if layout == "padded rows":
        inputs["attention_mask"][1:, -3:] = 0
    elif layout == "rows without padding":
        inputs = lay_out(ids.tolist(), padding_free=True).inputs
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = model.model(**inputs, use_cache=False)
    assert output.last_hidden_state.requires_grad
    return sum(size for size, _ in storages.values())


@pytest.mark.parametrize("layout", ["even rows", "padded rows", "rows without padding"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("model_class", "config_class"), [(LlamaForCausalLM, LlamaConfig), (Qwen2ForCausalLM, Qwen2Config)]
)
def test_a_layer_keeps_what_the_formula_says(model_class, config_class, dtype, layout):
    assert_kept(model_class, config_class, dtype, layout, "sdpa")


@pytest.mark.parametrize("layout", ["padded rows", "rows without padding"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_eager_attention_keeps_what_the_formula_says(dtype, layout):
    assert_kept(LlamaForCausalLM, LlamaConfig, dtype, layout, "eager")


def assert_kept(model_class, config_class, dtype, layout, attention):
    sizes = {**SIZES, "attn_implementation": attention}
    one, three = (model_class(config_class(num_hidden_layers=k, **sizes)).to(dtype).train() for k in (1, 3))
    added = kept_bytes(three, layout) - kept_bytes(one, layout)
    size = torch.finfo(dtype).bits // 8
    setup = Setup(
        Precision(size, size), row_tokens=LENGTH, micro_batch_tokens=ROWS * LENGTH, attention=attention,
        padding_free=layout == "rows without padding",
    )  # fmt: skip
    assert added / 2 == activation_bytes(shape_of(one), setup, layout != "even rows") * ROWS * LENGTH
