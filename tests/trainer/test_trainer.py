"""TASPOTrainer as a TRL user expects it: arguments, LoRA, rewards, evaluation, logs, refusals, field cases."""

from __future__ import annotations

import dataclasses
import json
import math
import warnings
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from safetensors.torch import load_file

from taspo_trl.analyzer.base import AnalyzerReply
from taspo_trl.analyzer.extractive import ExtractiveAnalyzer
from taspo_trl.environments import HouseholdEnvironment, ResetResult, StepResult, TextEnvironment
from taspo_trl.errors import ConfigurationError, RolloutError
from taspo_trl.evaluation import tasks_digest
from taspo_trl.guidance.base import Construction
from taspo_trl.guidance.stage import GuidanceStage
from taspo_trl.records import read_records
from taspo_trl.scoring.paired import PairedRow
from taspo_trl.types import Guidance
from tests import tiny


class Script(TextEnvironment):
    """Ends when told to: the action names how."""

    opened = closed = 0
    max_turns = 4

    def __init__(self):
        type(self).opened += 1

    def reset(self, *, seed, task, **row):
        self.seen = (seed, task, row)
        return ResetResult("You can: look inventory", {"task": f"Task: {task}", "family": "script"})

    def step(self, action):
        if action == "close":
            raise RuntimeError("the door is stuck")
        done = action in ("look", "inventory")
        observation = f"You did: {action}" if done else "Nothing happens."
        return StepResult(observation, 0.5, done, False, {"success": action == "inventory", "valid": done})

    def close(self):
        type(self).closed += 1


def rows(size=4, **columns):
    return Dataset.from_dict({"task": [f"t{k}" for k in range(size)], **columns})


def replies(by_member, turns=1):
    """Each member of a group plays `turns` idle turns, then what the list says."""

    def reply(uid, turn):
        member = int(uid.rsplit("k", 1)[1])
        return f"<action>{'go to' if turn < turns else by_member[member]}</action>"

    return reply


def scripted(tmp_path, by_member=("inventory", "look", "look", "look"), turns=2, **values):
    policy = tiny.ScriptedPolicy(replies(by_member, turns))
    values = {"train_dataset": rows(), "environment_factory": Script, **values}
    return tiny.trainer(tmp_path, policy=policy, **values), policy


def history(made, name):
    return [entry[name] for entry in made.state.log_history if name in entry]


class CountingAnalyzer(ExtractiveAnalyzer):
    def __init__(self):
        self.requests = []

    def complete(self, request):
        self.requests.append(request)
        return super().complete(request)


@pytest.fixture(autouse=True)
def fresh_counts():
    Script.opened = Script.closed = 0


# ---- arguments ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"environment_factory": None}, "environment_factory"),
        ({"environment_factory": {}}, "empty dictionary"),
        ({"environment_factory": {"a": Script}}, "`environment` column"),
        ({"environment_factory": Script()}, "instance of Script.*Pass the class"),
        ({"accelerator_config": {"split_batches": True}}, "split_batches"),
        ({"train_dataset": None, "max_steps": -1}, "`train_dataset` is missing.*`max_steps`"),
        ({"train_dataset": rows(1)}, "one rollout batch draws 2"),
        ({"train_dataset": rows(4, seed=[1, 2, 3, 4])}, "column `seed`"),
        ({"reward_funcs": "a/reward-model"}, "Wrap a reward model"),
        ({"loss_type": "dapo"}, "loss_type"),
        ({"repetition_penalty": 1.1}, "the policy that learns"),
        ({"steps_per_generation": 3, "gradient_accumulation_steps": 2}, "divide one another"),
    ],
)
def test_what_cannot_work_is_refused_with_its_remedy(tmp_path, values, message):
    with pytest.raises(ConfigurationError, match=message):
        scripted(tmp_path, **values)


def test_tokenizer_without_chat_template_is_refused(tmp_path):
    tok = tiny.tokenizer()
    tok.chat_template = None
    with pytest.raises(ConfigurationError, match="chat template"):
        scripted(tmp_path, processing_class=tok)


@pytest.mark.parametrize("sizes", [{"tp_size": 2}, {"cp_size": 2}, {"dp_shard_size": 2, "tp_size": 4}])
def test_processes_that_share_a_row_are_refused(sizes):
    from accelerate import ParallelismConfig

    from taspo_trl.training.checks import check_parallelism

    check_parallelism(None)
    check_parallelism(ParallelismConfig(dp_replicate_size=2, dp_shard_size=2))
    with pytest.raises(ConfigurationError, match="FSDP2 or DeepSpeed ZeRO-3"):
        check_parallelism(ParallelismConfig(**sizes))


def test_plain_grpo_config_is_refused():
    from trl import GRPOConfig

    from taspo_trl import TASPOTrainer

    with pytest.raises(ConfigurationError, match="TASPOConfig"):
        TASPOTrainer(tiny.model(), args=GRPOConfig("out", use_cpu=True), environment_factory=Script)


def test_environments_are_routed_by_the_rows_column(tmp_path):
    class Other(Script):
        def step(self, action):
            return StepResult("", 0.0, True, False, {"success": True})

    data = rows(2, environment=["one", "two"])
    made, _ = scripted(
        tmp_path, train_dataset=data, environment_factory={"one": Script, "two": Other}, shuffle_dataset=False
    )
    made.train()
    records = list(read_records(tmp_path / "_trajectories"))
    assert {(r.trajectory.environment, len(r.trajectory.turns)) for r in records} == {("one", 3), ("two", 1)}
    unknown = rows(2, environment=["one", "three"])
    with pytest.raises(ConfigurationError, match="'three'"):
        scripted(tmp_path, train_dataset=unknown, environment_factory={"one": Script, "two": Other})


def test_a_single_environment_gets_the_column_of_that_name(tmp_path):
    seen = []

    class Recording(Script):
        def reset(self, **arguments):
            seen.append(arguments["environment"])
            return super().reset(**arguments)

    data = rows(2, environment=["one", "two"])
    made, _ = scripted(tmp_path, train_dataset=data, environment_factory=Recording, shuffle_dataset=False)
    made.train()
    assert sorted(seen) == ["one"] * 4 + ["two"] * 4


# ---- training ----------------------------------------------------------------------------------------------------


def test_training_changes_every_parameter(tmp_path):
    made, _ = scripted(tmp_path)
    before = tiny.parameters(made)
    made.train()
    unchanged = [name for name, value in tiny.parameters(made).items() if torch.equal(value, before[name])]
    assert not unchanged, f"these parameters did not move: {unchanged}"


def test_lora_trains_adapters_only_and_saves_them(tmp_path):
    peft_config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    made, _ = scripted(tmp_path, peft_config=peft_config, beta=0.1)
    before = tiny.parameters(made)
    made.train()
    moved = {name for name, value in tiny.parameters(made).items() if not torch.equal(value, before[name])}
    assert moved and all("lora_" in name for name in moved)
    assert history(made, "kl")[0] > 0  # the reference is the adapter off
    made.save_model(str(tmp_path / "saved"))
    assert (tmp_path / "saved" / "adapter_model.safetensors").exists()


def test_reference_is_a_frozen_copy_of_the_model_that_was_passed(tmp_path):
    made, _ = scripted(tmp_path, beta=0.1, max_steps=2)
    before = {name: value.clone() for name, value in made.ref_model.named_parameters()}
    assert all(torch.equal(value, made.model.get_parameter(name)) for name, value in before.items())
    made.train()
    assert all(torch.equal(value, made.ref_model.get_parameter(name)) for name, value in before.items())
    assert history(made, "kl")[0] == pytest.approx(0, abs=1e-6) and history(made, "kl")[1] > 1e-6


def test_synchronised_reference_follows(tmp_path):
    made, _ = scripted(
        tmp_path, beta=0.1, sync_ref_model=True, ref_model_sync_steps=1, ref_model_mixup_alpha=1.0, max_steps=2
    )
    made.train()
    for name, value in made.ref_model.named_parameters():
        assert torch.allclose(value, made.model.get_parameter(name))


def test_reward_functions_add_to_the_environments_reward(tmp_path):
    calls = []

    def short(completions, trajectories, task, trainer_state, log_extra, log_metric, **kwargs):
        calls.append((len(completions), task, trainer_state.global_step))
        log_extra("length", [len(t.turns) for t in trajectories])
        log_metric("groups_seen", 1.0)
        return [0.25 * k for k in range(len(completions))]

    made, _ = scripted(tmp_path, reward_funcs=[short], reward_weights=[2.0], max_steps=2, log_completions=True)
    made.train()
    assert [size for size, _, _ in calls] == [4] * 4 and {step for *_, step in calls} == {0, 1}
    record = next(read_records(tmp_path / "_trajectories"))
    assert record.trajectory.reward == 1.0 + 2.0 * 0.0
    assert history(made, "rewards/short/mean") == [0.375, 0.375]
    assert history(made, "groups_seen") == [1.0, 1.0]
    import pandas as pd

    table = pd.read_parquet(tmp_path / "completions" / "completions_00001.parquet")
    assert list(table["length"]) == [3] * 8 and {"short", "success", "advantage"} <= set(table.columns)


def test_a_column_logged_once_does_not_stand_beside_later_batches(tmp_path):
    def judge(trajectories, trainer_state, log_extra, **kwargs):
        if trainer_state.global_step == 0:
            log_extra("note", ["first"] * len(trajectories))
        return [0.0] * len(trajectories)

    made, _ = scripted(tmp_path, reward_funcs=[judge], max_steps=2, log_completions=True)
    made.train()
    import pandas as pd

    notes = [list(pd.read_parquet(tmp_path / "completions" / f"completions_0000{k}.parquet")["note"]) for k in (1, 2)]
    assert notes == [["first"] * 8, [None] * 8]


def test_environment_score_can_be_the_reward(tmp_path):
    made, _ = scripted(tmp_path, training_reward="environment")
    made.train()
    assert history(made, "reward") == [1.5]  # three turns of 0.5
    assert history(made, "success") == [0.25]


def test_invalid_action_penalty_is_one_number_per_trajectory(tmp_path):
    made, _ = scripted(tmp_path, invalid_action_penalty=0.3)
    made.train()
    record = next(read_records(tmp_path / "_trajectories"))
    assert record.trajectory.reward == pytest.approx(1.0 - 0.3 * 2 / 3)


def test_every_instance_is_closed_once_and_never_more_than_a_batch_are_open(tmp_path):
    made, _ = scripted(tmp_path, max_steps=3)
    made.train()
    assert Script.opened == 8 and Script.closed == 8
    made.evaluate(rows(3))
    made.close()
    assert Script.opened == Script.closed == 11


def test_instances_are_closed_when_training_fails(tmp_path):
    def broken(**kwargs):
        raise KeyError("a bug in a reward function")

    made, _ = scripted(tmp_path, reward_funcs=[broken])
    with pytest.raises(KeyError):
        made.train()
    assert Script.opened == Script.closed == 8


# ---- field cases -------------------------------------------------------------------------------------------------


def test_degenerate_groups_cost_no_analyzer_call(tmp_path):
    """CRD-1: all fail, all succeed, one success, two successes."""
    outcomes = {"g0": "FFFF", "g1": "SSSS", "g2": "SFFF", "g3": "SSFF"}

    def reply(uid, turn):
        _, group, member = uid.split("-")
        last = "inventory" if outcomes[group][int(member[1])] == "S" else "look"
        return f"<action>{'go to' if turn < 2 else last}</action>"

    analyzer = CountingAnalyzer()
    made = tiny.trainer(
        tmp_path,
        policy=tiny.ScriptedPolicy(reply),
        train_dataset=rows(4),
        environment_factory=Script,
        per_device_train_batch_size=16,
        analyzer=analyzer,
    )
    made.train()
    asked = [request.payload["target"]["traj_uid"] for request in analyzer.requests if request.stage == "alignment"]
    assert sum(request.stage == "extraction" for request in analyzer.requests) == 2
    assert {uid.split("-")[1] for uid in asked} == {"g2", "g3"}
    assert not any(uid.endswith("g2-k0") for uid in asked), "a sole success has no other success to learn from"
    records = {r.trajectory.uid: r for r in read_records(tmp_path / "_trajectories")}
    for uid, record in records.items():
        if uid.split("-")[1] in ("g0", "g1"):
            assert record.credit.weights == (1.0, 1.0, 1.0) and record.credit.fallback == "zero_advantage"
    assert records["r0-g2-k0"].credit.fallback == "no_other_success"
    assert history(made, "frac_reward_zero_std") == [0.5]
    assert history(made, "guidance/none/zero_advantage") == [8.0]


def test_empty_reply_is_an_invalid_turn_without_loss(tmp_path):
    """EOS-1: no tokens at all, and only the end token."""
    tok = tiny.tokenizer()

    def reply(uid, turn):
        if uid.endswith("k3") and turn == 0:
            return []
        if uid.endswith("k2") and turn == 0:
            return [tok.eos_token_id]
        return f"<action>{'inventory' if uid.endswith('k0') else 'look'}</action>"

    made = tiny.trainer(
        tmp_path, policy=tiny.ScriptedPolicy(reply), train_dataset=rows(), environment_factory=Script, beta=0.1
    )
    made.train()
    empty = next(r for r in read_records(tmp_path / "_trajectories") if r.trajectory.uid == "r0-g0-k3")
    assert len(empty.trajectory.turns) == 2 and not empty.trajectory.turns[0].valid
    assert empty.credit.weights == (1.0, 1.0)
    assert history(made, "actions/empty_reply_share") == [2 / 12]
    assert all(torch.isfinite(value).all() for value in tiny.parameters(made).values())
    # Its coefficient mass is missing, nothing else: every other turn keeps 1 / (B * T_i).
    total = sum(sum(row.coefficients) for batch in made._buffer[0] for row in batch)
    assert total == pytest.approx(1 - 2 * (1 / 8) * (1 / 2))


def test_failed_episode_leaves_the_statistics_and_trains_nothing(tmp_path):
    """SVC-1 for any infrastructure: out of mean, std and B, never a source, zero loss."""
    made, _ = scripted(tmp_path, by_member=("inventory", "look", "look", "close"))
    made.train()
    records = {r.trajectory.uid: r for r in read_records(tmp_path / "_trajectories")}
    failed = records["r0-g0-k3"]
    assert failed.trajectory.stop_reason == "env_error" and "the door is stuck" in failed.trajectory.error
    # Statistics over three members: mean 1/3, sample std sqrt(1/3).
    assert records["r0-g0-k0"].credit.advantage == pytest.approx((2 / 3) / (3**-0.5 + 1e-4))
    assert failed.credit.advantage == 0.0 and failed.credit.fallback == "infrastructure"
    assert history(made, "episodes/failed_share") == [0.25]
    total = sum(sum(row.coefficients) for batch in made._buffer[0] for row in batch)
    assert total == pytest.approx(1.0)  # B counts the six usable trajectories


def test_batch_in_which_everything_fails_stops_with_the_cause(tmp_path):
    made, _ = scripted(tmp_path, by_member=("close",) * 4)
    with pytest.raises(RolloutError, match="8 x env_error: RuntimeError: the door is stuck"):
        made.train()


def test_none_columns_never_reach_reset(tmp_path):
    """DAT-1: Arrow fills keys that a row did not have with None."""
    seen = []

    class Recording(Script):
        def reset(self, **arguments):
            seen.append(arguments)
            return super().reset(**arguments)

    data = Dataset.from_list(
        [
            {"task": "t0", "extra": [{"role": "system", "name": "x"}, {"role": "user", "meta": {"a": 1}}]},
            {"task": "t1", "level": 3, "extra": []},
        ]
    )
    made, _ = scripted(tmp_path, train_dataset=data, environment_factory=Recording, shuffle_dataset=False)
    made.train()
    assert {"level" in arguments for arguments in seen if arguments["task"] == "t0"} == {False}
    assert seen[0]["extra"] == [{"role": "system", "name": "x"}, {"role": "user", "meta": {"a": 1}}]
    assert "None" not in json.dumps(seen)


def test_a_none_column_reaches_a_reset_that_cannot_do_without_it(tmp_path):
    seen = []

    class Needy(Script):
        def reset(self, *, seed, level, extra=5, **row):
            seen.append((level, extra))
            return super().reset(seed=seed, **row)

    data = Dataset.from_list([{"task": "t0", "level": None, "extra": None}, {"task": "t1", "level": 3, "extra": 4}])
    made, _ = scripted(tmp_path, train_dataset=data, environment_factory=Needy, shuffle_dataset=False)
    made.train()
    assert sorted(seen, key=str) == [(3, 4)] * 4 + [(None, 5)] * 4
    assert history(made, "episodes/failed_share") == [0.0]


def test_evaluation_plays_each_task_once_and_touches_nothing(tmp_path):
    """EVL-1: odd sizes, before and during training, no analyzer, training state as before."""
    analyzer, alone = CountingAnalyzer(), CountingAnalyzer()
    made, policy = scripted(
        tmp_path,
        eval_dataset=rows(3),
        per_device_eval_batch_size=2,
        analyzer=analyzer,
        steps_per_generation=2,
        per_device_train_batch_size=4,
        max_steps=4,
        eval_strategy="steps",
        eval_steps=1,
    )
    metrics = made.evaluate()
    assert len({request.episode_uid for request in policy.requests}) == 3
    assert metrics["eval_success"] == 1.0 and metrics["eval_num_plays"] == 3
    assert policy.samplings[-1].temperature == 0.0
    assert not analyzer.requests
    made.train()
    assert history(made, "eval_success") == [1.0] * 4
    trained = [entry for entry in made.state.log_history if "loss" in entry]
    assert len(trained) == 4 and all("success" in entry for entry in trained[::2])

    quiet, _ = scripted(
        tmp_path / "quiet", steps_per_generation=2, per_device_train_batch_size=4, max_steps=4, analyzer=alone
    )
    quiet.train()
    asked = [sorted(json.dumps(request.payload) for request in one.requests) for one in (analyzer, alone)]
    assert asked[0] == asked[1] != [], "the analyzer was asked for something else than the training's guidance"
    for name, value in tiny.parameters(quiet).items():
        assert torch.equal(value, made.model.get_parameter(name)), "evaluating changed what was trained"


def test_settings_of_an_evaluation_are_those_of_all_processes(tmp_path, monkeypatch):
    made, _ = scripted(tmp_path)
    maker = made.experience_maker
    maker.collector = dataclasses.replace(maker.collector, num_processes=2, gather=lambda objects: objects)
    result = made._play_held_out(list(rows(3)))
    assert len(result.plays) == 2, "the first process plays every other task"
    assert result.settings["num_tasks"] == 3 and result.settings["tasks_digest"] == tasks_digest(list(rows(3)))
    first, third = made._play_held_out([rows(1)[0]] * 3).plays
    assert third.task_id == f"{first.task_id}-3", "counted over the rows of all processes"
    with pytest.raises(ConfigurationError, match="stands 2 times"):  # dealt to different processes
        made._play_held_out([{"task_id": "a", **row} for row in rows(2)])


def test_logged_means_of_nothing_are_json(tmp_path):
    made, _ = scripted(tmp_path, by_member=("look",) * 4, eval_dataset=rows(3))
    made.train()
    metrics = made.evaluate()
    assert math.isnan(metrics["eval_turns_success"]), "no play was solved"
    json.dumps(made.state.log_history, allow_nan=False)
    assert history(made, "eval_turns_success") == [None]


@pytest.mark.parametrize(("judged", "best"), [("seen", 2), ("unseen", 3)])
def test_evaluation_of_several_sets_and_best_model(tmp_path, judged, best):
    """The sets disagree about the best step, and neither prefers the first or the last of four."""
    solved = {"seen": (0, 2, 1, 1), "unseen": (1, 1, 2, 0)}  # of two tasks, after each step

    def reply(uid, turn):
        if policy.samplings[-1].temperature > 0:
            return replies(("inventory", "look", "look", "look"), 2)(uid, turn)
        _, split, task, *_ = uid.split("-")
        return f"<action>{'inventory' if int(task) < solved[split][made.state.global_step - 1] else 'look'}</action>"

    policy = tiny.ScriptedPolicy(reply)
    made, _ = scripted(
        tmp_path,
        eval_dataset={name: rows(2, task_id=[f"{name}-0", f"{name}-1"]) for name in solved},
        max_steps=4,
        eval_strategy="steps",
        eval_steps=1,
        save_strategy="steps",
        save_steps=1,
        load_best_model_at_end=True,
        metric_for_best_model=f"eval_{judged}_success",
    )
    tiny.use_policy(made, policy)
    made.train()
    for name, numbers in solved.items():
        assert history(made, f"eval_{name}_success") == [number / 2 for number in numbers]
    assert made.state.best_metric == 1.0
    assert Path(made.state.best_model_checkpoint).name == f"checkpoint-{best}"
    kept = {step: load_file(tmp_path / f"checkpoint-{step}" / "model.safetensors") for step in (best, 4)}
    assert all(torch.equal(value, made.model.get_parameter(name)) for name, value in kept[best].items())
    assert any(not torch.equal(value, kept[4][name]) for name, value in kept[best].items())


def test_same_seed_same_tasks_same_run(tmp_path):
    """ENV-1: siblings share task and seed, groups differ, two runs agree."""

    def run(name):
        made, _ = scripted(tmp_path / name, max_steps=2)
        made.train()
        return [
            (r.trajectory.uid, r.trajectory.task["task"]) for r in read_records(tmp_path / name / "_trajectories")
        ], tiny.parameters(made)

    (tasks, first), (again, second) = run("a"), run("b")
    assert tasks == again
    groups = [{task for uid, task in tasks if uid.startswith(f"r{draw}-g{g}-")} for draw in (0, 1) for g in (0, 1)]
    assert all(len(group) == 1 for group in groups) and len(set.union(*groups)) > 1
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_empty_guidance_shifts_nothing_under_lora_dropout_in_train_mode(tmp_path):
    """RES-1: both passes without dropout; every flag, adapter and checkpointing state restored."""
    peft_config = LoraConfig(r=4, lora_dropout=0.5, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    made, _ = scripted(tmp_path, peft_config=peft_config, gradient_checkpointing=True)
    made.model.train()
    made.model.base_model.model.model.layers[0].eval()
    flags = [module.training for module in made.model.modules()]
    checkpointing = [getattr(m, "gradient_checkpointing", None) for m in made.model.modules()]
    pairs = [PairedRow(tuple(range(3, 40)), 10, ((),), tuple(range(12, 37))) for _ in range(3)]
    scored = made.experience_maker.passes.score(pairs)
    again = made.experience_maker.passes.score(pairs)
    assert all(one.plain == one.guided[0] for one in scored)
    assert scored == again
    guided = made.experience_maker.passes.score([dataclasses.replace(pairs[0], blocks=((5, 6, 7),))])
    assert guided[0].plain == pytest.approx(scored[0].plain) and guided[0].guided[0] != guided[0].plain
    assert [module.training for module in made.model.modules()] == flags
    assert [getattr(m, "gradient_checkpointing", None) for m in made.model.modules()] == checkpointing
    assert made.model.active_adapter == "default"


def test_names_that_trl_uses_of_old_are_no_users_business(tmp_path):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = tiny.trainer(tmp_path, gradient_checkpointing=True, max_completion_length=1, max_turns=1)
        made.train()
    assert made.model.supports_gradient_checkpointing
    assert made.args.gradient_checkpointing
    assert not [str(one.message) for one in caught if "checkpointing" in str(one.message)]


def test_analyzer_that_fails_leaves_plain_grpo(tmp_path):
    class Down:
        name = "down"

        def complete(self, request):
            return AnalyzerReply(error="rate_limit")

        def close(self):
            pass

    made, _ = scripted(tmp_path, by_member=("inventory", "inventory", "look", "look"), analyzer=Down())
    made.train()
    plain, _ = scripted(tmp_path / "plain", by_member=("inventory", "inventory", "look", "look"), guidance="none")
    plain.train()
    assert history(made, "guidance/none/rate_limit") == [8.0] and history(made, "analyzer/errors/rate_limit") == [2.0]
    for name, value in tiny.parameters(plain).items():
        assert torch.equal(value, made.model.get_parameter(name))


class Skilled(Script):
    """With advice of its own."""

    def generic_skill(self, family):
        return "Look around before you take inventory."


@pytest.fixture(scope="module")
def plain_grpo(tmp_path_factory):
    """Parameters after the step without guidance."""
    made, _ = scripted(
        tmp_path_factory.mktemp("plain"), ("inventory", "inventory", "look", "look"), environment_factory=Skilled,
        guidance="none",
    )  # fmt: skip
    made.train()
    return tiny.parameters(made)


@pytest.mark.parametrize("guidance", ["aligned", "random_success", "nearest_success", "generic_skill"])
@pytest.mark.parametrize("allocation", ["action", "token"])
def test_constructions_and_allocations_move_credit_and_weights(tmp_path, plain_grpo, guidance, allocation):
    """Two of four succeed: each trajectory is guided, its weights have the allocation's mean, the policy learns."""
    made, _ = scripted(
        tmp_path, ("inventory", "inventory", "look", "look"), environment_factory=Skilled, guidance=guidance,
        allocation=allocation, weight_range=0.3,
    )  # fmt: skip
    made.train()
    assert history(made, "guidance/coverage") == [1.0]
    for record in read_records(tmp_path / "_trajectories"):
        assert record.guidance.construction == guidance and record.guidance.text
        credit, num_turns = record.credit, len(record.trajectory.turns)
        assert not credit.fallback
        weights = credit.weights
        assert len(set(weights)) > 1 and all(0.7 <= weight <= 1.3 for weight in weights)
        if allocation == "action":
            assert credit.token_weights is None
            assert math.fsum(weights) == pytest.approx(num_turns, abs=1e-9)
        else:
            flat = [weight for turn in credit.token_weights for weight in turn if weight is not None]
            assert len(flat) > num_turns and math.fsum(flat) == pytest.approx(len(flat), abs=1e-9)
    assert any(not torch.equal(plain_grpo[name], value) for name, value in tiny.parameters(made).items())


def test_records_trace_every_weight_to_a_quote(tmp_path):
    made, _ = scripted(tmp_path, by_member=("inventory", "inventory", "look", "look"), save_trajectories="full")
    made.train()
    records = list(read_records(tmp_path / "_trajectories"))
    weighed = [r for r in records if r.credit is not None and not r.credit.fallback]
    assert weighed
    by_uid = {r.trajectory.uid: r.trajectory for r in records}
    for record in weighed:
        assert record.trajectory.turns[0].prompt_ids
        items = {item.evidence_id: item for item in record.guidance.evidence}
        for statement in record.guidance.statements:
            for evidence_id in statement.evidence_ids:
                for source in items[evidence_id].sources:
                    turn = by_uid[source.traj_uid].turns[source.step]
                    assert source.traj_uid != record.trajectory.uid
                    assert source.action_quote == turn.action and by_uid[source.traj_uid].success
        assert sum(record.credit.weights) == pytest.approx(len(record.trajectory.turns), abs=1e-6)


def test_rollouts_are_written_even_when_scoring_fails(tmp_path, monkeypatch):
    made, _ = scripted(tmp_path, by_member=("inventory", "inventory", "look", "look"))
    monkeypatch.setattr(
        type(made.experience_maker.passes),
        "score",
        lambda self, pairs, teacher=None: (_ for _ in ()).throw(MemoryError("no room")),
    )
    with pytest.raises(MemoryError):
        made.train()
    records = list(read_records(tmp_path / "_trajectories"))
    assert len(records) == 8 and all(r.credit is None for r in records)
    assert any(r.guidance for r in records), "the analyzer's answers were paid for"


def test_model_card_names_method_and_paper(tmp_path):
    made, _ = scripted(tmp_path)
    made.train()
    made.create_model_card(model_name="tiny")
    card = Path(tmp_path, "README.md").read_text()
    assert "TASPO" in card and "2608.31077" in card and str(tmp_path) not in card


def test_truncated_replies_can_be_left_out(tmp_path):
    made, _ = scripted(tmp_path, mask_truncated_completions=True, max_completion_length=3)
    made.train()
    assert history(made, "replies/clipped_ratio") == history(made, "completions/clipped_ratio") == [1.0]
    assert all(c == 0 for batch in made._buffer[0] for row in batch for c in row.coefficients)


def test_household_runs_with_the_real_policy_in_both_contexts(tmp_path):
    for context in ("window", "conversation"):
        made = tiny.trainer(
            tmp_path / context, context=context, max_turns=3, eval_dataset=tiny.household_rows("valid_seen", 3)
        )
        made.train()
        assert made.evaluate()["eval_num_plays"] == 3
        assert HouseholdEnvironment is made.environment_pool._factories[None]


def test_a_batch_that_breaks_off_leaves_its_episodes(tmp_path):
    def broken(trajectories, **kwargs):
        if trajectories[0].uid.startswith("r1"):
            raise ZeroDivisionError("a bug of the user's")
        return [0.0] * len(trajectories)

    made, _ = scripted(tmp_path, reward_funcs=[broken], max_steps=2)
    with pytest.raises(ZeroDivisionError):
        made.train()
    folder = tmp_path / "_trajectories"
    assert {r.rollout for r in read_records(folder)} == {0}, "whole batches only"
    kept = list(read_records(folder / "rollout_000001-process0.jsonl.partial"))
    assert kept and {r.rollout for r in kept} == {1}
    assert all(r.trajectory.uid.startswith(f"{r.group_id}-k") for r in kept)


def test_reasons_are_averaged_over_all_batches_of_a_log_entry(tmp_path):
    """One failed extraction in three batches is a third of a failure each, not one."""

    class DownOnce:
        name, calls = "down", 0

        def complete(self, request):
            self.calls += 1
            return AnalyzerReply(error="rate_limit") if self.calls == 2 else AnalyzerReply(text='{"evidence": []}')

        def close(self):
            pass

    made, _ = scripted(
        tmp_path, by_member=("inventory", "look", "look", "look"), analyzer=DownOnce(), max_steps=3, logging_steps=3,
        per_device_train_batch_size=4,
    )  # fmt: skip
    made.train()
    assert history(made, "analyzer/errors/rate_limit") == [pytest.approx(1 / 3)]


def test_a_construction_that_gives_no_reason_is_recorded_as_unexplained(tmp_path):
    made, _ = scripted(tmp_path, by_member=("inventory", "look", "look", "look"), allocation="token")

    class Silent(Construction):
        name, needs_success = "silent", True

        def build(self, context, group, target):
            return Guidance(target.uid, self.name)

    maker = made.experience_maker
    maker.guidance = GuidanceStage(Silent())
    maker.collector = dataclasses.replace(maker.collector, guidance=maker.guidance)
    made.train()
    assert history(made, "credit/fallback/unexplained")[0] > 0
