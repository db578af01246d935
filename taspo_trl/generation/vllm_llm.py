"""vLLM's `LLM` inside the training process, started as TRL starts it, with its weights and its sleep.

Everything here needs a GPU; the policy that samples with it does not (`vllm_colocate.py`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import torch

from ..errors import ConfigurationError, MissingDependencyError


def make_llm(args: Any, model: Any, accelerator: Any) -> Any:
    """TRL's colocated engine: one for each process, on the process's own device.

    Args:
        args ([`~taspo_trl.TASPOConfig`]):
            TRL's `vllm_*` options.
        model ([`~transformers.PreTrainedModel`]):
            Names the folder or hub id that the engine loads; its weights are replaced at the first synchronisation.
        accelerator ([`~accelerate.Accelerator`]):
            Processes and devices.
    """
    if accelerator.device.type == "cpu":
        raise ConfigurationError(
            '`vllm_mode="colocate"` needs a GPU: vLLM cannot load new weights on a CPU. Use a GPU, or generate with '
            "transformers (`use_vllm=False`)."
        )
    if not model.name_or_path:
        raise ConfigurationError(
            'The model has no name or folder that `vllm_mode="colocate"` could load. Save it with `save_pretrained` '
            "and pass the folder."
        )
    try:
        from vllm import LLM
    except ImportError as error:
        raise MissingDependencyError(
            '`vllm_mode="colocate"` needs vLLM: `pip install -e ".[vllm]"` in the clone.'
        ) from error
    from trl.trainer.utils import ensure_master_addr_port

    # vLLM's launcher reads these.
    os.environ["RANK"] = str(accelerator.process_index)
    os.environ["LOCAL_RANK"] = str(accelerator.local_process_index)
    os.environ["WORLD_SIZE"] = str(accelerator.num_processes)
    ensure_master_addr_port()
    return LLM(
        model=model.name_or_path,
        tensor_parallel_size=1,
        gpu_memory_utilization=args.vllm_gpu_memory_utilization,
        max_model_len=args.vllm_max_model_length,
        max_num_seqs=args.per_device_train_batch_size * args.steps_per_generation,
        enable_sleep_mode=args.vllm_enable_sleep_mode,
        model_impl=args.vllm_model_impl,
        distributed_executor_backend="external_launcher",
        seed=accelerator.process_index,
        max_num_batched_tokens=4096,  # TRL's: the default misleads vLLM's memory profiler
        logprobs_mode="processed_logprobs",  # after temperature, as scoring has them
        trust_remote_code=args.trust_remote_code,
    )


def parameter_maker(structured_outputs_regex: str | None) -> Any:
    """Keywords -> vLLM's `SamplingParams`, which report a reply once, when it is finished."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    structured = StructuredOutputsParams(regex=structured_outputs_regex) if structured_outputs_regex else None

    def make(**keywords: Any) -> Any:
        extra = {"structured_outputs": structured} if structured is not None else {}
        return SamplingParams(output_kind=RequestOutputKind.FINAL_ONLY, **{**keywords, **extra})

    return make


class ColocateWeights:
    """Loads weights into the engine of this process, and lets it sleep between generations.

    Args:
        llm:
            vLLM's `LLM`.
        has_sleep_mode (`bool`):
            TRL's `vllm_enable_sleep_mode`: the engine gives its memory back while the policy is updated. It sleeps
            from the start, and loses its weights with every sleep.
    """

    def __init__(self, llm: Any, has_sleep_mode: bool):
        self._llm = llm
        self._has_sleep_mode = has_sleep_mode
        self._is_asleep = False
        self.sleep()

    def load(self, parameters: Iterable[tuple[str, torch.Tensor]]) -> None:
        if self._is_asleep:
            from trl.generation.vllm_generation import empty_cache

            empty_cache()  # the engine needs the memory that torch keeps in reserve
            self._llm.wake_up(tags=["weights"])
        engine_model = self._llm.llm_engine.model_executor.driver_worker.model_runner.model
        for name, param in parameters:
            engine_model.load_weights([(name, param)])
        self._llm.reset_prefix_cache()

    def wake(self) -> None:
        """Make room for the key-value cache; the weights are loaded already."""
        if self._is_asleep:
            self._llm.wake_up(tags=["kv_cache"])
            self._is_asleep = False

    def sleep(self) -> bool:
        """Give the memory back, the weights' included; False without sleep mode."""
        if self._has_sleep_mode and not self._is_asleep:
            self._llm.sleep(level=2)
            self._is_asleep = True
        return self._has_sleep_mode
