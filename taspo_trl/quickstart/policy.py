"""A policy of about 0.7 M parameters, warm-started on flawed demonstrations and cached."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..imitation.demonstration import Demonstration
from ..imitation.learning import ImitationConfig, ImitationTrainer
from ..training.lock import if_abandoned, only_run_in
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


_RECIPE_VERSION = 4


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
        _warm_start(new_model(tokenizer, settings), tokenizer, settings, folder, on_step)
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
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer

    def loaded(source: str | Path) -> tuple[Any, Any]:
        # Eager attention: its backward is faster on CPUs than the fused one.
        model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16, attn_implementation="eager")
        return model, AutoTokenizer.from_pretrained(source)

    folder = cached_folder(settings, cache_dir, Path(name).name)
    if (folder / "config.json").exists():
        return loaded(folder)
    model, tokenizer = loaded(name)
    if settings.num_steps == 0:
        return model, tokenizer
    layers = model.config.num_hidden_layers
    lora = LoraConfig(
        r=16,
        lora_alpha=32,
        target_modules=["q_proj", "v_proj", "o_proj", "down_proj"],
        layers_to_transform=list(range(layers * 3 // 5, layers)),  # a shorter backward
    )
    _warm_start(model, tokenizer, settings, folder, on_step, peft_config=lora)
    return loaded(folder)


def cached_folder(settings: WarmStart, cache_dir: str | os.PathLike | None = None, name: str = "tiny") -> Path:
    """Where the policy of a recipe is kept."""
    base = Path(cache_dir or os.environ.get("TASPO_CACHE") or Path.home() / ".cache" / "taspo_trl")
    digest = hashlib.blake2b(repr((_RECIPE_VERSION, asdict(settings))).encode(), digest_size=6).hexdigest()
    base.mkdir(parents=True, exist_ok=True)
    return base / f"{name}-policy-{digest}"


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


def _warm_start(
    model: Any,
    tokenizer: Any,
    settings: WarmStart,
    folder: Path,
    on_step: Callable[[int, float], None] | None,
    **kwargs: Any,
) -> None:
    """Save `model` to `folder` after imitating the demonstrations; an adapter is merged."""
    from transformers import TrainerCallback

    class Steps(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if on_step is not None and "loss" in logs:
                on_step(state.global_step, float(logs["loss"]))

    data = list(demonstrations(tokenizer, settings.num_turns, settings.seed, settings.demonstrations))
    with _aside(folder) as partial:
        _imitate(model, tokenizer, data, settings, partial, Steps(), **kwargs)
        shutil.rmtree(folder, ignore_errors=True)  # another process may have been faster; both made the same
        os.replace(partial, folder)


@contextlib.contextmanager
def _aside(folder: Path) -> Iterator[Path]:
    """Where `folder` is written, in a numbered one beside it; what a kill left in others is removed.

    The number is the process; that it lives says its lock, since numbers come again and other machines have the same.
    """
    for other in folder.parent.glob(f"{folder.name}.*"):
        if other.suffix[1:].isdigit():
            with if_abandoned(other) as is_abandoned:
                if is_abandoned:
                    shutil.rmtree(other, ignore_errors=True)
    place = folder.with_name(f"{folder.name}.{os.getpid()}")
    with only_run_in(place):
        try:
            yield place / folder.name
        finally:
            shutil.rmtree(place, ignore_errors=True)


def _imitate(
    model: Any,
    tokenizer: Any,
    data: Sequence[Demonstration],
    settings: WarmStart,
    output: Path,
    callback: Any,
    **kwargs: Any,
) -> None:
    from transformers import PrinterCallback

    args = ImitationConfig(
        output_dir=str(output),
        max_steps=settings.num_steps,
        per_device_train_batch_size=min(settings.batch_size, len(data)),
        gradient_accumulation_steps=1,
        dataloader_drop_last=True,
        learning_rate=settings.learning_rate,
        prompt_loss=settings.prompt_loss,
        seed=settings.seed,
        gradient_checkpointing=False,
        use_cpu=True,
        logging_steps=1,
        disable_tqdm=True,
        save_strategy="no",
        report_to="none",
    )
    trainer = ImitationTrainer(model, args, data, processing_class=tokenizer, callbacks=[callback], **kwargs)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    trainer.save_merged(output)
