"""Which causal language model classes of transformers the trainer reproduces: docs/models.md, from tiny random models.

    python benchmarks/model_classes.py

Each class of transformers' mapping is built from its configuration at a tiny size, in float64 with large weights, and
compared with its own forward as a trainer does it. Takes some minutes of one core.
"""

from __future__ import annotations

import contextlib
import copy
import signal
import sys
import textwrap
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.common import save
from taspo_trl.errors import ConfigurationError
from taspo_trl.scoring.projection import add_selected_projection
from taspo_trl.scoring.reproduces import compare


PAGE = Path(__file__).resolve().parents[1] / "docs" / "models.md"
SECONDS = 60
MAX_PARAMETERS = 60_000_000
TINY = {
    "vocab_size": 160,
    "hidden_size": 64,
    "d_model": 64,
    "n_embd": 64,
    "embedding_size": 64,
    "intermediate_size": 64,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "d_ff": 64,
    "ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "encoder_ffn_dim": 64,
    "num_hidden_layers": 2,
    "n_layer": 2,
    "n_layers": 2,
    "num_layers": 2,
    "decoder_layers": 2,
    "encoder_layers": 2,
    "num_attention_heads": 4,
    "n_head": 4,
    "n_heads": 4,
    "num_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
    "max_position_embeddings": 256,
    "sliding_window": 32,
}
"""Sizes that are set where a configuration has them."""
_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1}
_FEW_EXPERTS = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1}
_ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
_PER_LAYER = {"num_kv_shared_layers": 0, "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 160}
OWN: dict[str, dict[str, Any]] = {
    "bamba": _MAMBA,
    "codegen": {"rotary_dim": 8},
    "cohere_compass_text": {"rope_parameters": {"full_attention": _ROPE, "sliding_attention": _ROPE}},
    "dbrx": {"rope_theta": 10_000.0, "clip_qkv": 8.0, "kv_n_heads": 2, "ffn_hidden_size": 64, "moe_num_experts": 4},
    "deepseek_v2": _FEW_EXPERTS,
    "dots1": _FEW_EXPERTS,
    "falcon_h1": _MAMBA | {"mamba_d_ssm": 128},
    "gemma3n_text": _PER_LAYER | {"activation_sparsity_pattern": [0.0, 0.0], "intermediate_size": [64, 64]},
    "gemma4": _PER_LAYER,
    "gemma4_text": _PER_LAYER,
    "gptj": {"rotary_dim": 8},
    "granitemoehybrid": _MAMBA,
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "longcat_flash": {"qk_head_dim": 16},
    "mamba": {"state_size": 8},
    "mamba2": {"state_size": 8, "num_heads": 8, "head_dim": 16, "n_groups": 1},
    "nemotron": {"num_key_value_heads": 2},
    "recurrent_gemma": {"num_hidden_layers": 3, "lru_width": 64, "num_key_value_heads": 1},
    "reformer": {"axial_pos_embds_dim": (32, 32), "axial_pos_shape": (16, 16)},
    "xlm": {"emb_dim": 64},
    "xlstm": {"embedding_dim": 64},
    "xmod": {"languages": ("en_XX",), "default_language": "en_XX"},
    "zamba2": {"n_mamba_heads": 8, "mamba_headdim": 16, "mamba_d_state": 16, "mamba_ngroups": 1},
}
"""Sizes of one model type, also where its configuration leaves them open."""
REASONS = {
    "bailing_hybrid": "takes too long with transformers' reference kernels",
    "blt": "its patcher and its hashed embeddings stay large (193 million parameters)",
    "deepseek_v4": "takes too long with transformers' reference kernels",
    "gemma3n": "sees with a model of timm, which is not installed; its text model is `gemma3n_text`",
    "gemma4_assistant": "drafts for another model, whose keys and values it reads",
    "gemma4_unified_assistant": "drafts for another model, whose keys and values it reads",
    "kimi_linear": "takes too long with transformers' reference kernels",
    "musicgen": "predicts codes of sound, several at once",
    "musicgen_melody": "predicts codes of sound, several at once",
    "prophetnet": "its own log-probabilities are not finite with random weights",
}
"""Why a class is not built, where the error says less."""
DECODERS = {"is_decoder": True, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
WORDS = {"passes": "passes", "whole": "whole forwards", "refused": "refused", "unbuilt": "not built"}


class OutOfTimeError(BaseException):  # no library's `except Exception` may keep it
    """A class took longer than its share."""


def main() -> None:
    rows, start = [], time.process_time()
    signal.signal(signal.SIGALRM, _stop)
    for kind, name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items():
        signal.alarm(SECONDS)
        try:
            outcome, why = examine(kind)
        except OutOfTimeError:
            outcome, why = "unbuilt", f"takes longer than {SECONDS} s"
        finally:
            signal.alarm(0)
        why = REASONS.get(kind, why) if outcome == "unbuilt" else why
        rows.append({"model_type": kind, "class": name, "outcome": outcome, "why": why})
    counts = Counter(row["outcome"] for row in rows)
    save("model_classes", {"cpu_seconds": round(time.process_time() - start, 1), "counts": counts, "classes": rows})
    PAGE.write_text(page(rows, counts))
    print(counts)


def examine(kind: str) -> tuple[str, str]:
    """(outcome, why) for a model type."""
    try:
        model = build(kind)
    except Exception as error:
        return "unbuilt", _short(error)
    try:
        add_selected_projection(model)
    except ConfigurationError as error:
        return "refused", _short(error)
    found = compare(model)
    if "RuntimeError" in found.skipped:  # kernels for experts that know no float64
        found = compare(model.float())
    if found.skipped:
        return "unbuilt", found.skipped
    if found.refused:
        _, _, what = found.refused.partition("does not reproduce: ")
        return "refused", what.split(". Its forward")[0]
    if found.continues:
        return "passes", ""
    reason = found.why_whole.partition("between (")[2].partition("): both")[0]
    return "whole", f"continued, {reason}" if reason else "its cache is not only keys and values of all tokens"


def build(kind: str) -> Any:
    """A tiny random model in float64 whose weights are large enough for every part to matter."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind)
    for one in _parts(config):
        _shrink(one, kind)
    with torch.device("meta"):
        large = AutoModelForCausalLM.from_config(copy.deepcopy(config))
    size = sum(parameter.numel() for parameter in large.parameters())
    if size > MAX_PARAMETERS:
        raise ValueError(f"its configuration stays large ({size / 1e6:.0f} million parameters)")
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0, parameter.shape[-1] ** -0.5)
    return model.to(torch.float64).eval()


def _parts(config: Any) -> list[Any]:
    """A configuration with all of those inside it: what sees and hears is built too."""
    inside = [getattr(config, name, None) for name in getattr(config, "sub_configs", {})]
    return [config, *(part for one in inside if hasattr(one, "to_dict") for part in _parts(one))]


def _shrink(config: Any, kind: str) -> None:
    own = OWN.get(kind, {})
    for name, value in {**TINY, **DECODERS, **own}.items():
        # A property, or a value that differs from layer to layer, stays as the configuration has it.
        with contextlib.suppress(Exception):
            is_unset = getattr(config, name, None) is None
            if not is_unset or name in DECODERS or name in own or (name == "head_dim" and hasattr(config, name)):
                setattr(config, name, value)
    if hasattr(config, "qk_rope_head_dim") and hasattr(config, "head_dim"):
        with contextlib.suppress(Exception):
            config.head_dim = TINY["qk_rope_head_dim"]
    with contextlib.suppress(Exception):
        if hasattr(config, "kv_lora_rank"):  # latent attention knows no groups
            config.num_key_value_heads = TINY["num_attention_heads"]
    layers = getattr(config, "num_hidden_layers", 2)
    for name in ("layer_types", "mlp_layer_types", "layers_block_type", "no_rope_layers"):
        listed = getattr(config, name, None)
        if isinstance(listed, list):
            with contextlib.suppress(Exception):
                setattr(config, name, listed[:layers])


def _short(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:90]}" if not isinstance(error, ConfigurationError) else text[:110]


def _stop(*_: Any) -> None:
    raise OutOfTimeError


def page(rows: list[dict[str, str]], counts: Counter) -> str:
    """The page of the documentation."""
    from transformers import __version__

    lines = [
        "# Model classes",
        "",
        textwrap.fill(
            "When a trainer is set up, the model is compared with its own forward on a few random tokens: "
            "log-probabilities of the selected positions, right padding, and keys and values that two branches share. "
            "A class whose logits are not reproduced is refused by name. One whose keys cannot be shared between the "
            "branches is scored in whole forwards: exact, but slower. Nothing is compared where no process holds all "
            "weights (ZeRO-3, FSDP) or they are on the meta device.",
            128,
        ),
        "",
        textwrap.fill(
            f"The table holds every causal language model class of transformers {__version__}, as a tiny random model "
            f"in float64: {counts['passes']} pass, {counts['whole']} are scored in whole forwards, "
            f"{counts['refused']} are refused; {counts['unbuilt']} could not be built and run at a tiny size by this "
            "script, which says nothing of the class: the check at construction decides. Made by "
            "`python benchmarks/model_classes.py`.",
            128,
        ),
        "",
        "| model type | class | outcome | why |",
        "|---|---|---|---|",
    ]
    for row in rows:
        why = row["why"].replace("|", "/").replace("<", "&lt;")
        lines.append(f"| `{row['model_type']}` | `{row['class']}` | {WORDS[row['outcome']]} | {why} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
