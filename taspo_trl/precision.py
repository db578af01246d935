"""Which number formats a machine computes fast, and which its mixed precision can train."""

from __future__ import annotations

import torch
from transformers.utils import is_torch_bf16_gpu_available


def has_bf16_gpu() -> bool:
    """Whether an accelerator multiplies bfloat16 in hardware: older GPUs (a T4) emulate it, slower than float32."""
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return is_torch_bf16_gpu_available()


def has_bf16_cpu() -> bool:
    """Whether this CPU multiplies bfloat16 in hardware; elsewhere float32 is faster."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def keep_trained_weights_in_float32(model: torch.nn.Module) -> None:
    """Turn trained parameters of half precision into float32, in place.

    float16's loss scaler refuses gradients of any other type, and TRL keeps the adapter of a quantised base in
    bfloat16.
    """
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.dtype in (torch.float16, torch.bfloat16):
            parameter.data = parameter.data.float()
