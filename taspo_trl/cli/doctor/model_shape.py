"""A model's sizes from its configuration: built without memory, and counted.

The model is built on torch's `meta` device, where tensors have a shape and no data, so that the numbers are those of
the real model, whatever the architecture; adapters are put on it by PEFT itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...errors import ConfigurationError
from .memory import Adapters, ModelShape, Precision


_DECODERS = frozenset({"llama", "qwen2", "qwen3", "mistral", "smollm3", "olmo2"})

PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen/Qwen2.5-1.5B-Instruct": (
        "qwen2",
        {
            "vocab_size": 151936,
            "hidden_size": 1536,
            "intermediate_size": 8960,
            "num_hidden_layers": 28,
            "num_attention_heads": 12,
            "num_key_value_heads": 2,
            "max_position_embeddings": 32768,
            "tie_word_embeddings": True,
        },
    ),
    "Qwen/Qwen2.5-3B-Instruct": (
        "qwen2",
        {
            "vocab_size": 151936,
            "hidden_size": 2048,
            "intermediate_size": 11008,
            "num_hidden_layers": 36,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "max_position_embeddings": 32768,
            "tie_word_embeddings": True,
        },
    ),
    "Qwen/Qwen2.5-7B-Instruct": (
        "qwen2",
        {
            "vocab_size": 152064,
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "max_position_embeddings": 32768,
            "tie_word_embeddings": False,
        },
    ),
    "Qwen/Qwen3-1.7B": (
        "qwen3",
        {
            "vocab_size": 151936,
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 40960,
            "tie_word_embeddings": True,
        },
    ),
}
"""Models of the shipped recipes -> (architecture, sizes), so that an estimate needs neither download nor network."""


def load_config(name: str, *, revision: str | None = None, trust_remote_code: bool = False) -> Any:
    """The configuration in a local folder or in the Hub's cache, else one with the sizes that were published.

    Raises:
        ConfigurationError: there is none; the message says what to do.
    """
    from transformers import AutoConfig

    is_local = Path(name).is_dir()
    if (Path(name) / "adapter_config.json").is_file():
        raise ConfigurationError(f"{name} holds an adapter. Estimates need the base model's folder or id.")
    try:
        return AutoConfig.from_pretrained(
            name, revision=revision, trust_remote_code=trust_remote_code, local_files_only=True
        )
    except (OSError, ValueError) as error:
        if is_local:
            raise ConfigurationError(f"{name} holds no readable `config.json`: {error}") from error
        if name in PUBLISHED:
            return published_config(name)
        raise ConfigurationError(
            f"{name!r} is neither a folder nor in the Hub's cache, so its sizes are not known. Fetch its "
            f"configuration once: `hf download {name} config.json`."
        ) from error


def published_config(name: str) -> Any:
    """A configuration with the sizes of a model in [`PUBLISHED`]."""
    from transformers import AutoConfig

    kind, sizes = PUBLISHED[name]
    return AutoConfig.for_model(kind, **sizes)


def meta_model(config: Any, attention: str | None = None) -> Any:
    """The model of a configuration without data."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        # Only sizes matter here: an attention package that is not installed must not stand in the way.
        return AutoModelForCausalLM.from_config(config, attn_implementation=attention or "eager")


def shape_of(model: Any) -> ModelShape:
    """The sizes of a causal language model, on any device."""
    import torch

    config = model.config.get_text_config()
    embeddings = {
        id(module.weight) for module in (model.get_input_embeddings(), model.get_output_embeddings()) if module
    }
    parameters = list(model.parameters())  # a shared tensor is listed once
    layers = [p for p in parameters if id(p) not in embeddings]
    linear = [m for m in model.modules() if isinstance(m, torch.nn.Linear) and id(m.weight) not in embeddings]
    heads = config.num_attention_heads
    return ModelShape(
        parameters=sum(p.numel() for p in parameters),
        linear_parameters=sum(m.weight.numel() for m in linear),
        linear_rows=sum(m.out_features for m in linear),
        layer_parameters=sum(p.numel() for p in layers),
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
        num_layers=config.num_hidden_layers,
        num_heads=heads,
        num_key_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_size=getattr(config, "head_dim", None) or config.hidden_size // heads,
        tensors=len(parameters),
        is_known_decoder=config.model_type in _DECODERS,
    )


def adapters_on(model: Any, peft_config: Any, weight: int) -> Adapters:
    """What PEFT adds to the model. The model is changed; take its shape before.

    Args:
        model ([`~transformers.PreTrainedModel`]):
            On the meta device.
        peft_config ([`~peft.PeftConfig`]):
            The adapters.
        weight (`int`):
            Bytes of one of their values.
    """
    from peft import get_peft_model

    wrapped = get_peft_model(model, peft_config, low_cpu_mem_usage=True)
    trained = [p for p in wrapped.parameters() if p.requires_grad]
    return Adapters(sum(p.numel() for p in trained), len(trained), weight)


def precision_of(training: Any, model: Any, config: Any) -> Precision:
    """Precision of weights and of computation.

    Args:
        training ([`~taspo_trl.TASPOConfig`]), model ([`~trl.ModelConfig`]):
            The recipe.
        config:
            The model's configuration, for `dtype: auto`; None where it is not known.
    """
    asked = (training.model_init_kwargs or {}).get("dtype", model.dtype)
    stored = getattr(config, "dtype", None) if asked == "auto" else asked
    weight = 2 if str(stored).split(".")[-1] in ("bfloat16", "float16") else 4
    bits = 4 if model.load_in_4bit else 8 if model.load_in_8bit else None
    compute = 2 if training.bf16 or training.fp16 or weight == 2 else 4
    return Precision(weight, compute, bits, bool(model.use_bnb_nested_quant))


def adapter_weight(precision: Precision, sharding: str) -> int:
    """Bytes of an adapter's value: PEFT takes float32 beside 16-bit weights, but TRL bfloat16 on a quantised base, and
    the base's own precision under ZeRO-3."""
    if precision.bits is not None:
        return 2
    return precision.weight if sharding == "zero3" else 4
