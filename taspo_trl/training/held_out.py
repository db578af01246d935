"""The trainer's `evaluate`: held-out tasks played with the policy as it is, the result logged and saved."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import Trainer

from ..errors import ConfigurationError
from ..evaluation.results import EvaluationResult, evaluate_tasks
from ..generation import SamplingSettings
from ..reporting.card_facts import split_names


class EvaluationMixin:
    """The evaluation of [`~taspo_trl.TASPOTrainer`], in place of the Trainer's loop over prediction steps."""

    args: Any
    state: Any
    control: Any
    accelerator: Any
    callback_handler: Any
    environment_pool: Any
    eval_dataset: Any
    experience_maker: Any
    num_generations_eval: int
    is_in_train: bool
    is_world_process_zero: Any
    _gather: Any
    _generating: Any
    _progress: Any
    _weights_step: int

    last_evaluation: EvaluationResult
    """What the last `evaluate` found, task by task."""

    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix: str = "eval") -> dict[str, float]:
        """Play each task of the evaluation data `num_generations_eval` times and log how it went.

        No analyzer request, no guidance, no loss; the training state is not touched. The full result is written to
        `output_dir/_evaluations` and kept in `last_evaluation`.

        Returns:
            `dict[str, float]`: `eval_success`, its interval, macro mean, families, turns, stop reasons, seconds.
        """
        data = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(data, Mapping):
            metrics: dict[str, float] = {}
            for name, one in data.items():
                metrics |= self.evaluate(one, ignore_keys, f"{metric_key_prefix}_{name}")
            return metrics
        if isinstance(data, str):
            data = self.eval_dataset[data]
        if data is None:
            raise ConfigurationError("`evaluate` needs an `eval_dataset`, here or in the trainer.")
        started = time.perf_counter()
        try:
            result = self._play_evaluation(list(data))
        finally:
            if not self.is_in_train:
                self.environment_pool.close_instances()
        seconds = time.perf_counter() - started
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in result.metrics().items()}
        metrics[f"{metric_key_prefix}_runtime"] = seconds
        metrics[f"{metric_key_prefix}_samples_per_second"] = len(result.plays) / seconds
        if self.is_world_process_zero():
            folder = Path(self.args.output_dir) / "_evaluations"
            result.save(folder / f"{metric_key_prefix}_{self.state.global_step:06d}.json")
        self.last_evaluation = result
        # None for a mean of nothing: JSON has no NaN. TRL's `log` would flush the training metrics into this entry.
        logs: Any = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        Trainer.log(self, logs)  # type: ignore[arg-type]
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _play_evaluation(self, rows: list[dict[str, Any]]) -> EvaluationResult:
        args, collector = self.args, self.experience_maker.collector
        mine = slice(self.accelerator.process_index, None, self.accelerator.num_processes)
        with self._progress(len(rows[mine]) * self.num_generations_eval, "evaluation") as bar, self._generating():
            result = evaluate_tasks(
                rows,
                part=mine,
                policy=collector.policy,
                pool=collector.pool,
                renderer=collector.renderer,
                rollout=collector.rollout,
                sampling=SamplingSettings(args.eval_temperature, args.eval_top_p),
                seed=args.eval_seed,
                num_plays=self.num_generations_eval,
                max_in_flight=args.per_device_eval_batch_size,
                on_play=lambda play: bar.update(),
                settings={"global_step": self.state.global_step, "weights_step": self._weights_step},
            )
        plays = self._gather(list(result.plays))
        splits = list(split_names(row.get("split") for row in rows))
        return EvaluationResult(tuple(plays), {**result.settings, "splits": splits})

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        raise NotImplementedError("TASPOTrainer evaluates by playing episodes: use `evaluate`.")
