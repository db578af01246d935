"""Opening the weight-transfer group: refusing, silent or gone servers end it in time, nothing stays behind (NBK-2)."""

from __future__ import annotations

import threading
import time
from importlib import import_module

import pytest
import torch

from taspo_trl.errors import ConfigurationError, MissingDependencyError, ServiceError
from taspo_trl.generation import weight_transfer as module
from taspo_trl.generation.vllm_server import VLLMServer
from taspo_trl.generation.weight_transfer import meet, open_client, warn_about_logprobs
from tests.generation.fake_vllm import FakeVLLM, wait_until
from tests.generation.test_vllm_server import open_sockets
from tests.launching import free_port


INFO = {"master_address": "127.0.0.1", "master_port": 51216, "rank_offset": 1, "world_size": 2}


@pytest.fixture(autouse=True)
def quick_refusals(monkeypatch):
    monkeypatch.setattr(module, "_REFUSAL_SECONDS", 0.2)


@pytest.fixture
def reached():
    """Makes servers that have been reached, and ends them."""
    made = []

    def start(timeout=5.0, **values):
        fake = FakeVLLM(**values)
        server = VLLMServer(fake.url, timeout)
        made.append((fake, server))
        server.check()
        return fake, server

    yield start
    for fake, server in made:
        server.close()
        fake.stop()


def our_threads():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("taspo-vllm-join")]


class Group:
    """Both sides of a rendezvous."""

    def __init__(self):
        self.trainer_came = threading.Event()
        self.server_came = threading.Event()
        self.infos = []

    def on_init(self, info):
        self.infos.append(info)
        self.server_came.set()
        assert self.trainer_came.wait(5)
        return {"message": "Weight transfer initialized"}

    def join(self, info):
        self.infos.append(info)
        self.trainer_came.set()
        assert self.server_came.wait(5)
        return "communicator"


def test_trainer_and_server_meet_over_the_same_address(reached):
    group = Group()
    _, server = reached(on_init=group.on_init)
    assert meet(server, INFO, group.join) == "communicator"
    assert group.infos == [INFO, INFO]


def test_a_server_that_refuses_is_not_waited_for_and_nothing_joins(reached):
    """NBK-2: the trainer would wait for minutes in a rendezvous to which nobody comes."""
    refusal = (500, {"error": "weight transfer already initialised"})
    fake, server = reached(on_init=lambda info: refusal, timeout=30.0)
    joined = []
    before = open_sockets()
    began = time.monotonic()
    with pytest.raises(ServiceError) as caught:
        meet(server, INFO, joined.append)
    assert time.monotonic() - began < 10
    message = str(caught.value)
    assert fake.url in message and "already initialised" in message
    assert "Restart the server" in message and "vllm_group_port" in message and "51216" in message
    assert not joined and not our_threads()
    server.close()
    assert wait_until(lambda: open_sockets() <= before)


def test_a_server_that_fails_while_the_trainer_waits_ends_the_wait(reached):
    came = threading.Event()

    def on_init(info):
        assert came.wait(5)
        return 500, {"error": "NCCL: duplicate GPU detected"}

    _, server = reached(on_init=on_init, timeout=30.0)
    release = threading.Event()

    def join(info):
        came.set()
        release.wait(30)

    began = time.monotonic()
    with pytest.raises(ServiceError, match=r"duplicate GPU.*different GPUs"):
        meet(server, INFO, join)
    assert time.monotonic() - began < 10
    release.set()
    assert wait_until(lambda: not our_threads())


def test_a_server_that_never_answers_ends_at_the_time_out(reached):
    _, server = reached(on_init=lambda info: time.sleep(3) or {}, timeout=0.6)
    release = threading.Event()
    began = time.monotonic()
    with pytest.raises(ServiceError, match=r"0\.6 s"):
        meet(server, INFO, lambda info: release.wait(10))
    assert time.monotonic() - began < 8
    release.set()
    assert wait_until(lambda: not our_threads())


def test_a_trainer_that_cannot_join_says_why(reached):
    group = Group()
    _, server = reached(on_init=group.on_init, timeout=2.0)

    def join(info):
        raise ServiceError("Address already in use")

    with pytest.raises(ServiceError, match="Address already in use"):
        meet(server, INFO, join)
    group.trainer_came.set()


@pytest.mark.parametrize(
    ("values", "device", "error", "message"),
    [
        ({"dev_mode": False}, "cuda", ConfigurationError, r"development endpoints.*VLLM_SERVER_DEV_MODE=1"),
        (
            {"weight_transfer": "none"},
            "cuda",
            ConfigurationError,
            r"no weight-transfer engine.*--weight-transfer-config",
        ),
        ({}, "cpu", ConfigurationError, r"needs a CUDA device; the trainer runs on 'cpu'.*use_vllm=False"),
    ],
)
def test_what_cannot_exchange_weights_is_refused_with_address_and_remedy(reached, values, device, error, message):
    fake, server = reached(**values)
    with pytest.raises(error, match=message) as caught:
        open_client(server, group_port=51216, device=torch.device(device))
    assert fake.url in str(caught.value)
    assert "/init_weight_transfer_engine" not in fake.paths


def test_a_trainer_without_vllm_is_told_what_to_install(reached, monkeypatch):
    monkeypatch.setattr(import_module("trl.import_utils"), "is_vllm_available", lambda **_: False)
    _, server = reached()
    with pytest.raises(MissingDependencyError, match=r'pip install -e "\.\[vllm\]"'):
        open_client(server, group_port=51216, device=torch.device("cuda"))


@pytest.mark.parametrize(("mode", "is_said"), [("raw_logprobs", True), ("processed_logprobs", False)])
def test_log_probabilities_before_temperature_are_warned_about(reached, caplog, mode, is_said):
    _, server = reached(logprobs_mode=mode)
    warn_about_logprobs(server.url, server.facts)
    assert ("--logprobs-mode processed_logprobs" in caplog.text) is is_said


def test_the_server_of_a_closed_port_is_never_asked_for_a_group():
    server = VLLMServer(f"http://127.0.0.1:{free_port()}", timeout=0.4)
    with pytest.raises(ServiceError, match="could not be used"):
        open_client(server, group_port=51216, device=torch.device("cuda"))
    server.close()
