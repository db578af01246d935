"""Where a resumed run goes on: inside the very rollout batch that its checkpoint stands in."""

from __future__ import annotations

import logging
from typing import Any

from ..errors import ConfigurationError
from .checkpoint import Buffer, TrainingState, load_state, save_state


logger = logging.getLogger(__name__)


class ResumingMixin:
    """Checkpoints of [`~taspo_trl.TASPOTrainer`]: the Trainer's methods for the random state carry ours along."""

    args: Any
    accelerator: Any
    num_iterations: int
    _step: int
    _buffer: Buffer | None
    _micro_steps_per_rollout: int

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)  # type: ignore[misc]
        is_partly_used = self._step % self._micro_steps_per_rollout != 0
        state = TrainingState(self._step, self._buffer if is_partly_used else None, self._layout)
        save_state(output_dir, self.accelerator.process_index, state)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        super()._load_rng_state(checkpoint)  # type: ignore[misc]
        state = load_state(checkpoint, self.accelerator.process_index) if checkpoint is not None else None
        if state is None:
            return
        per_rollout = state.layout["steps_per_generation"] * state.layout["num_iterations"]
        num_rollouts, num_used = divmod(state.step, per_rollout)
        if not num_used:  # between two batches, which other settings may have other micro-steps for
            self._step, self._buffer = num_rollouts * self._micro_steps_per_rollout, None
            return
        if dict(state.layout) != self._layout:
            raise ConfigurationError(
                f"{checkpoint} stands in a partly used rollout batch made for {dict(state.layout)}, but the run has "
                f"{self._layout}. Resume with the same settings, or from a checkpoint between two rollout batches."
            )
        if state.buffer is None:
            logger.warning(
                "%s does not hold the rows of its partly used rollout batch, which stay behind when a checkpoint goes "
                "to the Hub. The tasks of that batch are played again, for the updates that are left of it.",
                checkpoint,
            )
        self._step, self._buffer = state.step, state.buffer

    @property
    def _layout(self) -> dict[str, int]:
        return {
            "num_processes": self.accelerator.num_processes,
            "steps_per_generation": self.args.steps_per_generation,
            "gradient_accumulation_steps": self.args.gradient_accumulation_steps,
            "num_iterations": self.num_iterations,
        }
