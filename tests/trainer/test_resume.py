"""A run resumed from any checkpoint continues as the unbroken run: tasks, seeds, rows and parameters."""

from __future__ import annotations

import shutil

import pytest
import torch
from datasets import Dataset

from taspo_trl.errors import ConfigurationError
from taspo_trl.records import read_records
from tests import tiny
from tests.trainer.test_gradients import Ragged


LAYOUTS = {
    # Two optimizer steps use one rollout batch: checkpoint 1 and 3 lie in the middle of one.
    "two steps per rollout": {"per_device_train_batch_size": 4, "steps_per_generation": 2},
    "two passes over a rollout": {"per_device_train_batch_size": 8, "num_iterations": 2},
    "accumulation": {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "steps_per_generation": 4},
}


def odd_sums(trajectories, **_):
    """A reward that depends on every sampled token."""
    return [sum(sum(turn.reply_ids) for turn in trajectory.turns) % 7 for trajectory in trajectories]


def new_trainer(folder, **values):
    """Real sampling, dropout on: everything that draws random numbers takes part."""
    defaults = {
        "model": tiny.model(attention_dropout=0.1),
        "train_dataset": Dataset.from_dict({"task": [f"t{k}" for k in range(5)]}),
        "environment_factory": Ragged,
        "reward_funcs": [odd_sums],
        "num_train_epochs": 3,
        "max_steps": -1,
        "save_strategy": "steps",
        "save_steps": 1,
        "beta": 0.01,
        "max_turns": 3,
    }
    return tiny.trainer(folder, **{**defaults, **values})


def tasks(folder):
    """What was drawn in a run; nothing when it only finished a batch that was drawn before."""
    if not (folder / "_trajectories").exists():
        return []
    return [(r.trajectory.uid, r.trajectory.task["task"]) for r in read_records(folder / "_trajectories")]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_resumed_run_equals_the_unbroken_one(tmp_path, layout):
    whole = new_trainer(tmp_path / "whole", **LAYOUTS[layout])
    whole.train()
    checkpoints = sorted((tmp_path / "whole").glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    assert len(checkpoints) >= 6
    for checkpoint in (checkpoints[0], checkpoints[2], checkpoints[-2]):
        folder = tmp_path / checkpoint.name
        shutil.copytree(checkpoint, folder / checkpoint.name)
        resumed = new_trainer(folder, **LAYOUTS[layout])
        resumed.train(resume_from_checkpoint=str(folder / checkpoint.name))
        assert resumed._step == whole._step
        drawn = tasks(tmp_path / "whole")
        assert tasks(folder) == drawn[len(drawn) - len(tasks(folder)) :]
        for name, value in tiny.parameters(whole).items():
            assert torch.equal(value, resumed.model.get_parameter(name)), f"{name} differs after {checkpoint.name}"
        whole_log = [(e["step"], e["loss"]) for e in whole.state.log_history if "loss" in e]
        resumed_log = [(e["step"], e["loss"]) for e in resumed.state.log_history if "loss" in e]
        assert resumed_log[-1] == whole_log[-1]


def test_every_epoch_draws_another_order_and_the_first_is_trls(tmp_path):
    from trl.trainer.utils import RepeatSampler

    made = new_trainer(tmp_path, per_device_train_batch_size=4, save_strategy="no")
    made.train()
    epochs = [next(task for uid, task in tasks(tmp_path) if uid.startswith(f"r{draw}-")) for draw in range(15)]
    assert sorted(epochs[:5]) == sorted(epochs[5:10]) and epochs[:5] != epochs[5:10]
    trl = RepeatSampler(made.train_dataset, 4, 1, 1, True, made.args.seed)
    assert [f"t{k}" for k in list(trl)[::4]] == epochs[:5]


def test_partly_used_batch_does_not_fit_other_settings(tmp_path):
    made = new_trainer(tmp_path, **LAYOUTS["two steps per rollout"])
    made.train()
    other = new_trainer(tmp_path / "other", per_device_train_batch_size=2, steps_per_generation=4)
    with pytest.raises(ConfigurationError, match="partly used rollout batch"):
        other.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))


def test_other_settings_go_on_with_the_next_rollout_batch(tmp_path):
    """From between two batches: after one batch of two micro-steps the second is drawn, in four of its own."""
    made = new_trainer(tmp_path / "one", **LAYOUTS["two steps per rollout"], max_steps=2)
    made.train()
    other = new_trainer(tmp_path / "other", per_device_train_batch_size=2, steps_per_generation=4, max_steps=6)
    other._load_rng_state(str(tmp_path / "one" / "checkpoint-2"))
    assert (other._step, other._buffer) == (4, None)


def test_checkpoint_loads_without_running_code(tmp_path):
    made = new_trainer(tmp_path, **LAYOUTS["two steps per rollout"])
    made.train()
    assert torch.load(tmp_path / "checkpoint-1" / "taspo_state_0.pt", weights_only=True)["step"] == 1
    assert torch.load(tmp_path / "checkpoint-1" / "_taspo_rows_0.pt", weights_only=True)["buffer"]
    assert not (tmp_path / "checkpoint-2" / "_taspo_rows_0.pt").exists()


def test_checkpoint_without_its_rows_plays_that_batch_again(tmp_path, caplog):
    # What comes back from the Hub: rows hold what the policy wrote in its episodes, and stay here.
    layout = {**LAYOUTS["two steps per rollout"], "max_steps": 4}
    whole = new_trainer(tmp_path / "whole", **layout)
    whole.train()
    shutil.copytree(tmp_path / "whole" / "checkpoint-1", tmp_path / "back" / "checkpoint-1")
    (tmp_path / "back" / "checkpoint-1" / "_taspo_rows_0.pt").unlink()
    resumed = new_trainer(tmp_path / "back", **layout)
    resumed.train(resume_from_checkpoint=str(tmp_path / "back" / "checkpoint-1"))
    assert (resumed.state.global_step, resumed._step) == (4, whole._step)
    assert tasks(tmp_path / "back") == tasks(tmp_path / "whole"), "the same tasks with the same seeds"
    assert "played again" in caplog.text


def test_second_call_after_an_interrupt_begins_with_a_batch_of_its_own(tmp_path):
    """NBK-1: what is left of an optimizer step's rows belongs to a policy that is no longer there."""
    from transformers import TrainerCallback

    class Interrupt(TrainerCallback):
        def on_substep_end(self, args, state, control, **kwargs):
            raise KeyboardInterrupt

    made = new_trainer(tmp_path, per_device_train_batch_size=2, gradient_accumulation_steps=4, save_strategy="no")
    made.add_callback(Interrupt)
    with pytest.raises(KeyboardInterrupt):
        made.train()
    assert made._step == 1
    made.remove_callback(Interrupt)
    made.args.num_train_epochs = 1
    made.train()
    drawn = {uid.split("-")[0] for uid, _ in tasks(tmp_path)}
    assert made._step == 4 * len(drawn), "every batch is used from its first micro-step to its last"
    assert drawn == {f"r{k}" for k in range(1 + made.state.global_step)}
