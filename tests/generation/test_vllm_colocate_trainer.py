"""TASPOTrainer with a colocated engine: weights, sleep, and that the engine is started as TRL starts it."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch
from trl.generation import vllm_generation

from taspo_trl.errors import ConfigurationError, RolloutError
from taspo_trl.generation.vllm_llm import make_llm
from tests import tiny


def test_colocated_engine_gets_the_weights_before_it_generates(colocated):
    trainer, llm = colocated()
    trainer.train()
    assert llm.events.count("reset") == 2
    assert llm.llm_engine.params and llm.llm_engine.threads == {"taspo-vllm-engine"}
    assert set(llm.loaded) == set(tiny.parameters(trainer))


def test_colocated_engine_sleeps_while_the_policy_is_scored_and_updated(colocated, monkeypatch):
    trainer, llm = colocated(vllm_enable_sleep_mode=True)
    asleep = []
    passes = trainer.experience_maker.passes
    original = type(passes).with_logps
    monkeypatch.setattr(
        type(passes),
        "with_logps",
        lambda self, *args, **kwargs: asleep.append(not llm.has_cache) or original(self, *args, **kwargs),
    )
    trainer.train()
    trainer.evaluate()
    assert asleep == [True, True]
    assert llm.events == ["sleep", *["wake weights", "load", "reset", "wake kv_cache", "sleep"] * 3]


def test_a_colocated_engine_rests_after_a_batch_that_failed(colocated):
    trainer, llm = colocated(vllm_enable_sleep_mode=True)

    def fail(number):
        llm.llm_engine.requests.clear()
        raise RuntimeError("CUDA error")

    llm.llm_engine.on_step = fail
    with pytest.raises(RolloutError, match="CUDA error"):
        trainer.train()
    assert llm.events[-1] == "sleep" and not llm.llm_engine.has_unfinished_requests()


def test_the_engine_is_started_as_trl_starts_it(tmp_path, monkeypatch):
    """TRL's own start-up and ours, with one stand-in for `vllm.LLM`: the same keywords."""
    started = []

    class LLM:
        def __init__(self, **keywords):
            started.append(keywords)

        def sleep(self, level): ...

    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(LLM=LLM))
    monkeypatch.setattr(vllm_generation, "LLM", LLM, raising=False)
    monkeypatch.setattr(vllm_generation, "is_vllm_available", lambda: True)
    model = tiny.model()
    model.name_or_path = "some/model"
    args = tiny.config(
        tmp_path,
        use_vllm=True,
        vllm_gpu_memory_utilization=0.45,
        vllm_max_model_length=777,
        vllm_enable_sleep_mode=True,
        vllm_model_impl="transformers",
        per_device_train_batch_size=4,
        steps_per_generation=2,
    )
    accelerator = SimpleNamespace(
        device=torch.device("cuda"),
        process_index=0,
        local_process_index=0,
        num_processes=1,
        wait_for_everyone=lambda: None,
        state=SimpleNamespace(deepspeed_plugin=None, fsdp_plugin=None),
    )
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "0")  # both start-ups write them
    make_llm(args, model, accelerator)
    vllm_generation.VLLMGeneration(
        model,
        accelerator,
        None,
        gpu_memory_utilization=args.vllm_gpu_memory_utilization,
        max_model_length=args.vllm_max_model_length,
        max_num_seqs=args.per_device_train_batch_size * args.steps_per_generation,
        enable_sleep_mode=args.vllm_enable_sleep_mode,
        model_impl=args.vllm_model_impl,
    )
    ours, trls = started
    assert trls.pop("quantization") is None  # quantised bases are refused
    assert ours == trls


def test_colocate_without_a_gpu_says_so(tmp_path):
    with pytest.raises(ConfigurationError, match="needs a GPU"):
        tiny.trainer(tmp_path, use_vllm=True)
