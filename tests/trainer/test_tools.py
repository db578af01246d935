"""Training on classes written for TRL's `environment_factory`, unchanged."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import pytest
from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM

from taspo_trl.environments import HouseholdEnvironment
from taspo_trl.errors import ConfigurationError
from taspo_trl.records import read_records
from tests import tiny
from tests.environments.test_tools import call, template
from tests.environments.tool_worlds import Counter, Rewardless, VerifiedCounter
from tests.tokenizers import byte_bpe
from tests.trainer.test_trainer import history


PLAYS: Mapping[int, list[str]] = {
    0: [call("add", amount=1), call("add", amount=2), "Done."],
    1: [call("add", amount=2), call("add", amount=1), "Done."],
    2: [call("add", amount=1), call("fly"), "Done."],
    3: ["I do not know."],
}


def trainer(tmp_path, factory=Counter, plays=PLAYS, **values):
    """Two tasks of four episodes; which calls are made is decided by `plays`, by member of the group."""
    tokenizer = byte_bpe(template("qwen2_5"))
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=4096, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    rows = [{"prompt": [{"role": "user", "content": f"Task {k}."}], "target": 3} for k in range(4)]
    policy = tiny.ScriptedPolicy(lambda uid, turn: plays[int(uid.rsplit("k", 1)[1])][turn], tokenizer)
    defaults = {
        "model": LlamaForCausalLM(config),
        "processing_class": tokenizer,
        "train_dataset": Dataset.from_list(rows),
        "environment_factory": factory,
        "max_completion_length": 256,
    }
    return tiny.trainer(tmp_path, policy=policy, **{**defaults, **values})


def test_a_trl_class_trains_with_turn_credit(tmp_path):
    made = trainer(tmp_path, success_threshold=1.0)
    before = tiny.parameters(made)
    made.train()
    assert history(made, "success")[0] == 0.5 and history(made, "reward")[0] == 0.5
    assert history(made, "guidance/coverage")[0] > 0 and history(made, "credit/weight_std")[0] > 0
    assert any(not value.equal(before[name]) for name, value in tiny.parameters(made).items())
    records = list(read_records(tmp_path / "_trajectories"))
    guided = [record for record in records if record.guidance]
    assert guided and all("add" in record.guidance.text for record in guided)
    assert {
        record.trajectory.turns[0].answer[0]["role"] for record in records if len(record.trajectory.turns) > 1
    } == {"tool"}
    made.close()


def test_graded_reward_trains_and_its_verdict_is_the_evidence(tmp_path):
    """The outcome is `get_reward`, as in TRL; only `_get_success` makes a trajectory evidence."""
    made = trainer(tmp_path, VerifiedCounter)
    made.train()
    assert history(made, "success")[0] == 0.5
    assert history(made, "reward")[0] == pytest.approx((1 + 1 + 1 / 3 + 1 / 4) / 4)
    made.close()


def test_without_a_verdict_it_is_grpo_and_says_so(tmp_path):
    with pytest.warns(UserWarning, match="`Counter` never says that a task was solved.*plain GRPO"):
        made = trainer(tmp_path)
    made.train()
    assert history(made, "reward")[0] == 0.5 and history(made, "success")[0] == 0.0
    assert history(made, "guidance/coverage")[0] == 0
    made.close()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*never says")
        trainer(tmp_path / "grpo", guidance="none").close()


def test_a_class_without_reward_and_verdict_is_rated_by_the_functions_alone(tmp_path):
    """An episode that none of them rates is recorded with its reason; TRL would give it 0."""

    def judge(trajectories, **_):
        return [None if t.generation_idx == 0 else float(t.generation_idx) for t in trajectories]

    made = trainer(tmp_path, Rewardless, reward_funcs=judge, guidance="none")
    made.train()
    assert history(made, "reward")[0] == 2.0 and history(made, "rewards/judge/mean")[0] == 2.0
    assert history(made, "stop/reward_error")[0] == 0.25
    assert not [name for entry in made.state.log_history for name in entry if name.startswith("rewards/success")]
    made.close()


def test_refusals(tmp_path):
    with pytest.raises(ConfigurationError, match="`Rewardless` has neither `get_reward` nor `_get_success`"):
        trainer(tmp_path, Rewardless)
    with pytest.raises(ConfigurationError, match="`training_reward` is 'none' for `Counter`"):
        trainer(tmp_path, training_reward="none")
    with pytest.raises(ConfigurationError, match="growing chat"):
        trainer(tmp_path, success_threshold=1.0, context="window")
    with pytest.raises(ConfigurationError, match="does not show tools"):
        trainer(tmp_path, processing_class=byte_bpe())
    with pytest.raises(ConfigurationError, match=r"`environments`.*`Counter` live in processes"):
        trainer(tmp_path, reward_funcs=lambda environments, **_: [0.0], environment_backend="process")


def test_the_stock_reward_of_trl_s_examples(tmp_path):
    """A function that reads the live instances: each holds the end of its own episode."""
    seen = []

    def solved(environments, trajectories, **kwargs):
        seen.append([(type(one), one._value) for one in environments])
        return [float(one._value == one._target) for one in environments]

    made = trainer(tmp_path, reward_funcs=solved, guidance="none")
    made.train()
    assert len(seen) == 2 and {kind for group in seen for kind, _ in group} == {Counter}
    for record in read_records(tmp_path / "_trajectories"):
        assert record.trajectory.rewards["solved"] == record.trajectory.rewards["environment"]
    assert history(made, "rewards/solved/mean") == history(made, "rewards/environment/mean") != [0.0]
    made.close()


def test_tools_and_text_worlds_in_one_run(tmp_path):
    """Routed by the row, each with its own context, tools and kind of reward."""
    household = HouseholdEnvironment.dataset("train", preset="small", size=2)
    rows = [{"environment": "counter", "target": 3}, {"environment": "counter", "target": 3}]
    rows += [{"environment": "house", **row} for row in household]
    made = trainer(
        tmp_path,
        {"counter": Counter, "house": HouseholdEnvironment},
        {k: [*replies, *["<action>look</action>"] * 20] for k, replies in PLAYS.items()},
        # `from_list` takes the columns of the first row for those of all.
        train_dataset=Dataset.from_list([dict.fromkeys(name for one in rows for name in one) | row for row in rows]),
        success_threshold=1.0,
        per_device_train_batch_size=16,
        max_turns=4,
    )
    made.train()
    trajectories = [record.trajectory for record in read_records(tmp_path / "_trajectories")]
    by_name = {name: [t for t in trajectories if t.environment == name] for name in ("counter", "house")}
    assert len(by_name["counter"]) == len(by_name["house"]) == 8
    assert all(t.is_usable for t in trajectories)
    assert all("environment" in t.rewards for t in by_name["counter"])
    assert all("success" in t.rewards for t in by_name["house"])
    made.close()
