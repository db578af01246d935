"""VLLMServerEngine over real HTTP: continuous, exact, bounded in time, and never with another server's weights."""

from __future__ import annotations

import asyncio
import gc
import math
import os
import threading
import time

import pytest

from taspo_trl.background import background_loop
from taspo_trl.errors import ConfigurationError, ServiceError
from taspo_trl.generation import GenerationRequest, SamplingSettings
from taspo_trl.generation import vllm_server as module
from taspo_trl.generation.vllm_server import VLLMServer, VLLMServerEngine
from taspo_trl.types import FinishReason
from tests.generation.fake_vllm import EOS, FakeVLLM, choice_of, wait_until
from tests.launching import free_port


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch):
    monkeypatch.setattr(module, "_BACKOFF_SECONDS", 0.01)


@pytest.fixture
def started():
    """Makes (fake server, policy) pairs and ends them."""
    made = []

    def start(reply=None, timeout=5.0, seed=0, max_concurrency=512, **values):
        fake = FakeVLLM(reply, **values)
        server = VLLMServer(fake.url, timeout)
        made.append((fake, server))
        server.check()
        policy = VLLMServerEngine(server, stop_token_ids=[EOS], max_concurrency=max_concurrency)
        policy.begin(SamplingSettings(), seed)
        return fake, policy, server

    yield start
    for fake, server in made:
        server.close()
        fake.stop()


def request(uid="r0-g0-k0", prompt=(5, 6, 7), max_new_tokens=8):
    return GenerationRequest(tuple(prompt), max_new_tokens, uid)


def open_sockets() -> set[str]:
    gc.collect()
    links = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            links.add(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            continue
    return {link for link in links if link.startswith("socket:")}


def http_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name in ("taspo-http", "taspo-vllm-http")]


# ---- what is generated ----------------------------------------------------------------------------------------------


def test_reply_holds_the_servers_ids_and_log_probabilities(started):
    _, policy, _ = started(lambda body, number: [9, 8, EOS])
    generation = policy.submit(request()).result(5)
    assert generation.reply_ids == (9, 8, EOS)
    assert generation.logps == (-0.25, -0.5, -0.75)
    assert generation.finish_reason is FinishReason.STOP


def test_a_request_goes_out_before_flush(started):
    fake, policy, _ = started()
    future = policy.submit(request())
    assert wait_until(lambda: len(fake.requests) == 1)
    assert future.result(5).reply_ids
    policy.flush()


def test_a_slow_reply_holds_nobody_up(started):
    held = threading.Event()
    _, policy, _ = started(lambda body, number: held.wait(5) and None if body["prompt"][0] == 1 else None)
    slow = policy.submit(request("r0-g0-k0", (1, 2)))
    for turn in range(5):  # an episode plays on while the other waits
        assert policy.submit(request("r0-g0-k1", (3, turn))).result(5).reply_ids
    assert not slow.done()
    held.set()
    assert slow.result(5).reply_ids


def test_results_do_not_depend_on_the_order_of_arrival(started):
    _, policy, _ = started()
    uids = [f"r0-g0-k{k}" for k in range(6)]
    first = {}
    for uid in uids:
        first[uid] = [policy.submit(request(uid)).result(5) for _ in range(2)]
    policy.begin(SamplingSettings(), 0)
    second = {uid: [] for uid in uids}
    for _ in range(2):
        for uid in reversed(uids):
            second[uid].append(policy.submit(request(uid)).result(5))
    assert first == second


def test_seeds_differ_by_batch_episode_and_turn(started):
    fake, policy, _ = started()
    for seed in (0, 1):
        policy.begin(SamplingSettings(), seed)
        for uid in ("a", "b", "a"):
            policy.submit(request(uid)).result(5)
    assert len({body["seed"] for body in fake.requests}) == 6
    assert all(0 <= body["seed"] < 2**63 for body in fake.requests)


def test_begin_decides_how_replies_are_sampled(started):
    fake, policy, _ = started()
    policy.begin(SamplingSettings(0.0, 0.5), 3)
    policy.submit(request()).result(5)
    assert fake.requests[0]["temperature"] == 0.0 and fake.requests[0]["top_p"] == 0.5
    with pytest.raises(ConfigurationError, match="`seed`"):
        policy.begin(SamplingSettings(extra={"seed": 1}), 3)


def test_connections_are_reused_and_concurrency_is_bounded(started):
    fake, policy, _ = started(lambda body, number: time.sleep(0.02), max_concurrency=4)
    futures = [policy.submit(request(f"k{k}")) for k in range(40)]
    assert all(future.result(10).reply_ids for future in futures)
    assert fake.most_running == 4
    # One for the first look at the server, and one for each place.
    assert fake.num_connections <= 6


def test_every_submitted_request_is_answered_once(started):
    fake, policy, _ = started()
    futures = [policy.submit(request(f"k{k}", (k, 3))) for k in range(200)]
    assert [future.result(20).reply_ids[0] for future in futures]
    assert len(fake.requests) == 200


# ---- one request fails ----------------------------------------------------------------------------------------------


def faulty(fault):
    """The fault for prompts that begin with 666, the default reply for others."""
    return lambda body, number: fault if body["prompt"][0] == 666 else None


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (400, "fault 400"),
        (500, "fault 500"),
        (503, "fault 503"),
        (302, "302"),
        ("garbage", "not JSON"),
        ("reset", "fake server|disconnect|reset|Connection"),
        ({"token_ids": [1, 2]}, "finish reason"),
    ],
)
def test_a_fault_costs_its_own_request_only(started, fault, message):
    _, policy, _ = started(faulty(fault))
    bad = policy.submit(request("bad", (666,)))
    good = [policy.submit(request(f"k{k}")) for k in range(3)]
    with pytest.raises(ServiceError, match=message):
        bad.result(10)
    assert all(future.result(5).reply_ids for future in good)
    assert policy.submit(request("later")).result(5).reply_ids


def test_the_error_names_the_server(started):
    fake, policy, _ = started(faulty(500))
    with pytest.raises(ServiceError, match=fake.url):
        policy.submit(request("bad", (666,))).result(10)


def test_an_over_long_prompt_is_refused_once_not_repeated(started):
    fake, policy, _ = started(max_model_len=16)
    with pytest.raises(ServiceError, match="maximum context length is 16"):
        policy.submit(request(prompt=range(3, 40))).result(5)
    assert len(fake.requests) == 1


@pytest.mark.parametrize("fault", [500, 503, 429, "reset"])
def test_what_passes_is_tried_again_with_the_same_seed(started, fault):
    fake, policy, _ = started(lambda body, number: fault if number < 2 else None)
    assert policy.submit(request()).result(10).reply_ids
    assert len(fake.requests) == 3 and len({body["seed"] for body in fake.requests}) == 1


def test_nan_and_missing_log_probabilities_are_unknown_not_invented(started):
    def reply(body, number):
        choice = choice_of(body, [7, 8, 9, EOS])
        choice["logprobs"]["token_logprobs"] = [-0.5, math.nan, None, -9999.0]
        return choice

    _, policy, _ = started(reply)
    assert policy.submit(request()).result(5).logps == (-0.5, None, None, None)


def test_a_request_that_hangs_ends_within_its_time_while_others_are_answered(started):
    _, policy, _ = started(faulty("hang"), timeout=0.6)
    began = time.monotonic()
    hanging = policy.submit(request("bad", (666,)))
    while not hanging.done():
        assert policy.submit(request("good")).result(5).reply_ids
    with pytest.raises(ServiceError, match="no reply within `vllm_server_timeout`"):
        hanging.result()
    assert time.monotonic() - began < 10
    assert policy.submit(request("good")).result(5).reply_ids


# ---- the server fails -----------------------------------------------------------------------------------------------


def test_a_server_that_hangs_is_given_up_once_not_for_every_request(started):
    _, policy, _ = started(lambda body, number: "hang", timeout=0.5, max_concurrency=4)
    began = time.monotonic()
    futures = [policy.submit(request(f"k{k}")) for k in range(40)]
    for future in futures:
        with pytest.raises(ServiceError, match="no reply within"):
            future.result(5)
    assert time.monotonic() - began < 4  # ten rounds of waiting would take 5 s
    with pytest.raises(ServiceError, match="this or any other request"):
        policy.submit(request("later")).result(0.4)


def test_a_server_that_dies_costs_the_batch_no_time_and_says_what_to_do(started):
    fake, policy, server = started(lambda body, number: "hang", timeout=30.0)
    futures = [policy.submit(request(f"k{k}")) for k in range(8)]
    assert wait_until(lambda: len(fake.requests) == 8)
    began = time.monotonic()
    fake.stop()
    for future in futures:
        with pytest.raises(ServiceError, match=f"{fake.url} is gone.*resume from the last checkpoint"):
            future.result(10)
    with pytest.raises(ServiceError, match="is gone"):
        policy.submit(request("later")).result(5)
    assert time.monotonic() - began < 10
    server.timeout = 0.5
    with pytest.raises(ServiceError, match=f"{fake.url} could not be used within"):
        server.check()


def test_a_batch_after_an_outage_starts_afresh(started):
    _, policy, _ = started(lambda body, number: "hang" if number == 0 else None, timeout=1.0)
    with pytest.raises(ServiceError):
        policy.submit(request()).result(5)
    policy.begin(SamplingSettings(), 1)
    assert policy.submit(request()).result(5).reply_ids


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "another/model"}, "'another/model'"),
        ({"max_model_len": 512}, "with 512 tokens now"),
        ({"instance": "two"}, "was restarted"),
        ({"logprobs_mode": "raw_logprobs"}, "its settings changed"),
    ],
)
def test_another_server_on_the_port_is_refused_between_batches(started, change, message):
    fake, _, server = started()
    port = fake.port
    fake.stop()
    with FakeVLLM(port=port, **change), pytest.raises(ServiceError, match=message):
        server.check()


def test_another_server_on_the_port_is_refused_within_a_batch(started):
    fake, policy, _ = started(lambda body, number: "hang", timeout=30.0)
    future = policy.submit(request())
    assert wait_until(lambda: len(fake.requests) == 1)
    port = fake.port
    fake.stop()
    with FakeVLLM(port=port, instance="two") as other:
        with pytest.raises(ServiceError, match=r"was restarted|is gone"):
            future.result(10)
        with pytest.raises(ServiceError):
            policy.submit(request("later")).result(5)
        assert not other.requests  # nothing was sampled with the weights of a stranger


def test_a_server_without_development_endpoints_can_generate(started):
    _, policy, server = started(dev_mode=False)
    assert server.facts.instance is None and server.facts.has_weight_transfer is None
    assert policy.submit(request()).result(5).reply_ids


# ---- start and end --------------------------------------------------------------------------------------------------


def test_nothing_on_the_port_fails_within_the_time_out_with_address_and_remedy():
    url = f"http://127.0.0.1:{free_port()}"
    before, threads = open_sockets(), http_threads()
    server = VLLMServer(url, timeout=1.0)
    began = time.monotonic()
    with pytest.raises(ServiceError, match=f"{url} could not be used within .*1 s.*vllm serve.*vllm_server_port"):
        server.check()
    assert 0.8 < time.monotonic() - began < 10
    server.close()
    assert http_threads() == threads and open_sockets() <= before


@pytest.mark.parametrize("health", [500, 503, 404])
def test_an_unhealthy_server_fails_within_the_time_out(health):
    with FakeVLLM() as fake:
        fake.health = health
        server = VLLMServer(fake.url, timeout=1.5)
        with pytest.raises(ServiceError, match=f"/health answered {health}"):
            server.check()
        server.close()


def test_a_server_that_comes_up_late_is_waited_for():
    port = free_port()
    server = VLLMServer(f"http://127.0.0.1:{port}", timeout=10.0)
    late = []
    starter = threading.Timer(0.7, lambda: late.append(FakeVLLM(port=port)))
    starter.start()
    try:
        assert server.check().model == "fake/model"
    finally:
        starter.join()
        server.close()
        late[0].stop()


def test_something_else_on_the_port_is_not_taken_for_vllm():
    with FakeVLLM(model=None) as fake:  # type: ignore[arg-type]
        server = VLLMServer(fake.url, timeout=1.5)
        with pytest.raises(ServiceError, match="does not describe a model as vLLM does"):
            server.check()
        server.close()


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host", "", "http://"])
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(ConfigurationError, match=r"http://host:port"):
        VLLMServer(url)


def test_passwords_in_the_address_are_not_shown():
    server = VLLMServer("http://user:secret@127.0.0.1:1", timeout=0.1)
    with pytest.raises(ServiceError) as caught:
        server.check()
    assert "secret" not in str(caught.value)
    server.close()


def test_close_leaves_no_task_and_no_socket(started):
    background_loop()  # its own sockets stay
    before = open_sockets()
    with FakeVLLM(lambda body, number: "hang" if number == 0 else None) as fake:
        server = VLLMServer(fake.url, timeout=30.0)
        server.check()
        policy = VLLMServerEngine(server, stop_token_ids=[EOS])
        policy.begin(SamplingSettings(), 0)
        hanging = policy.submit(request("k0"))
        assert wait_until(lambda: len(fake.requests) == 1)
        assert policy.submit(request("k1")).result(5).reply_ids
        policy.abandon()
        server.close()
        server.close()
        assert hanging.cancelled() or hanging.exception() is not None
    assert not asyncio.all_tasks(background_loop()) and len(http_threads()) == 1
    assert wait_until(lambda: open_sockets() <= before)


def test_a_forgotten_client_ends_its_connections():
    background_loop()  # its own sockets stay
    before = open_sockets()
    with FakeVLLM() as fake:
        server = VLLMServer(fake.url, timeout=5.0)
        server.check()
        assert open_sockets() > before and len(http_threads()) == 1
        del server
        gc.collect()
        assert wait_until(lambda: not asyncio.all_tasks(background_loop()) and len(http_threads()) == 1)
    assert wait_until(lambda: open_sockets() <= before)


def test_an_answer_without_end_is_given_up_at_its_cap(started, monkeypatch):
    monkeypatch.setattr("taspo_trl.background.MAX_BODY_BYTES", 2**16)
    fake, policy, _ = started(lambda body, number: {"text": "x" * 2**20} if number == 0 else None)
    with pytest.raises(ServiceError, match="longer than 65536 bytes"):
        policy.submit(request("k0")).result(5)
    assert len(fake.requests) == 1, "asking again would bring the same"
    assert policy.submit(request("k1")).result(5).reply_ids


def test_begin_gives_up_what_an_interrupted_batch_left(started):
    fake, policy, _ = started(lambda body, number: "hang" if number < 3 else None, timeout=30.0)
    left = [policy.submit(request(f"k{k}")) for k in range(3)]
    assert wait_until(lambda: len(fake.requests) == 3)
    policy.begin(SamplingSettings(), 1)
    assert all(future.cancelled() for future in left)
    assert policy.submit(request()).result(5).reply_ids
