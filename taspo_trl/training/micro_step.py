"""The update of one micro-step: a forward and a backward of the loss for each of its micro-batches."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import torch
from transformers import Trainer

from ..loss.batches import LossRow
from ..loss.objective import taspo_loss, token_sums
from ..reporting.metrics import update_metrics
from ..scoring.projection import selected_forward


class UpdateMixin:
    """The loss of [`~taspo_trl.TASPOTrainer`] (E8), and what is logged of it."""

    args: Any
    accelerator: Any
    beta: float
    current_gradient_accumulation_steps: int
    entropy_coef: float
    epsilon_low: float
    epsilon_high: float
    experience_maker: Any
    _loss_sums: dict[str, torch.Tensor]
    _metrics: Any
    _update_seconds: float

    def _update(self, model: Any, micro_batches: list[list[LossRow]], num_items_in_batch: Any) -> torch.Tensor:
        """Add the gradients of a micro-step's rows; the sum of the micro-batches' losses."""
        started = time.perf_counter()
        self._loss_sums = {}
        losses = []
        for k, rows in enumerate(micro_batches):
            with self._gradients_shared(model, k == len(micro_batches) - 1):
                tensors = self.experience_maker.passes.collate(rows)
                losses.append(Trainer.training_step(self, model, tensors, num_items_in_batch))  # type: ignore[arg-type]
        self._log_update()
        self._update_seconds += time.perf_counter() - started
        return torch.stack(losses).sum()

    def _prepare_inputs(self, inputs):
        return inputs  # collated on the device already

    @contextlib.contextmanager
    def _gradients_shared(self, model: Any, is_last: bool) -> Iterator[None]:
        """Gradients of all but the last micro-batch of a micro-step stay on their process."""
        if is_last:
            yield
            return
        state = self.accelerator.gradient_state
        flag = state.sync_gradients
        state._set_sync_gradients(False)
        try:
            with self.accelerator.no_sync(model):
                yield
        finally:
            state._set_sync_gradients(flag)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """E8 of one micro-batch, with the credit weights applied.

        Processes average their gradients, so the local sum is multiplied by their number.
        """
        if return_outputs:
            raise ValueError("The TASPOTrainer does not support returning outputs")
        output = selected_forward(model, inputs, want_entropies=True)
        terms = taspo_loss(
            output.logps,
            inputs.get("old_logps", output.logps.detach()),
            inputs["advantages"],
            inputs["coefficients"],
            epsilon_low=self.epsilon_low,
            epsilon_high=self.epsilon_high,
            delta=self.args.delta,
            # A zero row has no reference: it counts nowhere, but every process must have the same sums to reduce.
            ref_logps=inputs.get("ref_logps", output.logps.detach()),
            beta=self.beta,
            use_bias_correction_kl=self.args.use_bias_correction_kl,
            entropies=output.entropies,
            entropy_coef=self.entropy_coef,
            importance_ratio=inputs.get("importance_ratios"),
        )
        for name, value in token_sums(terms, output.entropies, inputs["coefficients"]).items():
            self._loss_sums[name] = self._loss_sums.get(name, 0.0) + value
        return terms.loss * self.accelerator.num_processes

    def _log_update(self) -> None:
        """Averages over the loss tokens of one micro-step, over all processes."""
        names = sorted(self._loss_sums)
        sums = torch.stack([self._loss_sums[name].double().to(self.accelerator.device) for name in names])
        totals = dict(zip(names, self.accelerator.reduce(sums, reduction="sum").tolist(), strict=True))
        # TRL averages over micro-steps, while an optimizer step's loss is their sum.
        totals["policy_loss"] *= self.current_gradient_accumulation_steps
        for name, value in update_metrics(totals).items():
            self._metrics["train"][name].append(value)
