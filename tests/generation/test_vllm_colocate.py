"""VLLMColocateEngine on a faithful stand-in for vLLM's engine: continuous batches, failures, sleep."""

from __future__ import annotations

import math
import threading
import time

import pytest

from taspo_trl.errors import ConfigurationError, ServiceError
from taspo_trl.generation import GenerationRequest, SamplingSettings
from taspo_trl.generation.vllm_colocate import VLLMColocateEngine
from taspo_trl.generation.vllm_llm import ColocateWeights
from taspo_trl.generation.weight_sync import WeightSync
from taspo_trl.types import FinishReason
from tests.generation.fake_engine import EOS, FakeEngine, FakeLLM, make_parameters, slowly
from tests.generation.fake_vllm import wait_until


@pytest.fixture
def started():
    made = []

    def start(engine=None, **values):
        engine = engine or FakeEngine(**values)
        policy = VLLMColocateEngine(engine, make_parameters=make_parameters, stop_token_ids=[EOS])
        policy.begin(SamplingSettings(), 0)
        made.append(policy)
        return engine, policy

    yield start
    for policy in made:
        policy.close()


def request(length, uid="k0", max_new_tokens=32, mark=0):
    """A request whose reply has `length` tokens."""
    return GenerationRequest((length, 100 + mark), max_new_tokens, uid)


def test_reply_holds_the_engines_ids_and_log_probabilities(started):
    _, policy = started()
    generation = policy.submit(request(3)).result(5)
    assert len(generation.reply_ids) == 3 and generation.reply_ids[-1] == EOS
    assert generation.logps == (-0.25, -0.5, -0.75)
    assert generation.finish_reason is FinishReason.STOP
    assert policy.submit(request(9, max_new_tokens=4)).result(5).finish_reason is FinishReason.LENGTH


def test_a_request_joins_a_running_batch_and_leaves_it_before_the_others(started):
    engine, policy = started(on_step=slowly())
    long = policy.submit(request(2000, "long", 2000, mark=1))
    assert wait_until(lambda: engine.num_steps > 2)
    for _ in range(3):
        assert len(policy.submit(request(3, "short", mark=2)).result(5).reply_ids) == 3
    assert not long.done()
    engine.on_step = lambda number: None
    assert len(long.result(5).reply_ids) == 2000
    assert [101, 102] in engine.batches


def test_results_do_not_depend_on_the_order_of_arrival(started):
    _, policy = started()
    uids = [f"k{k}" for k in range(8)]
    first = {uid: policy.submit(request(4, uid)).result(5) for uid in uids}
    policy.begin(SamplingSettings(), 0)
    futures = {uid: policy.submit(request(4, uid)) for uid in reversed(uids)}
    assert {uid: future.result(5) for uid, future in futures.items()} == first
    assert len({generation.reply_ids for generation in first.values()}) > 1


def test_sampling_settings_reach_the_engine(started):
    engine, policy = started()
    policy.begin(SamplingSettings(0.7, 0.9, 40, 0.05, {"frequency_penalty": 0.5}), 3)
    policy.submit(request(2)).result(5)
    params = engine.params[0]
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.7, 0.9, 40, 0.05)
    assert params.frequency_penalty == 0.5 and params.repetition_penalty == 1.0 and params.stop_token_ids == [EOS]
    with pytest.raises(ConfigurationError, match="`n`"):
        policy.begin(SamplingSettings(extra={"n": 2}), 3)


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_a_log_probability_that_is_no_number_is_unknown(started, value):
    _, policy = started(logp=lambda position: value if position == 1 else -0.5)
    assert policy.submit(request(3)).result(5).logps == (-0.5, None, -0.5)


def test_an_over_long_prompt_costs_its_own_episode_only(started):
    _, policy = started(max_model_len=16, on_step=slowly())
    good = policy.submit(request(5, "good"))
    bad = policy.submit(GenerationRequest((3,) * 20, 4, "bad"))
    with pytest.raises(ServiceError, match="maximum context length is 16"):
        bad.result(5)
    assert good.result(5).reply_ids


def test_an_engine_that_fails_takes_its_requests_with_it_and_the_next_batch_may_try_again(started):
    submitted = threading.Event()

    def fail(number):
        submitted.wait(5)
        if len(engine.requests) == 3:
            engine.requests.clear()
            engine.on_step = lambda number: None
            raise RuntimeError("CUDA error: out of memory")

    engine, policy = started()
    engine.on_step = fail
    futures = [policy.submit(request(20, f"k{k}")) for k in range(3)]
    submitted.set()
    for future in futures:
        with pytest.raises(ServiceError, match="out of memory"):
            future.result(5)
    policy.begin(SamplingSettings(), 1)
    assert policy.submit(request(3)).result(5).reply_ids


def test_a_request_that_the_engine_drops_does_not_hang(started):
    engine, policy = started()
    engine.on_step = lambda number: engine.requests.clear()
    with pytest.raises(ServiceError, match="dropped"):
        policy.submit(request(5)).result(5)


def test_a_thread_that_cannot_start_answers_those_who_wait():
    def prepare():
        raise RuntimeError("no such device")

    policy = VLLMColocateEngine(
        FakeEngine(), make_parameters=make_parameters, stop_token_ids=[EOS], prepare_thread=prepare
    )
    policy.begin(SamplingSettings(), 0)
    hook, threading.excepthook = threading.excepthook, lambda args: None
    try:
        with pytest.raises(ServiceError, match="no such device"):
            policy.submit(request(3)).result(5)
        with pytest.raises(ServiceError, match="no such device"):
            policy.submit(request(3))
    finally:
        threading.excepthook = hook


def test_begin_aborts_what_an_interrupted_batch_left(started):
    engine, policy = started(on_step=slowly())
    left = [policy.submit(request(1000, f"k{k}", 2000)) for k in range(6)]
    assert wait_until(lambda: engine.num_steps > 1)
    policy.begin(SamplingSettings(), 1)
    assert all(future.cancelled() for future in left)
    assert not engine.has_unfinished_requests() and engine.aborted
    assert policy.submit(request(3)).result(5).reply_ids


def test_close_ends_the_thread(started):
    before = set(threading.enumerate())
    _, policy = started(on_step=slowly())
    future = policy.submit(request(1000, max_new_tokens=2000))
    (thread,) = set(threading.enumerate()) - before
    policy.close()
    assert future.cancelled() and not thread.is_alive()


def test_a_closed_engine_refuses_instead_of_hanging(started):
    _, policy = started()
    policy.submit(request(3)).result(5)
    policy.close()
    with pytest.raises(ServiceError, match="closed"):
        policy.submit(request(3))


def test_an_idle_engine_is_not_stepped(started):
    engine, policy = started()
    policy.submit(request(3)).result(5)
    steps = engine.num_steps
    time.sleep(0.05)
    assert engine.num_steps == steps == 3


# ---- weights and sleep ---------------------------------------------------------------------------------------------


def weights():
    import torch

    return [("a.weight", torch.ones(2)), ("b.weight", torch.zeros(3))]


def test_weights_go_into_the_engine_of_this_process():
    llm = FakeLLM()
    ColocateWeights(llm, has_sleep_mode=False).load(weights())
    assert sorted(llm.loaded) == ["a.weight", "b.weight"] and llm.events == ["load", "reset"]


def test_an_engine_with_sleep_mode_sleeps_from_the_start_and_wakes_in_the_right_order():
    llm = FakeLLM()
    sink = ColocateWeights(llm, has_sleep_mode=True)
    sync = WeightSync(weights(), sink)
    for step in (0, 0, 1):
        sync.before_generation(step)
        sink.wake()
        assert llm.has_weights and llm.has_cache and llm.loaded
        if sink.sleep():
            sync.forget()
    one_round = ["wake weights", "load", "reset", "wake kv_cache", "sleep"]
    # Weights are loaded for step 0 twice: the engine lost them in between.
    assert llm.events == ["sleep", *one_round * 3]


def test_an_engine_without_sleep_mode_keeps_its_weights():
    llm = FakeLLM()
    sink = ColocateWeights(llm, has_sleep_mode=False)
    sink.load(weights())
    sink.wake()
    assert not sink.sleep()
    assert llm.loaded and llm.events == ["load", "reset"]
