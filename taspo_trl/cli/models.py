"""The model that a command line names, ready to sample: loaded here, or served by a running vLLM."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ConfigurationError
from ..generation import Engine
from ..training.model_folder import loading


def _nothing() -> None:
    """For policies that hold nothing open."""


@dataclass(frozen=True)
class NamedPolicy:
    """A policy with what its episodes need to know about it."""

    engine: Engine
    tokenizer: Any
    window: int | None
    """Tokens of prompt and reply together."""
    name: str
    close: Callable[[], None] = _nothing
    vocab_size: int | None = None
    """Token ids that the model knows; None = those of the tokenizer."""
    model: Any = None
    """The model itself, where it was loaded here."""
    pad_token_id: int = 0


def load_policy(name: str, device: str | None = None, dtype: str = "auto") -> NamedPolicy:
    """A model id, a model folder or a LoRA adapter folder, on `device` (by default a GPU if there is one)."""
    import torch

    from ..generation import TransformersEngine

    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    tokenizer = _loaded(name, "AutoTokenizer", padding_side="left")
    model = load_model(name, dtype).to(device).eval()
    ends = _end_tokens(model.generation_config.eos_token_id, tokenizer)
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    engine = TransformersEngine(model, pad_token_id=pad, eos_token_ids=ends)
    config = model.config.get_text_config()
    window = getattr(config, "max_position_embeddings", None)
    vocab_size = getattr(config, "vocab_size", None)
    return NamedPolicy(engine, tokenizer, window, name, vocab_size=vocab_size, model=model, pad_token_id=pad)


def load_model(name: str, dtype: str = "auto") -> Any:
    """The model of [`load_policy`] alone; an adapter comes with its base."""
    is_adapter = _adapter_config(name).exists()
    return _loaded(name, "AutoPeftModelForCausalLM" if is_adapter else "AutoModelForCausalLM", dtype=dtype)


def base_of(name: str) -> str:
    """The model below an adapter folder; of any other model its own name."""
    config = _adapter_config(name)
    return str(json.loads(config.read_bytes())["base_model_name_or_path"]) if config.exists() else name


def _adapter_config(name: str) -> Path:
    return Path(name) / "adapter_config.json"


def load_tokenizer(name: str, **options: Any) -> Any:
    """The tokenizer of [`load_policy`] alone."""
    return _loaded(name, "AutoTokenizer", padding_side="left", **options)


def served_policy(url: str, name: str | None = None, timeout: float = 240.0) -> NamedPolicy:
    """What a `vllm serve` at `url` serves.

    Args:
        name (`str`, *optional*):
            Where tokenizer and end tokens come from; by default what the server loaded its model from.

    Raises:
        ServiceError: the server does not answer within `timeout` seconds.
    """
    from ..generation.vllm_server import VLLMServer, VLLMServerEngine

    server = VLLMServer(url, timeout)
    try:
        facts = server.check()
        tokenizer = _loaded(name or facts.root, "AutoTokenizer", padding_side="left")
        try:
            ends = _loaded(name or facts.root, "GenerationConfig").eos_token_id
        except ConfigurationError:
            ends = None  # not every model has one
    except BaseException:
        server.close()
        raise
    engine = VLLMServerEngine(server, stop_token_ids=_end_tokens(ends, tokenizer))

    def close() -> None:
        engine.abandon()
        server.close()

    return NamedPolicy(engine, tokenizer, facts.max_model_length, name or facts.root, close)


def _loaded(name: str, kind: str, **options: Any) -> Any:
    if kind == "AutoPeftModelForCausalLM":
        import peft as library
    else:
        import transformers as library  # type: ignore[no-redef]
    try:
        with loading(name):
            return getattr(library, kind).from_pretrained(name, **options)
    except ConfigurationError:
        raise
    except ValueError as error:
        raise ConfigurationError(f"{name!r} cannot be loaded as {kind}: {error}") from error


def _end_tokens(configured: int | list[int] | None, tokenizer: Any) -> list[int]:
    """Every token that ends a reply: the model's own, the tokenizer's and the chat template's."""
    from ..rollout.templates import ChatRenderer

    ends = [configured] if isinstance(configured, int) else list(configured or [])
    own = [] if tokenizer.eos_token_id in (None, *ends) else [tokenizer.eos_token_id]
    ends = ends + own
    return ChatRenderer(tokenizer).with_end_tokens(ends) if tokenizer.chat_template else ends
