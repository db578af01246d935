"""Which models and settings decode token by token here, and why the others go through `model.generate`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from .choosing import FILTERS
from .decoder import attention_of, base_model, cache_keyword, keeps_all_keys


_NEEDED = ("input_ids", "attention_mask", "position_ids", "use_cache")
_ATTENTIONS = ("eager", "sdpa")
"""Implementations that take a whole mask."""
_LOCAL = ("gpt_neo",)
"""Model types that attend locally and say so in no way that transformers' cache would notice."""
_ADAPTERS = ("ADAPTION_PROMPT", "XLORA", "POLY")
"""Kinds of adapters that do more than change weights; see also prompt learning and aLoRA below."""


def why_model_generates(model: Any) -> str:
    """Why this model's replies come from `model.generate`; empty when they need not. Looks, computes nothing."""
    from transformers import PreTrainedModel

    base = base_model(model)
    name = type(base).__name__
    if not isinstance(base, PreTrainedModel):
        return f"{name} is no model of transformers"
    config = base.config
    text = config.get_text_config(decoder=True)
    parameters = inspect.signature(type(base).forward).parameters
    missing = [one for one in (*_NEEDED, cache_keyword(parameters)) if one not in parameters]
    if getattr(config, "is_encoder_decoder", False):
        return f"{name} has an encoder"
    if missing:
        return f"the forward of {name} takes no `{missing[0]}`"
    if attention_of(config) not in _ATTENTIONS:
        return f"the attention implementation {attention_of(config)!r} takes no mask of its own"
    if getattr(base, "_is_stateful", False) or not keeps_all_keys(config):
        return f"{name} has layers that do not keep all keys (a sliding window, a recurrent state)"
    if text.model_type in _LOCAL or getattr(text, "alibi", False):
        return f"{name} attends by places in the batch"
    if getattr(base, "_tp_size", None) not in (None, 1):
        return f"{name} is split over devices by tensor parallelism"
    return why_adapters(model)


def why_settings_generate(extra: Mapping[str, Any], cache_implementation: str | None) -> str:
    """The same for what is asked of generation."""
    if cache_implementation not in (None, "dynamic"):
        return f"`cache_implementation` is {cache_implementation!r}"
    other = sorted(name for name, value in extra.items() if name not in FILTERS and value is not None)
    return f"`generation_kwargs` holds `{other[0]}`" if other else ""


def why_adapters(model: Any) -> str:
    """Which adapter of the model minds more of a row than its own tokens; empty for adapters that change weights."""
    for one in (getattr(model, "peft_config", None) or {}).values():
        kind = str(getattr(one.peft_type, "value", one.peft_type))
        if getattr(one, "is_prompt_learning", False) or kind in _ADAPTERS:
            return f"an adapter of type {kind} adds to the prompt"
        if getattr(one, "alora_invocation_tokens", None):
            return "an activated LoRA looks for its tokens in the whole prompt"
    return ""
