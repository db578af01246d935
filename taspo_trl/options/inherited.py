"""One table for every option that [`TASPOConfig`] inherits: honoured, without effect, or refused, and why.

Pure. A test fails on an inherited field that is not in the table, so that a new TRL option is never ignored silently.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class NoEffect:
    """The option changes nothing here; setting it is warned about."""

    reason: str
    neutral: tuple[Any, ...]
    """Values that are not worth a warning."""
    unless: Mapping[str, Any] = field(default_factory=dict)
    """The option is honoured after all where all these others have these values."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The option cannot be honoured; any value but the allowed ones is an error."""

    reason: str
    allowed: tuple[Any, ...]


HONOURED = frozenset(
    """
    output_dir per_device_train_batch_size num_train_epochs max_steps learning_rate lr_scheduler_type
    lr_scheduler_kwargs warmup_steps optim optim_args weight_decay adam_beta1 adam_beta2 adam_epsilon
    optim_target_modules gradient_accumulation_steps max_grad_norm bf16 fp16 tf32 activation_checkpointing
    activation_checkpointing_kwargs gradient_checkpointing gradient_checkpointing_kwargs use_liger_kernel
    liger_kernel_config torch_empty_cache_steps logging_strategy logging_steps logging_first_step
    log_on_each_node logging_nan_inf_filter log_level log_level_replica disable_tqdm report_to run_name
    project trackio_space_id trackio_bucket_id trackio_static_space_id eval_strategy eval_steps eval_delay
    per_device_eval_batch_size eval_on_start save_only_model save_strategy save_steps save_on_each_node
    save_total_limit enable_jit_checkpoint push_to_hub hub_token hub_private_repo hub_model_id hub_strategy
    hub_always_push hub_revision load_best_model_at_end metric_for_best_model greater_is_better
    restore_callback_states_from_checkpoint full_determinism seed use_cpu
    accelerator_config parallelism_config dataloader_drop_last dataloader_num_workers dataloader_pin_memory
    dataloader_persistent_workers dataloader_prefetch_factor dataloader_multiprocessing_context
    dataloader_in_order ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph
    ddp_backend ddp_timeout fsdp fsdp_config deepspeed debug skip_memory_metrics do_train do_eval
    resume_from_checkpoint local_rank model_init_kwargs trust_remote_code disable_dropout
    cast_lm_head_to_fp32 num_generations num_generations_eval max_completion_length
    ds3_gather_for_generation shuffle_dataset pad_to_multiple_of generation_batch_size steps_per_generation
    temperature top_p top_k min_p generation_kwargs chat_template_kwargs cache_implementation beta
    num_iterations epsilon delta epsilon_high reward_weights scale_rewards mask_truncated_completions
    sync_ref_model ref_model_mixup_alpha ref_model_sync_steps entropy_coef use_bias_correction_kl
    log_completions num_completions_to_print log_unique_prompts log_completions_hub_repo use_vllm
    max_tool_calling_iterations
    """.split()  # noqa: SIM905 - a list of 128 quoted names would be three pages
)

_ONLY_GRPO = "it belongs to another `loss_type`"
_OWN_EVALUATION = "evaluation plays episodes and computes no loss"


def _vllm(*neutral: Any) -> NoEffect:
    return NoEffect("it belongs to `use_vllm=True`", neutral, {"use_vllm": True})


def _server(*neutral: Any) -> NoEffect:
    return _vllm_mode("server", neutral)


def _colocate(*neutral: Any) -> NoEffect:
    return _vllm_mode("colocate", neutral)


def _vllm_mode(mode: str, neutral: tuple[Any, ...]) -> NoEffect:
    reason = f'it belongs to `use_vllm=True` and `vllm_mode="{mode}"`'
    return NoEffect(reason, neutral, {"use_vllm": True, "vllm_mode": mode})


NO_EFFECT: Mapping[str, NoEffect] = {
    "average_tokens_across_devices": NoEffect("the loss coefficients are global already", (True, False)),
    "include_num_input_tokens_seen": NoEffect("`num_tokens` is always logged", ("no", False)),
    "use_cache": NoEffect("generation and scoring decide for themselves", (False, True, None)),
    "prediction_loss_only": NoEffect(_OWN_EVALUATION, (False,)),
    "eval_do_concat_batches": NoEffect(_OWN_EVALUATION, (True,)),
    "eval_use_gather_object": NoEffect(_OWN_EVALUATION, (False,)),
    "eval_accumulation_steps": NoEffect(_OWN_EVALUATION, (None,)),
    "include_for_metrics": NoEffect(_OWN_EVALUATION, ([], None)),
    "batch_eval_metrics": NoEffect(_OWN_EVALUATION, (False,)),
    "label_names": NoEffect("there are no labels", (None, [])),
    "length_column_name": NoEffect("tasks have no length", ("length",)),
    "data_seed": NoEffect("TRL's sampler draws tasks with `seed`", (None,)),
    "do_predict": NoEffect("use `evaluate`", (False,)),
    "log_multimodal": NoEffect("environments are text", (True, False)),
    "sapo_temperature_neg": NoEffect(_ONLY_GRPO, (1.05,)),
    "sapo_temperature_pos": NoEffect(_ONLY_GRPO, (1.0,)),
    "vespo_k_pos": NoEffect(_ONLY_GRPO, (2.0,)),
    "vespo_lambda_pos": NoEffect(_ONLY_GRPO, (3.0,)),
    "vespo_k_neg": NoEffect(_ONLY_GRPO, (3.0,)),
    "vespo_lambda_neg": NoEffect(_ONLY_GRPO, (2.0,)),
    "entropy_coef_min": NoEffect("it belongs to `use_adaptive_entropy`", (0.0,)),
    "entropy_coef_max": NoEffect("it belongs to `use_adaptive_entropy`", (1.0,)),
    "entropy_coef_delta": NoEffect("it belongs to `use_adaptive_entropy`", (0.005,)),
    "entropy_target": NoEffect("it belongs to `use_adaptive_entropy`", (0.2,)),
    "transformers_continuous_batching_config": NoEffect("continuous batching is refused", (None,)),
    "vllm_mode": _vllm("colocate", "server"),
    "vllm_model_impl": _colocate("vllm"),
    "vllm_enable_sleep_mode": _colocate(False),
    "vllm_structured_outputs_regex": _vllm(None),
    "vllm_server_base_url": _server(None),
    "vllm_server_host": _server("0.0.0.0"),
    "vllm_server_port": _server(8000),
    "vllm_server_timeout": _server(240.0),
    "vllm_group_port": _server(51216),
    "vllm_gpu_memory_utilization": _colocate(0.3),
    "vllm_max_model_length": _colocate(None),
    "vllm_tensor_parallel_size": _colocate(1),
    "vllm_importance_sampling_correction": _vllm(True, False),
    "vllm_importance_sampling_mode": _vllm("sequence_mask"),
    "vllm_importance_sampling_clip_max": _vllm(3.0),
    "vllm_importance_sampling_clip_min": _vllm(None),
    "vllm_importance_sampling_cap": _vllm(None),
}

REFUSED: Mapping[str, Refused] = {
    "loss_type": Refused("the method's objective is GRPO's clipped surrogate, averaged as E8 says.", ("grpo",)),
    "importance_sampling_level": Refused(
        "the ratio and its dual clip are defined for single tokens here.", ("token",)
    ),
    "multi_objective_aggregation": Refused(
        "a trajectory has one advantage, from the sum of its rewards. Use `reward_weights`.", ("sum_then_normalize",)
    ),
    "top_entropy_quantile": Refused("a turn's weight applies to every sampled token of it.", (1.0,)),
    "use_adaptive_entropy": Refused("the entropy bonus has a fixed coefficient. Use `entropy_coef`.", (False,)),
    "off_policy_mask_threshold": Refused("masking whole sequences would break the mean-one weights.", (None,)),
    "repetition_penalty": Refused(
        "log-probabilities are scored without it, so the policy that acts would not be the policy that learns.", (1.0,)
    ),
    "router_aux_loss_coef": Refused(
        "the load-balancing loss of mixture-of-experts models is not part of the objective. Set it to 0.0.",
        (None, 0.0),
    ),
    "use_transformers_continuous_batching": Refused(
        "turns are generated in token-budget batches (`generation_tokens`).", (False,)
    ),
    "use_transformers_paged": Refused("turns are generated in token-budget batches (`generation_tokens`).", (False,)),
    "label_smoothing_factor": Refused("there are no labels to smooth.", (0.0,)),
    "neftune_noise_alpha": Refused("noise in the update but not in the scoring would bias every ratio.", (None,)),
    "ignore_data_skip": Refused(
        "a resumed run would draw its first tasks again and write over the records of the first rollout batches. "
        "Skipping what was drawn costs next to nothing here.",
        (False,),
    ),
    "auto_find_batch_size": Refused(
        "groups must stay whole. Lower `micro_batch_tokens` when memory runs out.", (False,)
    ),
    "torch_compile": Refused("micro-batches differ in shape, and each shape would be compiled anew.", (False,)),
    "torch_compile_backend": Refused("see `torch_compile`.", (None,)),
    "torch_compile_mode": Refused("see `torch_compile`.", (None,)),
    "bf16_full_eval": Refused("evaluation plays with the policy as it is trained.", (False,)),
    "fp16_full_eval": Refused("evaluation plays with the policy as it is trained.", (False,)),
    "remove_unused_columns": Refused("a row's columns are the task: `reset` takes them.", (False,)),
    "train_sampling_strategy": Refused("TRL's sampler draws whole groups. Use `shuffle_dataset`.", ("random",)),
}


def check_options(values: Mapping[str, Any]) -> None:
    """Refuse what cannot be honoured and warn about what has no effect.

    Args:
        values (`Mapping[str, Any]`):
            Field name -> value, of a configuration.

    Raises:
        ConfigurationError: a refused option has a value that is not allowed; the message gives the reason.
    """
    for name, rule in REFUSED.items():
        if name in values and _plain(values[name]) not in rule.allowed:
            allowed = " or ".join(repr(value) for value in rule.allowed)
            raise ConfigurationError(
                f"`{name}={values[name]!r}` cannot be honoured by TASPOTrainer: {rule.reason} Allowed: {allowed}."
            )
    for name, note in NO_EFFECT.items():
        is_honoured = bool(note.unless) and all(values.get(other) == value for other, value in note.unless.items())
        if name in values and _plain(values[name]) not in note.neutral and not is_honoured:
            warnings.warn(
                f"`{name}={values[name]!r}` has no effect with TASPOTrainer: {note.reason}.", UserWarning, stacklevel=3
            )


def _plain(value: Any) -> Any:
    return getattr(value, "value", value)  # transformers keeps some options as enums
