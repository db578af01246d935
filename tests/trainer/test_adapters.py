"""LoRA and QLoRA: what is pi_old, what is the reference, what is trained, in every precision that runs here."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from transformers import LlamaForCausalLM

from taspo_trl.errors import ConfigurationError
from taspo_trl.scoring.paired import PairedRow
from taspo_trl.scoring.projection import selected_forward
from tests import tiny
from tests.trainer.test_trainer import history, scripted


LORA = {"r": 4, "target_modules": ["q_proj", "v_proj"], "init_lora_weights": False, "task_type": "CAUSAL_LM"}


def test_old_policy_is_the_current_adapter(tmp_path):
    """Scored with the adapter on: the shifts are those of the merged model."""
    made, _ = scripted(tmp_path, peft_config=LoraConfig(**LORA))
    pair = PairedRow(tuple(range(5, 40)), 10, ((60, 61),), tuple(range(12, 35)))
    adapted = made.experience_maker.passes.score([pair])[0]
    merged, _ = scripted(tmp_path / "merged", model=_plain_copy(made.model.merge_and_unload()))
    assert adapted.guided[0] == pytest.approx(merged.experience_maker.passes.score([pair])[0].guided[0], abs=1e-5)
    base, _ = scripted(tmp_path / "base")
    assert adapted.guided[0] != pytest.approx(base.experience_maker.passes.score([pair])[0].guided[0], abs=1e-3)


def _plain_copy(model):
    copy = LlamaForCausalLM(model.config)
    copy.load_state_dict(model.state_dict())
    return copy


def test_reference_is_the_adapter_off_or_its_frozen_copy(tmp_path):
    """A new adapter starts away from the base, so its KL is positive at once; a loaded one is its own reference."""
    fresh, _ = scripted(tmp_path, peft_config=LoraConfig(**LORA), beta=0.1)
    fresh.train()
    assert history(fresh, "kl")[0] > 1e-4
    loaded, _ = scripted(
        tmp_path / "loaded", model=get_peft_model(tiny.model(), LoraConfig(**LORA)), beta=0.1, max_steps=2
    )
    frozen = {n: p.clone() for n, p in loaded.model.named_parameters() if ".ref." in n}
    loaded.train()
    assert history(loaded, "kl")[0] == pytest.approx(0, abs=1e-6) and history(loaded, "kl")[1] > 1e-7
    assert frozen and all(torch.equal(p, loaded.model.get_parameter(n)) for n, p in frozen.items())


def two_adapters(active):
    """Two adapters of different values, of which `active` is the policy."""
    model = get_peft_model(tiny.model(), LoraConfig(**LORA), adapter_name="default")
    model.add_adapter("second", LoraConfig(**{**LORA, "r": 8}))
    model.set_adapter(active)
    return model


@pytest.mark.parametrize("active", ["default", "second"])
def test_reference_is_the_adapter_that_is_active_at_the_start(tmp_path, active):
    """F34: by any name; the first KL is 0 and the other adapter is no part of it."""
    model = two_adapters(active)
    made, _ = scripted(tmp_path, model=model, beta=0.1, max_steps=2)
    before = {n: p.detach().clone() for n, p in made.model.named_parameters()}
    made.train()
    assert history(made, "kl")[0] == pytest.approx(0, abs=1e-7) and history(made, "kl")[1] > 1e-7
    moved = {n for n, p in made.model.named_parameters() if not torch.equal(p, before[n])}
    assert moved and all(f".{active}." in name for name in moved), "neither the reference nor the other adapter"


def test_adapter_under_another_name_has_a_reference(tmp_path):
    model = get_peft_model(tiny.model(), LoraConfig(**LORA), adapter_name="ref")
    made, _ = scripted(tmp_path, model=model, beta=0.1, max_steps=1)
    made.train()
    assert history(made, "kl") == [pytest.approx(0, abs=1e-7)]
    assert set(made.model.peft_config) == {"ref", "ref_2"} and made.model.active_adapter == "ref"


@pytest.mark.parametrize("loaded", [False, True])
def test_reference_passes_leave_every_flag_as_they_found_it(tmp_path, loaded):
    adapter = (
        {"model": get_peft_model(tiny.model(), LoraConfig(**LORA))} if loaded else {"peft_config": LoraConfig(**LORA)}
    )
    made, _ = scripted(tmp_path, beta=0.1, max_steps=1, **adapter)
    frozen = next(n for n, p in made.model.named_parameters() if p.requires_grad)
    made.model.get_parameter(frozen).requires_grad_(False)  # a user's choice, which PEFT would undo
    flags = {n: p.requires_grad for n, p in made.model.named_parameters()}
    made.train()
    assert {n: p.requires_grad for n, p in made.model.named_parameters()} == flags
    assert not any(flag for name, flag in flags.items() if ".ref." in name)


@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_nothing_to_train_is_refused_when_the_trainer_is_made(tmp_path, beta):
    from peft import PeftModel

    get_peft_model(tiny.model(), LoraConfig(**LORA)).save_pretrained(tmp_path / "adapter")
    loaded = PeftModel.from_pretrained(tiny.model(), tmp_path / "adapter")
    with pytest.raises(ConfigurationError, match=r"nothing to train.*`is_trainable=True`"):
        scripted(tmp_path / "run", model=loaded, beta=beta)
    with pytest.raises(ConfigurationError, match=r"nothing to train.*requires_grad_\(True\)"):
        scripted(tmp_path / "run", model=tiny.model().requires_grad_(False), beta=beta)
    frozen_base = tiny.model().requires_grad_(False)
    scripted(tmp_path / "run", model=frozen_base, peft_config=LoraConfig(**LORA), beta=beta)


def test_reference_of_several_active_adapters_and_a_synced_one_are_refused(tmp_path):
    model = two_adapters("default")
    model.base_model.set_adapter(["default", "second"])
    with pytest.raises(ConfigurationError, match="active together"):
        scripted(tmp_path, model=model, beta=0.1)
    with pytest.raises(ConfigurationError, match="`sync_ref_model`"):
        scripted(tmp_path, peft_config=LoraConfig(**LORA), beta=0.1, sync_ref_model=True)


def movement(tmp_path, dropout, **values):
    """What two steps of SGD on one rollout batch did to the adapter; the base does not move."""
    peft_config = LoraConfig(**LORA, lora_dropout=dropout)
    values = {"num_iterations": 2, "max_steps": 2, "optim": "sgd", "learning_rate": 1.0, **values}
    torch.manual_seed(1)
    made, _ = scripted(tmp_path, peft_config=peft_config, **values)
    before = tiny.parameters(made)
    made.train()
    after = tiny.parameters(made)
    assert all("lora_" in name for name in before if not torch.equal(before[name], after[name]))
    return torch.cat([(after[name] - before[name]).double().flatten() for name in before if "lora_" in name])


def test_checkpointing_and_bf16_move_an_adapter_as_float32_does(tmp_path):
    """Under dropout, whose masks a recomputed forward has to repeat."""
    expected = movement(tmp_path / "plain", 0.2)
    undropped = movement(tmp_path / "undropped", 0.0)
    assert (expected - undropped).norm() > 0.1 * expected.norm() > 0, "the update goes without dropout"
    for checkpointing, bf16, tolerance in ((True, False, 1e-5), (False, True, 0.1), (True, True, 0.1)):
        folder = tmp_path / f"{checkpointing}-{bf16}"
        moved = movement(folder, 0.2, gradient_checkpointing=checkpointing, bf16=bf16)
        assert (moved - expected).norm() < tolerance * expected.norm(), (checkpointing, bf16)


@pytest.mark.parametrize("is_adapter", [False, True])
def test_old_and_reference_log_probabilities_know_no_dropout(tmp_path, is_adapter):
    """pi_old acted without dropout: the ratio of the first step is that of the update's own dropout, not of two."""
    values = {"peft_config": LoraConfig(**LORA, lora_dropout=0.5)} if is_adapter else {}
    model = tiny.model(attention_dropout=0.5)
    made, _ = scripted(tmp_path, model=model, num_iterations=2, beta=0.1, **values)
    made.current_gradient_accumulation_steps = 1
    made.model.train()  # as in a training step
    buffer = made._new_rollout([made.train_dataset[0]] * 4 + [made.train_dataset[1]] * 4)
    passes = made.experience_maker.passes
    num_rows = 0
    for row in (row for micro in buffer for batch in micro for row in batch):
        inputs = passes.collate([row])
        with torch.no_grad():
            dropped = selected_forward(made.model.train(), inputs).logps
            logps = selected_forward(made.model.eval(), inputs).logps
            with made.model.disable_adapter() if is_adapter else nullcontext():
                reference = selected_forward(made.model, inputs).logps
        assert row.old_logps == pytest.approx(logps.tolist(), abs=1e-5)
        assert row.ref_logps == pytest.approx(reference.tolist(), abs=1e-5)
        assert not torch.allclose(dropped, logps, atol=1e-3)
        num_rows += 1
    assert num_rows == 24


def test_checkpointing_changes_no_gradient(tmp_path):
    runs = []
    for checkpointing in (False, True):
        made, _ = scripted(
            tmp_path / str(checkpointing), gradient_checkpointing=checkpointing, optim="sgd", learning_rate=1.0
        )
        made.train()
        runs.append(tiny.parameters(made))
    assert all(torch.allclose(runs[0][name], runs[1][name], atol=1e-6) for name in runs[0])


def test_adapters_that_move_positions_or_the_head_are_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="virtual tokens"):
        scripted(tmp_path, peft_config=PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3))
    with pytest.raises(ValueError, match="lm_head"):
        scripted(tmp_path, peft_config=LoraConfig(r=2, target_modules=["lm_head"]))


def test_adapter_saves_and_loads_without_this_package(tmp_path):
    from peft import AutoPeftModelForCausalLM

    folder = tmp_path / "base"
    tiny.model().save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    made, _ = scripted(tmp_path / "run", model=str(folder), processing_class=None, peft_config=LoraConfig(**LORA))
    made.train()
    made.save_model(str(tmp_path / "adapter"))
    ids = torch.arange(5, 20).unsqueeze(0)
    loaded = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter").eval()
    made.model.eval()
    assert torch.allclose(loaded(ids).logits, made.model(input_ids=ids).logits, atol=1e-5)


@pytest.mark.slow
def test_four_bit_base_with_lora_trains_on_the_cpu(tmp_path):
    """QLoRA: nf4 base, adapters in bfloat16, KL against the adapter off, scoring included."""
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed (taspo_trl[quantization])")
    from transformers import BitsAndBytesConfig

    folder = tmp_path / "base"
    tiny.model(hidden_size=64, intermediate_size=128).save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    quantization = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
    )
    made, _ = scripted(
        tmp_path / "run",
        by_member=("inventory", "inventory", "look", "look"),
        model=str(folder),
        processing_class=None,
        quantization_config=quantization,
        peft_config=LoraConfig(**LORA),
        model_init_kwargs={"dtype": torch.bfloat16, "device_map": {"": "cpu"}},
        beta=0.1,
        bf16=True,
        max_steps=2,
    )
    assert any("Linear4bit" in type(module).__name__ for module in made.model.modules())
    packed = {n: p.clone() for n, p in made.model.named_parameters() if not p.requires_grad}
    before = tiny.parameters(made)
    made.train()
    moved = [n for n, p in tiny.parameters(made).items() if not torch.equal(p, before[n])]
    assert moved and all("lora_" in name for name in moved)
    assert all(torch.equal(p, made.model.get_parameter(n)) for n, p in packed.items()), "the 4-bit base moved"
    assert history(made, "guidance/coverage")[0] > 0 and history(made, "credit/weight_std")[0] > 0
    assert history(made, "kl")[0] > 0
