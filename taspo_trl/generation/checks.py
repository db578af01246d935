"""Options and models that generation with vLLM cannot honour, refused before anything is started."""

from __future__ import annotations

import warnings
from typing import Any, Literal, get_args

from ..errors import ConfigurationError
from .completions import check_extra


ImportanceMode = Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]
MODES: tuple[str, ...] = get_args(ImportanceMode)
"""TRL's ways of correcting for an engine that samples from slightly other probabilities."""


def check_vllm_options(args: Any) -> None:
    """Raise [`~taspo_trl.errors.ConfigurationError`] for values of TRL's `vllm_*` that cannot work. Pure.

    Args:
        args ([`~taspo_trl.TASPOConfig`]):
            With `use_vllm=True`.
    """
    if args.vllm_mode not in ("server", "colocate"):
        raise ConfigurationError(f"`vllm_mode` must be 'server' or 'colocate', got {args.vllm_mode!r}.")
    if args.vllm_importance_sampling_mode not in MODES:
        raise ConfigurationError(
            f"`vllm_importance_sampling_mode` must be one of {', '.join(map(repr, MODES))}, got "
            f"{args.vllm_importance_sampling_mode!r}."
        )
    if args.vllm_mode == "server" and not args.vllm_server_timeout > 0:
        raise ConfigurationError(f"`vllm_server_timeout` must be positive, got {args.vllm_server_timeout!r}.")
    if args.vllm_mode == "colocate" and args.vllm_tensor_parallel_size != 1:
        raise ConfigurationError(
            f"`vllm_tensor_parallel_size={args.vllm_tensor_parallel_size}` cannot be honoured in colocate mode: an "
            "engine that spans processes needs all of them to ask at the same time, but an episode asks when its "
            'environment answers. Use `vllm_mode="server"` with `vllm serve --tensor-parallel-size`.'
        )
    if args.vllm_mode == "colocate" and args.score_during_rollout:
        raise ConfigurationError(
            "`score_during_rollout=True` cannot be honoured in colocate mode, where engine and scoring would take "
            'time and memory of one GPU from each other. Leave it out, or use `vllm_mode="server"`.'
        )
    check_extra(args.generation_kwargs or {})
    if args.cache_implementation is not None:
        warnings.warn(
            f"`cache_implementation={args.cache_implementation!r}` has no effect with `use_vllm=True`.",
            UserWarning,
            stacklevel=2,
        )


def check_unquantized(args: Any, model: Any, quantization_config: Any = None) -> None:
    """Refuse a quantised base together with vLLM, before the model is loaded or after.

    Args:
        args ([`~taspo_trl.TASPOConfig`]):
            The options.
        model (`str` or [`~transformers.PreTrainedModel`]):
            What the trainer was given, or made of it.
        quantization_config (*optional*):
            The trainer's argument.
    """
    if not args.use_vllm:
        return
    asked = quantization_config or (args.model_init_kwargs or {}).get("quantization_config")
    if asked is None and (isinstance(model, str) or not _is_quantized(model)):
        return
    raise ConfigurationError(
        f'A quantised base model cannot generate with vLLM (`vllm_mode="{args.vllm_mode}"`): merging an adapter '
        "quantises the base anew and with a loss, and the engine does not take packed 4- or 8-bit weights, so the "
        "policy that acts would not be the policy that is scored. Generate with transformers (`use_vllm=False`), or "
        "train the adapter on an unquantised bf16 base (no `quantization_config`)."
    )


def check_adapters(model: Any, accelerator: Any) -> None:
    """Refuse adapters whose merged weights cannot be given to an engine."""
    adapters = getattr(model, "peft_config", None) or {}
    if not adapters:
        return
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    if plugin is not None and plugin.fsdp_version == 1:
        raise ConfigurationError(
            "Adapters cannot be merged for vLLM under FSDP version 1, which keeps parameters flattened. Set "
            "`fsdp_version: 2` in the accelerate configuration."
        )
    if any(getattr(one, "trainable_token_indices", None) for one in adapters.values()):
        raise ConfigurationError(
            "`trainable_token_indices` adds rows to the embedding that vLLM's copy of the base model does not get. "
            "Train the embedding with `modules_to_save`, or generate with transformers (`use_vllm=False`)."
        )


def _is_quantized(model: Any) -> bool:
    if getattr(model, "is_quantized", False):
        return True
    return any(type(module).__name__ in ("Linear4bit", "Linear8bitLt") for module in model.modules())
