"""The chat template when a trainer is made: refused roles, end tokens, dates, tags among the special tokens."""

from __future__ import annotations

import pytest
from datasets import Dataset
from transformers import AddedToken, LlamaConfig, LlamaForCausalLM

from taspo_trl.environments.base import PromptTemplate
from taspo_trl.errors import ConfigurationError
from taspo_trl.records import read_records
from tests import tiny
from tests.rollout import templates
from tests.scripted import ScriptedEnvironment
from tests.tokenizers import PAD, byte_bpe


class Ruled(ScriptedEnvironment):
    prompt = PromptTemplate(first="{task}", later="{observation}", reply="{observation}", system="Rules.")


def trainer(tmp_path, tokenizer, factory=ScriptedEnvironment, **values):
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=1024, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    defaults = {
        "model": LlamaForCausalLM(config),
        "processing_class": tokenizer,
        "train_dataset": Dataset.from_list([{"word": word} for word in "abcd"]),
        "environment_factory": factory,
        "max_turns": 2,
        "max_completion_length": 32,
    }
    return tiny.trainer(tmp_path, **{**defaults, **values})


def test_a_refused_role_is_an_error_at_construction(tmp_path):
    """It was a raw template error in the middle of training (EleutherAI/lm-evaluation-harness#2069)."""
    with pytest.raises(ConfigurationError, match=r"refuses the messages system, user \(System role not supported\)"):
        trainer(tmp_path, templates.tokenizer("gemma"), Ruled)
    trainer(tmp_path, templates.tokenizer("gemma")).close()


def test_the_template_s_end_token_ends_replies(tmp_path):
    """QwenLM/Qwen3#1422: a base model's own end token is not the one with which the template closes a turn."""
    tokenizer = byte_bpe()
    end = tokenizer.eos_token_id
    tokenizer.eos_token = PAD
    made = trainer(tmp_path, tokenizer)
    assert made.eos_token_ids == [tokenizer.pad_token_id, end]
    made.close()


@pytest.mark.parametrize("special", [True, False])
def test_tags_among_the_special_tokens_train_as_others_do(tmp_path, special):
    tokenizer = byte_bpe()
    tokenizer.add_tokens([AddedToken(text, special=special) for text in ("<action>", "</action>")])
    orders = ["win", "go", "win", "go"]
    policy = tiny.ScriptedPolicy(lambda uid, turn: f"<action>{orders[int(uid.rsplit('k', 1)[1])]}</action>", tokenizer)
    made = trainer(tmp_path, tokenizer, policy=policy)
    made.train()
    trajectories = [record.trajectory for record in read_records(tmp_path / "_trajectories")]
    assert {turn.action for one in trajectories for turn in one.turns} == {"win", "go"}
    for turn in (turn for one in trajectories for turn in one.turns):
        assert turn.valid and turn.reply_text == f"<action>{turn.action}</action>"
        assert turn.action_mask == (True,) * (len(turn.reply_ids) - 1) + (False,)
    assert {one.success for one in trajectories} == {True, False}
    made.close()
