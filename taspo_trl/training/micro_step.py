"""The update of one micro-step: a forward and a backward of the loss for each of its micro-batches."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ..loss.batches import LossRow


def run_micro_batches(
    micro_batches: Sequence[Sequence[LossRow]],
    step: Callable[[int, Sequence[LossRow]], torch.Tensor],
    accelerator: Any,
    model: Any,
) -> torch.Tensor:
    """Add the gradients of a micro-step's rows.

    Args:
        micro_batches (`Sequence[Sequence[LossRow]]`):
            This process's; every process has the same number.
        step (`Callable`):
            Forward and backward of one micro-batch, by its number and rows; gives its detached loss.
        accelerator ([`~accelerate.Accelerator`]), model:
            As the trainer has them.

    Returns:
        `torch.Tensor`: the sum of the micro-batches' losses.
    """
    losses = []
    for k, rows in enumerate(micro_batches):
        with _gradients_shared(accelerator, model, k == len(micro_batches) - 1):
            losses.append(step(k, rows))
    return torch.stack(losses).sum()


@contextlib.contextmanager
def _gradients_shared(accelerator: Any, model: Any, is_last: bool) -> Iterator[None]:
    """Gradients of all but the last micro-batch of a micro-step stay on their process."""
    if is_last:
        yield
        return
    state = accelerator.gradient_state
    flag = state.sync_gradients
    state._set_sync_gradients(False)
    try:
        with accelerator.no_sync(model):
            yield
    finally:
        state._set_sync_gradients(flag)


def total_sums(sums: dict[str, torch.Tensor], accelerator: Any) -> dict[str, float]:
    """The sums over a micro-step's loss tokens, over all processes."""
    names = sorted(sums)
    stacked = torch.stack([sums[name].double().to(accelerator.device) for name in names])
    return dict(zip(names, accelerator.reduce(stacked, reduction="sum").tolist(), strict=True))
