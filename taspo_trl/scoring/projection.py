"""Log-probabilities of chosen tokens: the backbone runs once and only the chosen positions meet the LM head.

One function for both scoring branches, old log-probabilities, reference and update, so that all of them share one
numerics. It enters through the model's own `forward`: DDP, FSDP, DeepSpeed, PEFT and autocast see a normal call.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.masking_utils import create_causal_mask
from transformers.modeling_flash_attention_utils import prepare_fa_kwargs_from_position_ids
from transformers.utils import ModelOutput
from transformers.utils.generic import is_flash_attention_requested
from trl.kernels import ChunkedLogProbFunction
from trl.trainer.utils import maybe_gather_lm_head_ctx

from ..errors import ConfigurationError
from ..generation.decoder import cache_keyword as keyword_among
from ..generation.decoder import keeps_all_keys
from .distributions import Distribution, Head, reduce_chunks


_VOCABULARY_TILE = 32768
_WHERE = ("input_ids", "attention_mask", "position_ids")


@dataclass
class SelectedOutput(ModelOutput):
    """What a model with [`add_selected_projection`] returns for `selected_positions`.

    N is the number of chosen positions, in their order.
    """

    logps: torch.Tensor | None = None
    """(N,) log-probability of each target, float32 (float64 for a float64 model)."""
    entropies: torch.Tensor | None = None
    """(N,) entropy of the distribution at each position; None unless asked for."""
    reduced: tuple[torch.Tensor, ...] | None = None
    """What the asked [`~taspo_trl.scoring.distributions.Distribution`] reduces to, each of first dimension N."""
    hidden: torch.Tensor | None = None
    """(N, H) hidden states before the LM head, detached; None unless asked for."""
    cache: Any = None
    """The key-value cache, when `use_cache=True`."""


def add_selected_projection(
    model: PreTrainedModel, temperature: float = 1.0, cast_lm_head_to_fp32: bool = False
) -> None:
    """Teach `model.forward` the arguments `selected_positions`, `selected_targets`, `selected_entropies` and
    `selected_distribution`.

    With them, `forward` returns a [`SelectedOutput`]; without them it is the original. Apply it to the causal language
    model itself, below any PEFT wrapper.

    Args:
        model ([`~transformers.PreTrainedModel`]):
            The model to patch.
        temperature (`float`, *optional*, defaults to `1.0`):
            The logits are divided by it: the sampling temperature, as in TRL.
        cast_lm_head_to_fp32 (`bool`, *optional*, defaults to `False`):
            Project in float32, outside autocast.
    """
    if model.get_output_embeddings() is None:
        raise ConfigurationError(f"{type(model).__name__} has no LM head; TASPO trains causal language models.")
    original_forward = model.forward
    scale, softcap = _logit_transform(model.config.get_text_config())

    @functools.wraps(type(model).forward)  # `generate` validates its arguments against the signature
    def forward(
        self,
        *args,
        selected_positions=None,
        selected_targets=None,
        selected_entropies=False,
        selected_distribution=None,
        **kwargs,
    ):
        if selected_positions is None:
            return original_forward(*args, **kwargs)
        head = self.get_output_embeddings()
        # ZeRO-3 notes at a model's first forward which weights it fetches, and expects the same ever after: the head
        # has to be seen in a forward that selects nothing too.
        _ = head.weight
        kwargs |= _what_separates_rows(self, kwargs)
        outputs = backbone_of(self)(*args, **kwargs)  # looked up at each call: FSDP and PEFT replace it
        hidden = outputs.last_hidden_state.flatten(0, 1)[selected_positions]  # (N, H)
        cache = getattr(outputs, cache_keyword(self), None) if kwargs.get("use_cache") else None
        if len(selected_positions) == 0:
            return SelectedOutput(logps=hidden.new_zeros(0), cache=cache)
        weight, bias = _whole(head)
        logps, entropies = _project(
            hidden,
            weight,
            bias,
            selected_targets,
            temperature=temperature,
            scale=scale,
            softcap=softcap,
            in_fp32=cast_lm_head_to_fp32,
            want_entropies=selected_entropies,
        )
        output = SelectedOutput(logps=logps, entropies=entropies, cache=cache)
        if selected_distribution is not None:
            if selected_distribution.reduce is not None:
                own = _make_head(weight, bias, scale, softcap, temperature, cast_lm_head_to_fp32)
                output.reduced = _reduced(hidden, own, selected_targets, selected_distribution, cast_lm_head_to_fp32)
            if selected_distribution.keep_hidden:
                output.hidden = hidden.detach()
        return output

    model.forward = types.MethodType(forward, model)


def _what_separates_rows(model: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """What the backbone has to be told beside positions that begin anew, so that no row sees another.

    transformers finds the rows in the positions, except where keys are kept; flash attention would look for them in
    every layer.
    """
    position_ids = given.get("position_ids")
    if position_ids is None or given.get("attention_mask") is not None:
        return {}
    config = model.config.get_text_config()
    separate: dict[str, Any] = {}
    keeps_keys = bool(given.get("use_cache")) and keeps_all_keys(config)
    if given.get("use_cache") and not keeps_keys:
        separate["use_cache"] = False  # nothing that could be continued, and a mask for each kind of layer
    if is_flash_attention_requested(config):
        parameters = inspect.signature(type(backbone_of(model)).forward).parameters
        if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
            (queries, keys), (longest, _) = prepare_fa_kwargs_from_position_ids(position_ids)
            separate |= {"cu_seq_lens_q": queries, "cu_seq_lens_k": keys}
            separate |= dict.fromkeys(("max_length_q", "max_length_k"), int(longest))
    elif keeps_keys:
        shape_and_type = model.get_output_embeddings().weight.new_empty((*position_ids.shape, 0))
        separate["attention_mask"] = create_causal_mask(config, shape_and_type, None, None, position_ids=position_ids)
    return separate


def selected_forward(
    model: Any,
    tensors: Mapping[str, torch.Tensor],
    want_entropies: bool = False,
    distribution: Distribution | None = None,
    keep_keys: bool = False,
) -> Any:
    """One forward over collated rows: what `model`, with [`add_selected_projection`], says of their loss tokens.

    Args:
        model (`Any`):
            The model, in whatever wrappers it trains in.
        tensors (`Mapping[str, torch.Tensor]`):
            A micro-batch of [`~taspo_trl.loss.batches.collate`].
        want_entropies (`bool`, *optional*, defaults to `False`):
            Whether the entropies are needed too.
        distribution ([`~taspo_trl.scoring.distributions.Distribution`], *optional*):
            What is needed of the whole distributions; their gradient flows too. None leaves the forward as it is.
        keep_keys (`bool`, *optional*, defaults to `False`):
            Whether keys and values are needed, to continue from.

    Returns:
        [`SelectedOutput`]: with `logps`, and `cache`, `entropies`, `reduced` and `hidden` when wanted.
    """
    more: dict[str, Any] = {} if distribution is None else {"selected_distribution": distribution}
    return model(
        **{name: tensors[name] for name in _WHERE if name in tensors},
        use_cache=keep_keys,
        selected_positions=tensors["positions"],
        selected_targets=tensors["targets"],
        selected_entropies=want_entropies,
        **more,
    )


def head_of(model: Any, temperature: float = 1.0, in_fp32: bool = False) -> Head:
    """The LM head of a causal language model as it is now, with what its forward does to the logits.

    Args:
        model ([`~transformers.PreTrainedModel`]):
            The model itself, below any PEFT wrapper.
        temperature (`float`, *optional*, defaults to `1.0`), in_fp32 (`bool`, *optional*, defaults to `False`):
            As in [`add_selected_projection`].

    Raises:
        ConfigurationError: ZeRO-3 holds the weights in pieces, which come together for one forward only.
    """
    scale, softcap = _logit_transform(model.config.get_text_config())
    return _make_head(*_whole(model.get_output_embeddings()), scale, softcap, temperature, in_fp32)


def _whole(head: Any) -> tuple[Any, Any]:
    """Weight and bias of the LM head; of FSDP2's pieces, which are DTensors, the whole."""
    weight, bias = head.weight, getattr(head, "bias", None)
    if hasattr(weight, "full_tensor"):
        weight, bias = weight.full_tensor(), bias.full_tensor() if bias is not None else None
    return weight, bias


def _make_head(weight: Any, bias: Any, scale: float, softcap: float | None, temperature: float, in_fp32: bool) -> Head:
    if hasattr(weight, "ds_status"):
        raise ConfigurationError(
            "Whole distributions and top k cannot be computed under DeepSpeed ZeRO-3: their backward needs the LM "
            "head after it was released. Use ZeRO-2, DDP or FSDP2, or the sampled form of the distillation term."
        )
    if in_fp32:
        weight, bias = weight.float(), bias.float() if bias is not None else None
    return Head(weight, bias, scale, softcap, temperature)


def backbone_of(model: Any) -> Any:
    """What stands below the LM head.

    The text classes of Llama 4 and Mllama name the prefix that they have inside the vision-language model, under which
    they have nothing themselves: transformers' `base_model` is then the model itself.
    """
    return getattr(model, "model", model) if model.base_model is model else model.base_model


def cache_keyword(model: Any) -> str:
    """The name of the key-value cache argument of the model's backbone."""
    return keyword_among(inspect.signature(type(backbone_of(model)).forward).parameters)


def _project(
    hidden: torch.Tensor,
    weight: Any,
    bias: Any,
    targets: torch.Tensor,
    *,
    temperature: float,
    scale: float,
    softcap: float | None,
    in_fp32: bool,
    want_entropies: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(N, H) hidden states -> (N,) log-probabilities of `targets`, (N,) entropies or None."""
    hidden, targets = hidden.to(weight.device), targets.to(weight.device)
    if hidden.dtype == torch.float64:
        # The tiled kernel computes in float32; float64 models exist for exact tests.
        logits = torch.nn.functional.linear(hidden, weight, bias) * scale
        if softcap is not None:
            logits = softcap * torch.tanh(logits / softcap)
        log_probs = torch.log_softmax(logits / temperature, dim=-1)  # (N, V)
        entropies = -(log_probs.exp() * log_probs).sum(-1) if want_entropies else None
        return log_probs.gather(-1, targets.unsqueeze(-1)).squeeze(-1), entropies
    autocast: Any = nullcontext()
    if in_fp32:
        hidden = hidden.float()
        autocast = torch.autocast(hidden.device.type, enabled=False)
    # A frozen copy of the policy stays whole on every process, also under ZeRO-3.
    gathered: Any = maybe_gather_lm_head_ctx(weight, bias) if hasattr(weight, "ds_status") else nullcontext()
    with autocast, gathered:
        logps, entropies, *_ = ChunkedLogProbFunction.apply(
            hidden,
            weight,
            bias,
            targets,
            temperature,
            min(_VOCABULARY_TILE, weight.shape[0]),
            softcap,
            scale,
            ("entropy",) if want_entropies else (),
        )
    return logps, entropies


def _reduced(
    hidden: torch.Tensor, head: Head, targets: torch.Tensor, asked: Distribution, in_fp32: bool
) -> tuple[torch.Tensor, ...]:
    device = head.weight.device
    autocast: Any = torch.autocast(device.type, enabled=False) if in_fp32 else nullcontext()
    with autocast:
        return reduce_chunks((hidden.float() if in_fp32 else hidden).to(device), head, targets.to(device), asked)


def _logit_transform(config: Any) -> tuple[float, float | None]:
    """(factor on the logits, soft cap) that the model's own forward applies."""
    softcap = getattr(config, "final_logit_softcapping", None)
    if config.model_type == "recurrent_gemma":
        softcap = config.logits_soft_cap
    for name in ("logit_scale", "output_multiplier", "lm_head_multiplier"):
        if getattr(config, name, None) is not None:
            return float(getattr(config, name)), softcap
    scaling = getattr(config, "logits_scaling", None)
    if scaling is not None:
        scaling = scaling if config.model_type == "hyperclovax" else 1 / scaling
    return (1.0 if scaling is None else float(scaling)), softcap
