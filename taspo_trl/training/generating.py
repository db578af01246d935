"""Which engine plays the trainer's episodes, and what every process does around them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from trl.models import unwrap_model_for_generation

from ..generation import Policy, TransformersPolicy
from ..generation.build import VLLMEngine, make_vllm_engine


class GenerationMixin:
    """Generation of [`~taspo_trl.TASPOTrainer`]: vLLM, or the model that is trained."""

    args: Any
    state: Any
    model: Any
    model_wrapped: Any
    accelerator: Any
    engine: VLLMEngine | None
    eos_token_ids: list[int]
    experience_maker: Any
    is_in_train: bool
    _dist: Any
    _gather: Any
    _metrics: Any
    _tokenizer: Any

    def _make_engine(self) -> VLLMEngine | None:
        """vLLM, ready to take weights; None = the model generates itself."""
        if not self.args.use_vllm:
            return None
        return make_vllm_engine(
            self.args,
            get_model=lambda: self.model,
            accelerator=self.accelerator,
            stop_token_ids=self.eos_token_ids,
        )

    def _make_policy(self) -> Policy:
        if self.engine is not None:
            return self.engine.policy
        is_sharded = self.accelerator.num_processes > 1 and (self._dist.is_zero3 or self._dist.is_fsdp)
        return TransformersPolicy(
            self.model,
            pad_token_id=self._tokenizer.pad_token_id,
            eos_token_ids=self.eos_token_ids,
            batch_tokens=self.args.generation_tokens,
            cache_implementation=self.args.cache_implementation,
            unwrap=self._model_for_generation,
            most=self._most if is_sharded else None,
        )

    @contextlib.contextmanager
    def _generating(self) -> Iterator[None]:
        """Entered by every process around episodes: the engine has the weights of this step inside."""
        if self.engine is None:
            yield
            policy = self.experience_maker.collector.policy
            if isinstance(policy, TransformersPolicy):
                policy.finish()
            return
        with self.engine.generating(self.state.global_step) as seconds:
            if self.is_in_train:
                self._metrics["train"]["time/weight_sync"].append(seconds)
            yield

    @contextlib.contextmanager
    def _model_for_generation(self) -> Iterator[Any]:
        with (
            unwrap_model_for_generation(
                self.model_wrapped,
                self.accelerator,
                gather_deepspeed3_params=self.args.ds3_gather_for_generation,
                gradient_checkpointing_kwargs=self.args.gradient_checkpointing_kwargs,
            ) as model,
            self._dist.summon_full_params(self.model_wrapped, recurse=False),
        ):
            yield model

    def _most(self, number: int) -> int:
        return max(self._gather([number]))
