"""A model as the frozen rollout policy: nothing of it is random, and every flag is as before afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    import torch


@contextlib.contextmanager
def frozen_mode(model: torch.nn.Module) -> Iterator[None]:
    """Every module in eval mode inside, every module's own flag restored after: no dropout, no checkpointing.

    4-bit layers of bitsandbytes stay in training mode, where they compute the same. In eval mode on a CPU their first
    forward without gradients repacks the weights for a kernel that has no backward: training would go on in silence
    with gradients that stop there.
    """
    flags = [(module, module.training) for module in model.modules()]
    model.eval()
    for module, _ in flags:
        if type(module).__name__ == "Linear4bit":
            module.training = True
    try:
        yield
    finally:
        for module, flag in flags:
            module.training = flag
