"""Losses and gradients that are no finite numbers: their optimizer step is skipped, counted and said aloud."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from typing import Any

import torch

from ..errors import NonFiniteError


logger = logging.getLogger(__name__)


@dataclass
class FiniteSteps:
    """Decides, the same way on every process, whether an optimizer step may be taken.

    Args:
        most_in_a_row (`int`):
            So many skipped steps in a row end the run (`max_nonfinite_steps`).
        accelerator (`Accelerator`):
            Processes, device, loss scaler.
    """

    most_in_a_row: int
    accelerator: Any
    num_skipped: int = 0
    """Optimizer steps of the run that were skipped."""
    in_a_row: int = 0
    _loss: torch.Tensor | None = field(default=None, repr=False)

    def note(self, loss: torch.Tensor) -> None:
        """A micro-batch's loss, before its backward pass.

        Raises:
            NonFiniteError: it is not finite on some process and DeepSpeed trains, which takes its optimizer step
                inside the backward pass and could not be kept from it.
        """
        value = loss.detach().float()
        self._loss = value if self._loss is None else self._loss + value
        if self.accelerator.distributed_type == "DEEPSPEED" and self._is_bad_somewhere(~torch.isfinite(value)):
            raise NonFiniteError(f"The loss is not finite on some process. {_REMEDY}")

    def allows(self, model: Any, grad_norm: Any, step: int) -> bool:
        """Whether the gradients of `model` may move its weights; removes them if not, so that no optimizer does.

        float16's loss scaler skips steps with infinite gradients by itself, which is its way of finding its scale:
        there only the loss counts.

        Args:
            model (`torch.nn.Module`), grad_norm (`float` or `torch.Tensor`, *optional*):
                The model and the norm of its gradients, before clipping.
            step (`int`):
                The optimizer step, for the warning.

        Raises:
            NonFiniteError: too many steps in a row were skipped.
        """
        has_scaler = getattr(self.accelerator, "scaler", None) is not None
        loss, self._loss = self._loss, None
        is_loss_bad = loss is not None and not bool(torch.isfinite(loss))
        is_norm_bad = grad_norm is not None and not has_scaler and not bool(torch.isfinite(_number(grad_norm)))
        if not self._is_bad_somewhere(is_loss_bad or is_norm_bad):
            self.in_a_row = 0
            return True
        self.num_skipped += 1
        self.in_a_row += 1
        if not has_scaler:
            model.zero_grad(set_to_none=True)
        what = "loss" if is_loss_bad else "gradient" if is_norm_bad else "loss or gradient of another process"
        logger.warning(
            "Optimizer step %d is skipped: its %s is not finite. Weights are as before (%d in a row, %d in all).",
            step,
            what,
            self.in_a_row,
            self.num_skipped,
        )
        if self.in_a_row >= self.most_in_a_row:
            raise NonFiniteError(
                f"The loss or gradient of {self.in_a_row} optimizer steps in a row was not finite "
                f"(`max_nonfinite_steps`); the last is step {step}. {_REMEDY}"
            )
        return False

    def _is_bad_somewhere(self, is_bad: bool | torch.Tensor) -> bool:
        flag = torch.as_tensor(is_bad, dtype=torch.float32, device=self.accelerator.device).reshape(1)
        return bool(self.accelerator.reduce(flag, reduction="sum") > 0)


def finite_or_nan(value: float) -> float:
    """A metric as TRL's averages take it: they leave NaN out and would carry an infinity on."""
    return value if math.isfinite(value) else math.nan


_REMEDY = (
    "The weights were not touched by it. Lower `learning_rate`, use bfloat16 or float32 instead of float16, or look "
    "at the episodes of this step in `_trajectories`."
)


def _number(value: Any) -> torch.Tensor:
    value = value.full_tensor() if hasattr(value, "full_tensor") else value
    return torch.as_tensor(value).float()
