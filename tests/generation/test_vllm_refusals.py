"""Options and models that cannot work with vLLM: refused at construction with the reason, or warned about."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig

from taspo_trl.errors import ConfigurationError
from taspo_trl.generation import build
from taspo_trl.generation.checks import check_adapters
from tests import tiny
from tests.generation.training import LORA
from tests.trainer.test_trainer import Script, rows


class Quantized(torch.nn.Linear):
    """Stands in for bitsandbytes' layer, by its name."""


Quantized.__name__ = "Linear4bit"


@pytest.mark.parametrize("mode", ["server", "colocate"])
@pytest.mark.parametrize("how", ["argument", "init_kwargs", "loaded", "layers"])
def test_a_quantised_base_is_refused_with_the_reason(tmp_path, mode, how):
    values, model = {}, tiny.model()
    if how == "argument":
        values["quantization_config"] = {"load_in_4bit": True}
    elif how == "init_kwargs":
        values["model_init_kwargs"] = {"quantization_config": {"load_in_4bit": True}}
    elif how == "loaded":
        model.is_quantized = True
    else:
        model.model.layers[0].mlp.up_proj = Quantized(16, 32)
    with pytest.raises(ConfigurationError, match=rf'vllm_mode="{mode}".*quantises the base anew'):
        _construct(tmp_path, model, mode, **values)


def test_a_base_that_bitsandbytes_has_packed_is_refused(tmp_path):
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed (taspo_trl[quantization])")
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    tiny.model(hidden_size=64, intermediate_size=128).save_pretrained(tmp_path / "base")
    four_bit = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    with pytest.raises(ConfigurationError, match="quantises the base anew"):
        _construct(tmp_path, str(tmp_path / "base"), "server", quantization_config=four_bit)
    packed = AutoModelForCausalLM.from_pretrained(
        tmp_path / "base", quantization_config=four_bit, device_map={"": "cpu"}
    )
    with pytest.raises(ConfigurationError, match="quantises the base anew"):
        _construct(tmp_path, packed, "server")


def _construct(tmp_path, model, mode, quantization_config=None, **values):
    from taspo_trl import TASPOTrainer

    address = {"vllm_server_base_url": "http://127.0.0.1:1"} if mode == "server" else {}
    args = tiny.config(tmp_path, use_vllm=True, vllm_mode=mode, **address, **values)
    TASPOTrainer(
        model,
        args=args,
        processing_class=tiny.tokenizer(),
        train_dataset=rows(8),
        environment_factory=Script,
        quantization_config=quantization_config,
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"vllm_mode": "cloud"}, "'server' or 'colocate'"),
        ({"vllm_importance_sampling_mode": "turn_mask"}, "vllm_importance_sampling_mode"),
        ({"vllm_mode": "server", "vllm_server_timeout": 0.0}, "must be positive"),
        ({"vllm_tensor_parallel_size": 2}, "--tensor-parallel-size"),
        ({"generation_kwargs": {"seed": 3}}, "every member of a group"),
        ({"generation_kwargs": {"max_tokens": 3}}, "max_completion_length"),
        ({"repetition_penalty": 1.1}, "the policy that learns"),
    ],
)
def test_options_that_cannot_work_are_refused(tmp_path, values, message):
    with pytest.raises(ConfigurationError, match=message):
        tiny.config(tmp_path, use_vllm=True, **values)


@pytest.mark.parametrize(
    ("values", "is_warned"),
    [
        ({"vllm_server_port": 9000}, True),
        ({"vllm_gpu_memory_utilization": 0.5}, True),
        ({"use_vllm": True, "vllm_mode": "server", "vllm_server_port": 9000}, False),
        ({"use_vllm": True, "vllm_mode": "colocate", "vllm_server_port": 9000}, True),
        ({"use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.5}, False),
        ({"use_vllm": True, "vllm_mode": "server", "vllm_gpu_memory_utilization": 0.5}, True),
        ({"use_vllm": True, "vllm_mode": "server", "cache_implementation": "static"}, True),
    ],
)
def test_options_of_the_other_mode_are_warned_about(tmp_path, values, is_warned):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tiny.config(tmp_path, **values)
    assert any("has no effect" in str(one.message) for one in caught) is is_warned


@pytest.mark.parametrize(
    ("values", "url"),
    [
        ({"vllm_server_base_url": "http://a:1"}, "http://a:1"),
        ({"vllm_server_host": "b", "vllm_server_port": 2}, "http://b:2"),
        ({}, "http://0.0.0.0:8000"),
    ],
)
def test_the_address_comes_from_trls_options(tmp_path, values, url):
    assert build.server_url(tiny.config(tmp_path, use_vllm=True, vllm_mode="server", **values)) == url


def test_adapters_under_the_first_fsdp_are_refused():
    accelerator = SimpleNamespace(state=SimpleNamespace(fsdp_plugin=SimpleNamespace(fsdp_version=1)))
    model = SimpleNamespace(peft_config={"default": LORA})
    with pytest.raises(ConfigurationError, match="fsdp_version: 2"):
        check_adapters(model, accelerator)


def test_trained_token_rows_are_refused():
    accelerator = SimpleNamespace(state=SimpleNamespace())
    model = SimpleNamespace(peft_config={"default": LoraConfig(trainable_token_indices=[1, 2])})
    with pytest.raises(ConfigurationError, match="trainable_token_indices"):
        check_adapters(model, accelerator)
