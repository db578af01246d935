"""A policy of about 0.7 M parameters, warm-started on flawed demonstrations and cached."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..imitation.learning import Imitation, imitate
from .demonstrations import DemonstrationSettings, demonstrations
from .tokenizer import make_tokenizer


@dataclass(frozen=True)
class WarmStart:
    """How the policy is built and warm-started.

    Args:
        num_steps (`int`, *optional*, defaults to `1500`), batch_size (`int`, *optional*, defaults to `32`):
            Optimizer steps and turns in each.
        learning_rate (`float`, *optional*, defaults to `3e-3`):
            AdamW, linear decay to 0.
        prompt_loss (`float`, *optional*, defaults to `0.3`):
            Weight of the language-model loss on prompts, beside 1.0 on replies: it teaches to read.
        num_turns (`int`, *optional*, defaults to `32000`):
            Demonstrated turns.
        seed (`int`, *optional*, defaults to `0`):
            Weights, demonstrations and their order.
    """

    num_steps: int = 1500
    batch_size: int = 32
    learning_rate: float = 3e-3
    prompt_loss: float = 0.3
    num_turns: int = 32000
    seed: int = 0
    hidden_size: int = 128
    num_layers: int = 3
    demonstrations: DemonstrationSettings = field(default_factory=DemonstrationSettings)


_RECIPE_VERSION = 3


def tiny_policy(
    settings: WarmStart | None = None,
    cache_dir: str | os.PathLike | None = None,
    on_step: Callable[[int, float], None] | None = None,
) -> tuple[Any, Any]:
    """(model, tokenizer), from the cache when this recipe was run before.

    Args:
        settings (`WarmStart`, *optional*):
            The recipe.
        cache_dir (`str` or `PathLike`, *optional*):
            Defaults to `$TASPO_CACHE`, else `~/.cache/taspo_trl`.
        on_step (`Callable`, *optional*):
            Called with (step, loss) during the warm start.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    settings = settings or WarmStart()
    folder = cached_folder(settings, cache_dir)
    if not (folder / "config.json").exists():
        tokenizer = make_tokenizer(settings.demonstrations.preset)
        model = warm_started(new_model(tokenizer, settings), tokenizer, settings, on_step)
        _save(model, tokenizer, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager"), tokenizer


def warm_started_lora(
    name: str,
    settings: WarmStart,
    cache_dir: str | os.PathLike | None = None,
    on_step: Callable[[int, float], None] | None = None,
) -> tuple[Any, Any]:
    """(model, tokenizer) of a pretrained model after imitating the demonstrations through a LoRA, merged and cached.

    Args:
        name (`str`):
            Model id or folder.
        settings (`WarmStart`):
            The recipe; with `num_steps` 0 the model is taken as it is.
        cache_dir, on_step:
            As in [`tiny_policy`].
    """
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = cached_folder(settings, cache_dir, Path(name).name)
    is_cached = (folder / "config.json").exists()
    source = folder if is_cached else name
    tokenizer = AutoTokenizer.from_pretrained(source)
    # Eager attention: its backward is faster on CPUs than the fused one.
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16, attn_implementation="eager")
    if is_cached or settings.num_steps == 0:
        return model, tokenizer
    layers = model.config.num_hidden_layers
    lora = LoraConfig(
        r=16,
        lora_alpha=32,
        target_modules=["q_proj", "v_proj", "o_proj", "down_proj"],
        layers_to_transform=list(range(layers * 3 // 5, layers)),  # a shorter backward
    )
    torch.manual_seed(settings.seed)
    model = warm_started(get_peft_model(model, lora), tokenizer, settings, on_step).merge_and_unload()
    _save(model, tokenizer, folder)
    return model, tokenizer


def cached_folder(settings: WarmStart, cache_dir: str | os.PathLike | None = None, name: str = "tiny") -> Path:
    """Where the policy of a recipe is kept."""
    base = Path(cache_dir or os.environ.get("TASPO_CACHE") or Path.home() / ".cache" / "taspo_trl")
    digest = hashlib.blake2b(repr((_RECIPE_VERSION, asdict(settings))).encode(), digest_size=6).hexdigest()
    base.mkdir(parents=True, exist_ok=True)
    return base / f"{name}-policy-{digest}"


def _save(model: Any, tokenizer: Any, folder: Path) -> None:
    partial = folder.with_name(f"{folder.name}.{os.getpid()}")
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    shutil.rmtree(folder, ignore_errors=True)  # another process may have been faster; both made the same
    os.replace(partial, folder)


def new_model(tokenizer: Any, settings: WarmStart) -> Any:
    """A Llama with random weights. Eager attention: its backward is faster on CPUs than the fused one."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(settings.seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden_size,
        intermediate_size=3 * settings.hidden_size,
        num_hidden_layers=settings.num_layers,
        num_attention_heads=4,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    config._attn_implementation = "eager"
    return LlamaForCausalLM(config)


def warm_started(
    model: Any, tokenizer: Any, settings: WarmStart, on_step: Callable[[int, float], None] | None = None
) -> Any:
    """`model` after imitating the demonstrations."""
    data = list(demonstrations(tokenizer, settings.num_turns, settings.seed, settings.demonstrations))
    imitation = Imitation(
        num_steps=settings.num_steps,
        batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        prompt_loss=settings.prompt_loss,
        seed=settings.seed,
    )
    return imitate(model, data, imitation, tokenizer.pad_token_id, on_step)
