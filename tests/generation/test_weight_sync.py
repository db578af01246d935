"""What an engine is sent: merged values, base names, in order, once per step, and a base that never moves (RES-2)."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
from accelerate import Accelerator
from peft import LoraConfig, get_peft_model

from taspo_trl.errors import ServiceError
from taspo_trl.generation.engine_parameters import EngineParameters
from taspo_trl.generation.weight_sync import ServerWeights, WeightSync
from tests import tiny
from tests.generation.recording import RecordingClient


@pytest.fixture(scope="module")
def accelerator():
    return Accelerator(cpu=True)


def lora(dtype=torch.float32, seed=0, **config):
    """A tiny Llama with LoRA whose B is not zero, as after training."""
    values = {"r": 4, "lora_alpha": 12, "target_modules": ["q_proj", "v_proj", "down_proj"], **config}
    model = get_peft_model(tiny.model(seed, dtype), LoraConfig(task_type="CAUSAL_LM", **values))
    disturb(model)
    return model


def disturb(model, seed=1):
    """An optimizer step's stand-in: other values in all that trains."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, param in model.named_parameters():
            if param.requires_grad:
                param.copy_(0.1 * torch.randn(param.shape, generator=generator).to(param.dtype))
                assert param.abs().sum() > 0, name


def pushed(model, accelerator, packs=True):
    client = RecordingClient(packs)
    ServerWeights(client).load(EngineParameters(lambda: model, accelerator))
    return client.updates[0]


def bits(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_same_bits(before, model):
    after = model.state_dict()
    moved = [name for name in before if not torch.equal(before[name], after[name])]
    assert not moved


@pytest.mark.parametrize("packs", [True, False])
def test_pushed_weight_is_base_plus_scaled_product_of_the_adapter(accelerator, packs):
    model = lora()
    sent = pushed(model, accelerator, packs)
    for k, layer in enumerate(model.base_model.model.model.layers):
        for part, owner in ((layer.self_attn.q_proj, "self_attn.q_proj"), (layer.mlp.down_proj, "mlp.down_proj")):
            update = 12 / 4 * part.lora_B["default"].weight @ part.lora_A["default"].weight
            expected = part.base_layer.weight + update
            torch.testing.assert_close(sent[f"model.layers.{k}.{owner}.weight"], expected, atol=1e-6, rtol=0)
            assert (sent[f"model.layers.{k}.{owner}.weight"] - part.base_layer.weight).abs().max() > 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_names_and_shapes_are_those_of_the_base_model(accelerator, dtype):
    base = {name: value.shape for name, value in tiny.model().named_parameters()}
    sent = pushed(lora(dtype), accelerator)
    assert {name: value.shape for name, value in sent.items()} == base
    assert all(value.dtype == dtype for value in sent.values())
    assert not any("lora" in name or "base_layer" in name or "base_model" in name for name in sent)


def test_weights_without_an_adapter_are_sent_as_they_are(accelerator):
    model = tiny.model()
    sent = pushed(model, accelerator)
    assert sent.keys() == dict(model.named_parameters()).keys()
    assert all(torch.equal(sent[name], value) for name, value in model.named_parameters())


def test_merged_engine_computes_what_the_policy_computes(accelerator):
    model = lora().eval()
    engine = tiny.model(seed=5)
    engine.load_state_dict(pushed(model, accelerator), strict=False)
    ids = torch.arange(3, 15).unsqueeze(0)
    with torch.no_grad():
        torch.testing.assert_close(engine.eval()(ids).logits, model(ids).logits, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_base_is_bit_identical_after_fifty_synchronisations(accelerator, dtype):
    model = lora(dtype)
    client = RecordingClient()
    sync = WeightSync(EngineParameters(lambda: model, accelerator), ServerWeights(client))
    before = bits(model)
    for step in range(50):
        assert sync.before_generation(step)
    assert_same_bits(before, model)
    assert len(client.updates) == 50 == client.num_resets
    assert all(torch.equal(client.updates[0][name], client.updates[49][name]) for name in client.updates[0])
    assert not any(getattr(module, "merged", False) for module in model.modules())


def test_adding_and_subtracting_alone_would_move_the_base(accelerator):
    """The reason for putting the bits back: without it this would be a test of nothing."""
    model = lora(torch.bfloat16)
    before = bits(model)
    for _ in range(50):
        model.merge_adapter()
        model.unmerge_adapter()
    with pytest.raises(AssertionError):
        assert_same_bits(before, model)


@pytest.mark.parametrize("packs", [True, False])
def test_the_base_does_not_move_while_weights_are_sent(accelerator, packs):
    model = lora()
    before = bits(model)
    for _ in EngineParameters(lambda: model, accelerator):
        assert_same_bits(before, model)


def test_a_walk_that_breaks_off_leaves_the_model_as_it_was(accelerator):
    model = lora()
    before = bits(model)
    walk = iter(EngineParameters(lambda: model, accelerator))
    for _ in range(5):
        next(walk)
    walk.close()
    assert_same_bits(before, model)
    assert not any(getattr(module, "merged", False) for module in model.modules())


def test_gradients_stay_on_while_a_walk_is_under_way(accelerator):
    walk = iter(EngineParameters(lambda: lora(), accelerator))
    next(walk)
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    "config",
    [
        {"use_dora": True},
        {"use_rslora": True},
        {"lora_bias": True, "target_modules": ["q_proj"]},
        {"target_modules": ["embed_tokens", "q_proj"]},
        {"modules_to_save": ["lm_head"]},
        {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"q_proj": 7}},
    ],
    ids=lambda config: next(iter(config)),
)
def test_every_kind_of_adapter_reaches_the_engine_whole(accelerator, config):
    bias = {"attention_bias": True} if config.get("lora_bias") else {}
    base = tiny.model(0, **bias)
    values = {"r": 4, "lora_alpha": 12, "target_modules": ["q_proj", "v_proj"], **config}
    model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **values)).eval()
    disturb(model)
    before = bits(model)
    sent = pushed(model, accelerator)
    assert_same_bits(before, model)
    engine = tiny.model(5, **bias).eval()
    assert sent.keys() == dict(engine.named_parameters()).keys()
    engine.load_state_dict(sent, strict=False)
    ids = torch.arange(3, 15).unsqueeze(0)
    with torch.no_grad():
        torch.testing.assert_close(engine(ids).logits, model(ids).logits, atol=1e-4, rtol=1e-3)


def test_the_frozen_reference_adapter_is_not_sent(accelerator):
    model = lora(modules_to_save=["lm_head"])
    once = pushed(model, accelerator)
    model.add_adapter("ref", model.peft_config["default"])
    with torch.no_grad():
        for name, param in model.named_parameters():
            if ".ref." in name:
                param.fill_(3.0)
    again = pushed(model, accelerator)
    assert once.keys() == again.keys()
    assert all(torch.equal(once[name], again[name]) for name in once)


# ---- when -----------------------------------------------------------------------------------------------------------


class Sink:
    def __init__(self):
        self.num_loads = 0
        self.fails = False

    def load(self, parameters):
        self.num_loads += 1
        if self.fails:
            raise ConnectionError("the server went away")
        list(parameters)


def test_weights_are_loaded_once_for_each_step():
    sink = Sink()
    sync = WeightSync([], sink)
    assert [sync.before_generation(step) for step in (0, 0, 0, 1, 1, 3)] == [True, False, False, True, False, True]
    assert sink.num_loads == 3


def test_forgotten_weights_are_loaded_again():
    sink = Sink()
    sync = WeightSync([], sink)
    sync.before_generation(4)
    sync.forget()
    assert sync.before_generation(4) and sink.num_loads == 2


def test_a_load_that_failed_does_not_count():
    sink = Sink()
    sync = WeightSync([], sink)
    sync.before_generation(0)
    sink.fails = True
    with pytest.raises(ConnectionError):
        sync.before_generation(1)
    sink.fails = False
    assert sync.before_generation(0)  # half of the new weights may have arrived


def test_the_prefix_cache_is_emptied_after_the_weights_have_changed(accelerator):
    client = RecordingClient()
    ServerWeights(client).load(EngineParameters(tiny.model, accelerator))
    assert client.events == ["update", "reset"]


def test_an_update_that_the_server_refuses_is_a_clear_error_with_its_address(accelerator):
    class Refusing(RecordingClient):
        def update_named_params(self, metadata, named_params):
            raise Exception("Request failed: 500, EngineDeadError")  # as TRL's client words it

    with pytest.raises(ServiceError, match=r"http://recording:8000 did not take the weights.*EngineDeadError.*resume"):
        ServerWeights(Refusing()).load(EngineParameters(tiny.model, accelerator))


def test_an_update_is_watched_and_every_tensor_is_progress(accelerator):
    signs = []

    @contextmanager
    def watch():
        signs.append("begun")
        yield lambda: signs.append("progress")
        signs.append("ended")

    client = RecordingClient()
    ServerWeights(client, watch).load(EngineParameters(tiny.model, accelerator))
    assert signs == ["begun", *["progress"] * len(client.updates[0]), "ended"]


def test_a_walk_that_fails_is_logged_before_anyone_waits_for_the_server(caplog):
    class Waiting(RecordingClient):
        def update_named_params(self, metadata, named_params):
            try:
                list(named_params)
            finally:
                assert "out of memory" in caplog.text  # TRL's client would wait for the server's answer here

    def parameters():
        yield "a", torch.zeros(2)
        if walks.append(None) or len(walks) == 2:
            raise RuntimeError("out of memory")

    class Parameters:
        def __iter__(self):
            return parameters()

    walks = []
    with pytest.raises(RuntimeError, match="out of memory"):
        ServerWeights(Waiting()).load(Parameters())


def test_processes_that_send_nothing_walk_along(accelerator):
    walks = []

    class Parameters:
        def __iter__(self):
            walks.append("begun")
            yield "a", torch.zeros(2)
            walks.append("ended")

    ServerWeights(None).load(Parameters())
    ServerWeights(RecordingClient()).load(Parameters())
    assert walks == ["begun", "ended"] * 4  # each once to announce and once to send: gathering is collective


def test_a_weight_that_changed_its_shape_is_not_sent(accelerator):
    shapes = iter([2, 3])

    class Parameters:
        def __iter__(self):
            yield "a", torch.zeros(next(shapes))

    with pytest.raises(RuntimeError, match="was announced"):
        ServerWeights(RecordingClient()).load(Parameters())
