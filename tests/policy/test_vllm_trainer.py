"""TASPOTrainer with `use_vllm=True`: weights before generation, correction in the loss, refusals at construction."""

from __future__ import annotations

import math
import threading
import time
import warnings
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig

from taspo_trl.analyzer.extractive import ExtractiveAnalyzer
from taspo_trl.errors import ConfigurationError, RolloutError, ServiceError
from taspo_trl.policy import build, vllm_llm, vllm_server, weight_transfer
from taspo_trl.records import read_records
from taspo_trl.types import StopReason
from tests import tiny
from tests.policy.fake_engine import FakeEngine, FakeLLM, make_parameters
from tests.policy.fake_vllm import FakeVLLM, choice_of, free_port, wait_until
from tests.policy.recording import RecordingClient
from tests.policy.test_vllm_server import open_sockets
from tests.test_trainer import Script, history, rows


TOKENIZER = tiny.tokenizer()
LORA = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", init_lora_weights=False)


def ids_of(text):
    return [*TOKENIZER.encode(text, add_special_tokens=False), TOKENIZER.eos_token_id]


def by_seed(body, number):
    """Half of the replies succeed; which, follows from the seed."""
    return ids_of(f"<action>{'inventory' if body['seed'] % 2 else 'look'}</action>")


class CountingAnalyzer(ExtractiveAnalyzer):
    num_requests = 0

    def complete(self, request):
        type(self).num_requests += 1
        return super().complete(request)


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    CountingAnalyzer.num_requests = 0
    Script.opened = Script.closed = 0
    monkeypatch.setattr(vllm_server, "_BACKOFF_SECONDS", 0.01)


@pytest.fixture
def served(monkeypatch, tmp_path):
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


def server_trainer(tmp_path, url, **values):
    defaults = {
        "train_dataset": rows(8),
        "environment_factory": Script,
        "analyzer": CountingAnalyzer(),
        "use_vllm": True,
        "vllm_mode": "server",
        "vllm_server_base_url": url,
        "vllm_server_timeout": 5.0,
        "max_completion_length": 12,
    }
    return tiny.trainer(tmp_path, **{**defaults, **values})


# ---- the weights that generate --------------------------------------------------------------------------------------


def test_weights_are_sent_once_for_each_step_and_before_its_first_generation(served):
    seen = []
    client = RecordingClient(before_update=lambda: seen.append(len(fake.requests)))
    trainer, fake, client = served(client=client, max_steps=3)
    trainer.train()
    assert len(client.updates) == 3
    assert seen[0] == 0 and seen == sorted(seen) and len(set(seen)) == 3
    changed = [
        any(not torch.equal(before[name], after[name]) for name in before)
        for before, after in zip(client.updates, client.updates[1:], strict=False)
    ]
    assert changed == [True, True]
    assert len(history(trainer, "time/weight_sync")) == 3


def test_the_weights_sent_are_those_that_are_scored(served):
    trainer, _, client = served(max_steps=2)
    start = tiny.parameters(trainer)
    trainer.train()
    assert all(torch.equal(client.updates[0][name], start[name]) for name in start)


@pytest.mark.parametrize("steps_per_generation", [2, 4])
def test_one_rollout_batch_for_several_steps_needs_one_synchronisation(served, steps_per_generation):
    trainer, fake, client = served(
        max_steps=4, steps_per_generation=steps_per_generation, per_device_train_batch_size=8 // steps_per_generation
    )
    trainer.train()
    assert len(client.updates) == 4 // steps_per_generation
    assert len(fake.requests) == 8 * 4 // steps_per_generation


def test_evaluation_generates_with_current_weights_and_its_own_sampling(served):
    trainer, fake, client = served(max_steps=1, eval_dataset=rows(3), eval_temperature=0.0, eval_top_p=0.9)
    trainer.evaluate()
    assert len(client.updates) == 1
    trainer.train()
    assert len(client.updates) == 1  # the weights of step 0 are there already
    num = len(fake.requests)
    trainer.evaluate()
    assert len(client.updates) == 2
    after = client.updates[-1]
    assert all(torch.equal(after[name], value) for name, value in tiny.parameters(trainer).items())
    evaluation = fake.requests[num:]
    assert evaluation and all(body["temperature"] == 0.0 and body["top_p"] == 0.9 for body in evaluation)
    assert all(body["temperature"] == 1.0 for body in fake.requests[3:num])


def test_a_second_training_does_not_generate_with_the_weights_of_the_first_ones_start(served):
    trainer, _, client = served(max_steps=1)
    trainer.train()
    trained = tiny.parameters(trainer)
    trainer.train()  # counts its steps from 0 again
    assert len(client.updates) == 2
    assert all(torch.equal(client.updates[1][name], value) for name, value in trained.items())


def test_adapters_are_merged_for_the_engine_and_the_base_never_moves(served):
    trainer, _, client = served(max_steps=3, peft_config=LORA)
    base = {
        name: value.detach().clone() for name, value in trainer.model.named_parameters() if not value.requires_grad
    }
    trainer.train()
    plain = dict(tiny.model().named_parameters())
    for sent in client.updates:
        assert sent.keys() == plain.keys()
        assert all(value.shape == plain[name].shape for name, value in sent.items())
    after = dict(trainer.model.named_parameters())
    assert all(torch.equal(after[name], value) for name, value in base.items())
    merged = "model.layers.0.self_attn.q_proj.weight"
    frozen = "model.layers.0.self_attn.k_proj.weight"
    assert not torch.equal(client.updates[0][merged], client.updates[2][merged])
    assert torch.equal(client.updates[0][frozen], client.updates[2][frozen])


# ---- what is generated ----------------------------------------------------------------------------------------------


def test_rollouts_hold_the_servers_ids_and_every_process_asks_by_itself(served):
    trainer, fake, _ = served()
    trainer.train()
    turns = [turn for one in read_records(trainer.args.output_dir + "/_trajectories") for turn in one.trajectory.turns]
    assert len(turns) == len(fake.requests) == 8
    known = {tuple(ids_of(f"<action>{word}</action>")) for word in ("inventory", "look")}
    assert {turn.reply_ids for turn in turns} == known
    ends = sorted(trainer.eos_token_ids)
    assert all(sorted(body["stop_token_ids"]) == ends for body in fake.requests)


def test_a_failed_request_costs_its_episode_and_the_others_train(served):
    trainer, _, _ = served(lambda body, number: 400 if number == 2 else by_seed(body, number))
    before = tiny.parameters(trainer)
    trainer.train()
    ends = [one.trajectory.stop_reason for one in read_records(trainer.args.output_dir + "/_trajectories")]
    assert ends.count(StopReason.GENERATION_ERROR) == 1
    assert history(trainer, "stop/generation_error") == [1 / 8]
    assert any(not torch.equal(before[name], value) for name, value in tiny.parameters(trainer).items())


def test_prompts_are_cut_to_the_servers_length_not_refused_by_it(served):
    trainer, fake, _ = served(served_length=40)
    trainer.train()
    assert all(len(body["prompt"]) + 1 <= 40 for body in fake.requests)
    assert trainer.experience_maker.collector.rollout.model_window == 40
    assert trainer.experience_maker.settings.model_window == 1024  # scoring is the trainer's own


def test_a_server_shorter_than_the_configured_prompts_is_refused(served):
    with pytest.raises(ConfigurationError, match=r"takes 64 tokens.*`max_prompt_length` \(100\).*--max-model-len"):
        served(served_length=64, max_prompt_length=100)


# ---- the correction -------------------------------------------------------------------------------------------------


def test_the_correction_is_in_the_loss_rows_and_in_trls_metrics(served):
    trainer, _, _ = served(vllm_importance_sampling_mode="token_truncate", vllm_importance_sampling_clip_max=2.0)
    trainer.train()
    loss_rows = [row for micro in trainer._buffer for batch in micro for row in batch]
    with_loss = [row for row in loss_rows if any(row.coefficients)]
    assert with_loss
    for row in with_loss:
        engine = [-0.25 * (k + 1) for k in range(len(row.positions))]
        expected = [min(math.exp(old - one), 2.0) for old, one in zip(row.old_logps, engine, strict=True)]
        assert row.importance_ratios == pytest.approx(expected)
    for name in ("sampling_logp_difference/mean", "sampling_logp_difference/max"):
        assert history(trainer, f"sampling/{name}")[0] > 0
    for name in ("min", "mean", "max"):
        assert 0 < history(trainer, f"sampling/importance_sampling_ratio/{name}")[0] <= 2.0
    assert history(trainer, "sampling/missing_logp_share") == [0.0]


def engine_agrees(trainer):
    """Replies whose reported log-probabilities are the trainer's own."""

    def reply(body, number):
        ids = by_seed(body, number)
        whole = torch.tensor([body["prompt"] + ids])
        with torch.no_grad():
            logps = trainer[0].model(whole).logits[0].log_softmax(-1)
        start = len(body["prompt"])
        values = [logps[start + k - 1, one].item() for k, one in enumerate(ids)]
        choice = choice_of(body, ids)
        choice["logprobs"]["token_logprobs"] = values
        return choice

    return reply


@pytest.mark.parametrize("mode", ["token_truncate", "sequence_mask"])
def test_an_engine_that_agrees_trains_as_without_the_correction(served, mode):
    holder = []
    found = {}
    for correction in (True, False):
        trainer, _, _ = served(
            engine_agrees(holder),
            vllm_importance_sampling_mode=mode,
            vllm_importance_sampling_correction=correction,
        )
        holder[:] = [trainer]
        trainer.train()
        found[correction] = tiny.parameters(trainer)
        assert bool(history(trainer, "sampling/importance_sampling_ratio/mean")) is correction
    for name in found[True]:
        torch.testing.assert_close(found[True][name], found[False][name], atol=1e-5, rtol=1e-4)


def test_a_masked_sequence_leaves_the_policy_where_it_was(served):
    def far_off(body, number):
        ids = by_seed(body, number)
        choice = choice_of(body, ids)
        choice["logprobs"]["token_logprobs"] = [-50.0] * len(ids)  # pi_old is e^50 times as likely
        return choice

    trainer, _, _ = served(far_off, vllm_importance_sampling_mode="sequence_mask")
    before = tiny.parameters(trainer)
    trainer.train()
    assert history(trainer, "sampling/importance_sampling_ratio/max") == [0.0]
    assert all(torch.equal(before[name], value) for name, value in tiny.parameters(trainer).items())


def test_missing_log_probabilities_train_without_nan(served):
    def partly(body, number):
        choice = choice_of(body, by_seed(body, number))
        choice["logprobs"]["token_logprobs"][1] = None if number % 2 else math.nan
        return choice

    trainer, _, _ = served(partly, vllm_importance_sampling_mode="token_truncate")
    trainer.train()
    assert 0 < history(trainer, "sampling/missing_logp_share")[0] < 1
    assert all(torch.isfinite(value).all() for value in tiny.parameters(trainer).values())
    assert math.isfinite(history(trainer, "loss")[0])


# ---- a server that is not usable (NBK-2) ----------------------------------------------------------------------------


def test_nothing_on_the_port_fails_at_construction_before_any_analyzer_request(tmp_path):
    url = f"http://127.0.0.1:{free_port()}"
    before, threads = open_sockets(), threading.active_count()
    began = time.monotonic()
    with pytest.raises(ServiceError, match=f"{url}.*vllm serve"):
        server_trainer(tmp_path, url, vllm_server_timeout=1.0)
    assert time.monotonic() - began < 10  # of which a second for the server
    assert CountingAnalyzer.num_requests == 0 and Script.opened == 0
    assert threading.active_count() <= threads
    assert wait_until(lambda: open_sockets() <= before)


def test_a_server_that_refuses_the_group_fails_at_construction(tmp_path, monkeypatch):
    joined = []
    trl_client = SimpleNamespace(
        get_ip=lambda: "127.0.0.1", _HAS_STATEFUL_TRAINER_ENGINE=True, open_trainer_endpoint=joined.append
    )
    monkeypatch.setattr(weight_transfer, "_trl_client", lambda: trl_client)
    monkeypatch.setattr(weight_transfer, "check_transfer", lambda *_: None)  # this machine has no GPU
    before, threads = open_sockets(), threading.active_count()
    with FakeVLLM(on_init=lambda info: (500, {"error": "already initialised"})) as fake:
        with pytest.raises(ServiceError, match=f"{fake.url}.*already initialised.*Restart the server"):
            server_trainer(tmp_path, fake.url, vllm_server_timeout=3.0)
        assert not fake.requests and not joined
    assert CountingAnalyzer.num_requests == 0 and Script.opened == 0
    assert wait_until(lambda: threading.active_count() <= threads and open_sockets() <= before)


def test_a_server_that_dies_within_a_batch_stops_the_run_with_its_address(served):
    def reply(body, number):
        if number == 3:
            threading.Thread(target=fake.stop).start()
        return "hang" if number >= 3 else by_seed(body, number)

    fake = FakeVLLM(reply)
    trainer, fake, _ = served(fake=fake, max_steps=3)
    began = time.monotonic()
    trainer.engine.policy._server.timeout = 2.0
    with pytest.raises((ServiceError, RolloutError), match=fake.url):
        trainer.train()
    assert time.monotonic() - began < 20


def test_a_restarted_server_stops_the_run(served):
    def reply(body, number):
        if number == 8:
            fake.instance = "two"
        return by_seed(body, number)

    fake = FakeVLLM(reply)
    trainer, fake, client = served(fake=fake, max_steps=3)
    with pytest.raises(ServiceError, match="was restarted"):
        trainer.train()
    assert trainer.state.global_step == 1  # what the stranger generated is not learned from
    assert len(client.updates) == 2


# ---- colocate -------------------------------------------------------------------------------------------------------


@pytest.fixture
def colocated(monkeypatch, tmp_path):
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


def test_colocate_without_a_gpu_says_so(tmp_path):
    with pytest.raises(ConfigurationError, match="needs a GPU"):
        tiny.trainer(tmp_path, use_vllm=True)


# ---- refusals -------------------------------------------------------------------------------------------------------


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
    from taspo_trl.policy.checks import check_adapters

    with pytest.raises(ConfigurationError, match="fsdp_version: 2"):
        check_adapters(model, accelerator)


def test_trained_token_rows_are_refused():
    accelerator = SimpleNamespace(state=SimpleNamespace())
    model = SimpleNamespace(peft_config={"default": LoraConfig(trainable_token_indices=[1, 2])})
    from taspo_trl.policy.checks import check_adapters

    with pytest.raises(ConfigurationError, match="trainable_token_indices"):
        check_adapters(model, accelerator)
