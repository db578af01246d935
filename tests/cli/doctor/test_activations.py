"""The activation formula against what autograd really keeps for the backward, byte for byte."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from taspo_trl.cli.doctor.memory import Precision, Setup, activation_bytes
from taspo_trl.cli.doctor.model_shape import shape_of


ROWS, LENGTH = 4, 128
SIZES = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": LENGTH,
}


def kept_bytes(model, is_padded: bool) -> int:
    """Bytes of the storages that a forward of the decoder saves, weights left out."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    storages = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            storages[storage.data_ptr()] = (storage.nbytes(), tensor)  # held, so that no address is used twice
        return tensor

    ids = torch.zeros(ROWS, LENGTH, dtype=torch.long)
    mask = torch.ones_like(ids)
    if is_padded:
        mask[1:, -3:] = 0
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = model.model(input_ids=ids, attention_mask=mask, use_cache=False)
    assert output.last_hidden_state.requires_grad
    return sum(size for size, _ in storages.values())


@pytest.mark.parametrize("is_padded", [False, True], ids=["even rows", "padded rows"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("model_class", "config_class"), [(LlamaForCausalLM, LlamaConfig), (Qwen2ForCausalLM, Qwen2Config)]
)
def test_a_layer_keeps_what_the_formula_says(model_class, config_class, dtype, is_padded):
    one, three = (model_class(config_class(num_hidden_layers=k, **SIZES)).to(dtype).train() for k in (1, 3))
    added = kept_bytes(three, is_padded) - kept_bytes(one, is_padded)
    size = torch.finfo(dtype).bits // 8
    setup = Setup(Precision(size, size), row_tokens=LENGTH)
    assert added / 2 == activation_bytes(shape_of(one), setup, is_padded) * ROWS * LENGTH
