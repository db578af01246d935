"""Trainers whose engine is a stand-in, started and ended for each test."""

from __future__ import annotations

import pytest

from taspo_trl.generation import vllm_llm, vllm_server, weight_transfer
from tests import tiny
from tests.generation.fake_engine import FakeEngine, FakeLLM, make_parameters
from tests.generation.fake_vllm import FakeVLLM
from tests.generation.recording import RecordingClient
from tests.generation.training import CountingAnalyzer, by_seed, server_trainer
from tests.trainer.test_trainer import Script, rows


@pytest.fixture
def fresh(monkeypatch):
    """Counts at zero, and retries that take no time."""
    CountingAnalyzer.num_requests = 0
    Script.opened = Script.closed = 0
    monkeypatch.setattr(vllm_server, "_BACKOFF_SECONDS", 0.01)


@pytest.fixture
def served(fresh, monkeypatch, tmp_path):
    """Makes (trainer, fake server, recording client) with server mode, and ends them."""
    made = []

    def start(reply=by_seed, client=None, fake=None, **values):
        client = client or RecordingClient()
        fake = fake or FakeVLLM(reply, max_model_len=values.pop("served_length", 1024))
        made.append(fake)
        monkeypatch.setattr(weight_transfer, "open_client", lambda server, **_: client)
        trainer = server_trainer(tmp_path, fake.url, **values)
        made.append(trainer)
        return trainer, fake, client

    yield start
    for one in reversed(made):
        one.close() if hasattr(one, "close") else one.stop()


@pytest.fixture
def colocated(fresh, monkeypatch, tmp_path):
    """Makes (trainer, stand-in for vLLM's `LLM`) with colocate mode, and ends them."""
    made = []

    def start(**values):
        llm = FakeLLM(FakeEngine(max_num_seqs=8, max_model_len=1024))
        monkeypatch.setattr(vllm_llm, "make_llm", lambda args, model, accelerator: llm)
        monkeypatch.setattr(vllm_llm, "parameter_maker", lambda regex: make_parameters)
        defaults = {"train_dataset": rows(8), "environment_factory": Script, "use_vllm": True}
        trainer = tiny.trainer(tmp_path, **{**defaults, "max_steps": 2, "eval_dataset": rows(3), **values})
        made.append(trainer)
        return trainer, llm

    yield start
    for one in made:
        one.close()
