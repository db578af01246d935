"""What is learned of a demonstration: replies and, with a weight, prompts, whatever the split into forwards."""

from __future__ import annotations

import json
import pickle
from types import SimpleNamespace

import pytest
import torch
from accelerate.utils.deepspeed import HfDeepSpeedConfig
from datasets import Dataset
from huggingface_hub import ModelCard
from peft import LoraConfig
from transformers import AutoModelForCausalLM

from taspo_trl.errors import CheckpointError, ConfigurationError
from taspo_trl.imitation import Demonstration, ImitationConfig, ImitationTrainer
from taspo_trl.imitation.learning import SimilarLengths, refuse_shards
from tests import tiny
from tests.hub_server import card_faults


DATA = [
    Demonstration((5, 6, 7, 8), (9, 10)),
    Demonstration((5, 6), (11,)),
    Demonstration((12, 13, 14, 15, 16, 17), (18, 19, 20)),
]
MANY = [Demonstration(tuple(range(5, 7 + k % 5)), (20 + k, 30 + k)) for k in range(10)]


def trainer(folder, data=DATA, model=None, peft_config=None, eval_dataset=None, compute_loss_func=None, **values):
    defaults = {"gradient_accumulation_steps": 1, "gradient_checkpointing": False, "use_cpu": True, "bf16": False}
    silent = {"logging_steps": 1, "disable_tqdm": True, "save_strategy": "no", "report_to": "none", "max_steps": 1}
    args = ImitationConfig(str(folder), **{**defaults, **silent, **values})
    return ImitationTrainer(
        model or tiny.model(), args, data, processing_class=tiny.tokenizer(), peft_config=peft_config,
        eval_dataset=eval_dataset, compute_loss_func=compute_loss_func,
    )  # fmt: skip


def trained(folder, data=DATA, resume=None, **values):
    """(losses of the steps, parameters)."""
    made = trainer(folder, data, **values)
    made.train(resume_from_checkpoint=resume)
    losses = [one["loss"] for one in made.state.log_history if "loss" in one]
    return losses, {name: value.detach().clone() for name, value in made.model.named_parameters()}


def reference(prompt_loss, data=DATA):
    """The loss in float64, one row and one token after the other."""
    model, total, weights = tiny.model(dtype=torch.float64), 0.0, 0.0
    for one in data:
        ids = torch.tensor([one.prompt_ids + one.reply_ids])
        logps = model(input_ids=ids).logits.log_softmax(-1)[0]
        for k in range(1, ids.shape[1]):
            weight = 1.0 if k >= len(one.prompt_ids) else prompt_loss
            total -= weight * logps[k - 1, ids[0, k]].item()
            weights += weight
    return total / weights


@pytest.mark.parametrize("prompt_loss", [0.0, 0.1, 1.0])
def test_the_loss_is_that_of_replies_and_weighted_prompts_however_it_is_split(tmp_path, prompt_loss):
    options = {"prompt_loss": prompt_loss, "train_sampling_strategy": "sequential"}
    whole = trained(tmp_path, per_device_train_batch_size=3, **options)
    assert whole[0] == pytest.approx([reference(prompt_loss)], rel=1e-6)
    parts = trained(tmp_path, per_device_train_batch_size=1, gradient_accumulation_steps=3, **options)
    assert parts[0] == pytest.approx(whole[0], rel=1e-6)
    for name, value in whole[1].items():
        assert torch.allclose(value, parts[1][name], atol=2e-6), "AdamW moves by the learning rate, 1e-5, at first"


def test_an_evaluation_weighs_prompts_as_training_does(tmp_path):
    made = trainer(tmp_path, prompt_loss=0.1, per_device_eval_batch_size=3)
    assert made.evaluate(made.train_dataset)["eval_loss"] == pytest.approx(reference(0.1), rel=1e-6)
    found = made.evaluate({"all": DATA, "one": DATA[1:2]})
    assert found["eval_all_loss"] == pytest.approx(reference(0.1), rel=1e-6)
    assert found["eval_one_loss"] == pytest.approx(reference(0.1, DATA[1:2]), rel=1e-6)


def test_held_out_turns_are_evaluated_while_others_are_learned(tmp_path):
    options = {"eval_strategy": "steps", "eval_steps": 1, "learning_rate": 0.0, "per_device_eval_batch_size": 3}
    made = trainer(tmp_path, MANY, eval_dataset=DATA, prompt_loss=0.1, **options)
    made.train()
    losses = [one["eval_loss"] for one in made.state.log_history if "eval_loss" in one]
    assert losses == pytest.approx([reference(0.1)], rel=1e-6)


def test_a_data_set_of_trl_is_evaluated_where_labels_alone_say_what_counts(tmp_path):
    data = Dataset.from_dict({"prompt": ["look"], "completion": [" at it"]})
    assert trainer(tmp_path, eval_dataset=data).evaluate()["eval_loss"] > 0
    with pytest.raises(ConfigurationError, match=r"Prompts weigh 0\.1 .* no columns `labels` and `prompt_length`"):
        trainer(tmp_path, eval_dataset=data, prompt_loss=0.1)
    made = trainer(tmp_path, prompt_loss=0.1)
    for given in (data, {"one": data}, data.to_iterable_dataset().map(lambda row: row)):
        with pytest.raises(ConfigurationError, match=r"Give `Demonstration`s as the `eval_dataset`"):
            made.evaluate(given)
    with pytest.raises(ConfigurationError, match="holds no turn"):
        made.evaluate([])


def test_a_demonstration_is_learned_by_heart(tmp_path):
    made = trainer(tmp_path, max_steps=40, learning_rate=3e-2)
    made.train()
    made.save_merged(tmp_path / "saved")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    for one in DATA:
        greedy = model(input_ids=torch.tensor([one.prompt_ids + one.reply_ids])).logits[0].argmax(-1)
        assert tuple(greedy[len(one.prompt_ids) - 1 : -1].tolist()) == one.reply_ids


def test_the_seed_decides_the_order_and_a_resumed_run_goes_on_with_it(tmp_path):
    """Five steps of four rows are more than one pass over ten; the fourth step is in the second one."""
    options = {"data": MANY, "max_steps": 5, "per_device_train_batch_size": 4, "learning_rate": 1e-2}
    options |= {"prompt_loss": 0.1, "save_steps": 4}
    whole = trained(tmp_path / "whole", save_strategy="steps", **options)
    resumed = trained(tmp_path / "again", resume=str(tmp_path / "whole/checkpoint-4"), **options)
    assert whole[0] == resumed[0] and len(whole[0]) == 5
    assert all(value.equal(resumed[1][name]) for name, value in whole[1].items())
    assert whole[0] != trained(tmp_path / "other", seed=1, **options)[0]


def test_every_pass_takes_each_row_once_in_batches_of_similar_length():
    lengths = [1, 9, 2, 8, 3, 7, 4, 6, 5, 5, 1]
    epochs = [list(SimilarLengths(lengths, 2, 0, lambda epoch=epoch: epoch)) for epoch in (0, 0, 1)]
    assert epochs[0] == epochs[1] != epochs[2]
    for rows in epochs:
        assert sorted(rows) == list(range(11))
        assert all(abs(lengths[a] - lengths[b]) <= 2 for a, b in zip(rows[0:10:2], rows[1:10:2], strict=True))


def test_a_lora_alone_is_trained_and_merged(tmp_path):
    lora = LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM")
    made = trainer(tmp_path, peft_config=lora, max_steps=2, learning_rate=1e-2)
    moving = {name for name, value in made.model.named_parameters() if value.requires_grad}
    assert moving and all("lora_" in name for name in moving)
    made.train()
    assert made.save_merged(tmp_path / "saved")
    before = dict(tiny.model().named_parameters())
    after = dict(AutoModelForCausalLM.from_pretrained(tmp_path / "saved").named_parameters())
    moved = {name for name, value in after.items() if not value.equal(before[name])}
    assert moved and all("proj" in name for name in moved)


def test_the_card_says_what_was_done_and_names_no_folder(tmp_path):
    base = tmp_path / "alice/base"
    tiny.model().save_pretrained(base)
    lora = LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM")
    made = trainer(tmp_path / "out", model=str(base), peft_config=lora, save_strategy="steps", save_steps=1)
    made.train()
    made.save_merged(tmp_path / "merged")
    cards = [ModelCard.load(tmp_path / name / "README.md") for name in ("out", "merged")]
    for card, name, library, tuning in zip(
        cards, ("out", "merged"), ("peft", "transformers"), ("LoRA of rank 2", "LoRA of rank 2, merged"), strict=True
    ):
        assert not card_faults(card.content)
        assert "alice" not in card.content and "None" not in card.content and card.data.base_model is None
        told_on_hub = card.data.to_dict()
        assert told_on_hub["library_name"] == library and {"sft", "taspo", "trl"} <= set(card.data.tags)
        for told in (f"# {name}\n", "| Turns imitated | 3 |", "| Optimizer steps | 1 |", f"| Tuning | {tuning} |"):
            assert told in card.content
    made.model.config._name_or_path = "somebody/base"
    made.create_model_card(model_name="mine", dataset_name="somebody/data", tags="extra")
    card = ModelCard.load(tmp_path / "out/README.md")
    assert (card.data.base_model, card.data.datasets) == ("somebody/base", ["somebody/data"])
    assert "# mine\n" in card.content and "extra" in card.data.tags


def test_shards_are_no_model(tmp_path, monkeypatch):
    """DeepSpeed is not installed here: what it would save is said from its configuration."""

    def plugin(stage, **options):
        return SimpleNamespace(hf_ds_config=HfDeepSpeedConfig({"zero_optimization": {"stage": stage, **options}}))

    made = trainer(tmp_path)
    for gathered in (plugin(2), plugin(3, stage3_gather_16bit_weights_on_model_save=True)):
        made.args.deepspeed_plugin = gathered
        refuse_shards(made.args)
    made.args.deepspeed_plugin = plugin(3)
    with pytest.raises(ConfigurationError, match=r"in shards.*`stage3_gather_16bit_weights_on_model_save` to true"):
        refuse_shards(made.args)
    saved = []
    monkeypatch.setattr(made, "save_model", lambda folder, _internal_call: saved.append(folder))
    made.is_deepspeed_enabled = True
    with pytest.raises(CheckpointError, match=r"holds the trained weights in DeepSpeed's shards.*zero_to_fp32"):
        made.save_merged(tmp_path / "saved")
    assert saved == [str(tmp_path / "saved")], "what was learned is not lost"


def test_no_credential_leaves_the_configuration(tmp_path):
    given = json.dumps({"token": "CANARY-1234", "revision": "main"})  # as a command line gives it
    args = ImitationConfig(str(tmp_path), hub_token="CANARY-hub-33", model_init_kwargs=given, run_name="kept")
    assert args.model_init_kwargs["token"] == "CANARY-1234"
    texts = (pickle.dumps(args).decode("latin-1"), json.dumps(args.to_dict()), repr(args), str(args))
    assert all("kept" in text and "CANARY" not in text for text in texts)


def test_refusals(tmp_path):
    with pytest.raises(ConfigurationError, match="no turn to imitate"):
        trainer(tmp_path, [])
    with pytest.raises(ConfigurationError, match="nothing to train"):
        trainer(tmp_path, model=tiny.model().requires_grad_(False))
    with pytest.raises(ConfigurationError, match="needs tokens of a prompt and of a reply"):
        trainer(tmp_path, [Demonstration((), (3,))])
    with pytest.raises(ConfigurationError, match=r"`prompt_loss` must not be negative, got -1\.0"):
        trainer(tmp_path, prompt_loss=-1.0)
    with pytest.raises(ConfigurationError, match=r"`loss_type` knows no weight.*got 0\.5"):
        trainer(tmp_path, prompt_loss=0.5, loss_type="dft")
    with pytest.raises(ConfigurationError, match=r"`eval_packing` knows no weight.*got 0\.5"):
        trainer(tmp_path, prompt_loss=0.5, eval_packing=True)
    with pytest.raises(ConfigurationError, match=r"`compute_loss_func` is not told the weight.*got 0\.5"):
        trainer(tmp_path, prompt_loss=0.5, compute_loss_func=lambda *args, **kwargs: 0)
