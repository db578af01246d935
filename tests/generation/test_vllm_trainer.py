"""TASPOTrainer with a vLLM server: weights before generation, whose ids are learned from, servers that fail."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest
import torch

from taspo_trl.errors import ConfigurationError, RolloutError, ServiceError
from taspo_trl.generation import sync_watch, weight_transfer
from taspo_trl.records import read_records
from taspo_trl.trainer import TASPOTrainer
from taspo_trl.types import StopReason
from tests import tiny
from tests.generation.fake_vllm import FakeVLLM, wait_until
from tests.generation.recording import RecordingClient
from tests.generation.test_vllm_server import open_sockets
from tests.generation.training import LORA, CountingAnalyzer, by_seed, ids_of, server_trainer, wandering
from tests.launching import free_port
from tests.trainer.test_trainer import Script, history, rows


pytestmark = pytest.mark.usefixtures("fresh")


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
    trainer, _, client = served(max_steps=3, peft_config=LORA, eval_dataset=rows(2))
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
    trainer.evaluate()  # brings the weights of the last step
    for k, layer in enumerate(trainer.model.base_model.model.model.layers):
        for name in ("q_proj", "v_proj"):
            part = getattr(layer.self_attn, name)
            update = part.scaling["default"] * part.lora_B["default"].weight @ part.lora_A["default"].weight
            expected = part.base_layer.weight + update
            sent = client.updates[-1][f"model.layers.{k}.self_attn.{name}.weight"]
            torch.testing.assert_close(sent, expected, atol=1e-6, rtol=0)
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


def test_sampling_options_of_trl_reach_the_server(served):
    trainer, fake, _ = served(
        temperature=0.7,
        top_p=0.9,
        top_k=40,
        min_p=0.05,
        generation_kwargs={"frequency_penalty": 0.5},
        vllm_structured_outputs_regex="<action>.*",
    )
    trainer.train()
    expected = {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.05,
        "frequency_penalty": 0.5,
        "max_tokens": 12,
        "structured_outputs": {"regex": "<action>.*"},
    }
    for body in fake.requests:
        assert {name: body[name] for name in expected} == expected


def test_episodes_of_different_lengths_ask_once_for_each_of_their_turns(served):
    trainer, fake, _ = served(wandering)
    trainer.train()
    played = [one.trajectory for one in read_records(trainer.args.output_dir + "/_trajectories")]
    lengths = [len(one.turns) for one in played]
    assert len(set(lengths)) > 1 and len(fake.requests) == sum(lengths)


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


def test_a_construction_that_fails_later_leaves_the_servers_group(served, monkeypatch):
    client = RecordingClient()

    def refuse(*_):
        raise ConfigurationError("no such thing")

    monkeypatch.setattr(TASPOTrainer, "_make_experience_maker", refuse)
    with pytest.raises(ConfigurationError, match="no such thing"):
        served(client=client)
    assert client.is_closed


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
    trainer.engine.engine._server.timeout = 2.0
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


def test_a_server_that_hangs_in_a_weight_update_ends_the_process_with_its_address(served, monkeypatch, caplog):
    ended = threading.Event()
    monkeypatch.setattr(sync_watch.os, "_exit", lambda status: ended.set())

    class Hanging(RecordingClient):
        def update_named_params(self, metadata, named_params):
            list(named_params)
            assert ended.wait(20)  # NCCL would wait on
            raise RuntimeError("the process would be over")

    trainer, fake, _ = served(client=Hanging(), vllm_server_timeout=0.7)
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="would be over"):
        trainer.train()
    assert time.monotonic() - began < 10
    assert f"{fake.url} took no weights" in caplog.text and not fake.requests
