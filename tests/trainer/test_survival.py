"""What a run survives: torn checkpoints, its own end, numbers that are none, full disks, a second run, interrupts."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import signal

import pytest
import torch
from datasets import Dataset
from transformers import TrainerCallback

from taspo_trl import files
from taspo_trl.checkpoints import checkpoints_of, fault_of, last_checkpoint
from taspo_trl.errors import CheckpointError, ConfigurationError, NonFiniteError
from taspo_trl.records import read_records
from taspo_trl.training.folder import how_to_go_on
from taspo_trl.training.lock import only_run_in
from tests import tiny
from tests.trainer.test_resume import new_trainer
from tests.trainer.test_trainer import history, rows, scripted


SAVING = {"save_strategy": "steps", "save_steps": 1}


class Each(TrainerCallback):
    """Calls a function at the end of each optimizer step."""

    def __init__(self, call):
        self.call = call

    def on_step_end(self, args, state, control, **kwargs):
        self.call(state.global_step)


def rollouts(folder):
    return sorted({record.rollout for record in read_records(folder / "_trajectories")})


# ---- checkpoints ----------------------------------------------------------------------------------------------------


def test_resuming_passes_over_a_torn_checkpoint_and_sets_it_aside(tmp_path, caplog):
    made = new_trainer(tmp_path, max_steps=4)
    made.train()
    weights = tmp_path / "checkpoint-4" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    for word in (True, "last"):
        folder = shutil.copytree(tmp_path, tmp_path.with_name(f"{tmp_path.name}-{word}"))
        resumed = new_trainer(folder, max_steps=4)
        resumed.train(resume_from_checkpoint=word)
        assert "checkpoint-4 is torn: model.safetensors is cut off" in caplog.text
        assert all(torch.equal(p, resumed.model.get_parameter(n)) for n, p in tiny.parameters(made).items())
        assert fault_of(folder / "checkpoint-4") == ""
        assert fault_of(folder / "_earlier" / "1" / "checkpoint-4") == "model.safetensors is cut off"
        assert rollouts(folder) == rollouts(tmp_path)


def test_checkpoints_are_whole_with_a_limit_and_the_best_of_them_comes_back(tmp_path):
    values = {"eval_strategy": "steps", "eval_steps": 1, "save_total_limit": 1, "metric_for_best_model": "eval_turns"}
    made, _ = scripted(
        tmp_path,
        max_steps=3,
        eval_dataset=rows(2),
        load_best_model_at_end=True,
        greater_is_better=True,
        **SAVING,
        **values,
    )
    made.train()
    kept = checkpoints_of(tmp_path)
    assert str(tmp_path / "checkpoint-1") == made.state.best_model_checkpoint, "every evaluation is as good: the first"
    assert kept == [tmp_path / "checkpoint-1"] and fault_of(kept[0]) == "", "the Trainer removes the last at the end"
    state = json.loads((kept[0] / "trainer_state.json").read_text())
    assert state["best_model_checkpoint"] == made.state.best_model_checkpoint
    assert not (tmp_path / "_saving").exists()


def test_finished_run_takes_no_step_when_it_is_resumed(tmp_path):
    """F21: its last step does not lie at the end of an epoch."""
    made = new_trainer(tmp_path, max_steps=3)
    made.train()
    made.save_state()
    before = {path: path.read_bytes() for path in (tmp_path / "_trajectories").iterdir()}
    resumed = new_trainer(tmp_path, max_steps=3)
    ended = []
    resumed.add_callback(Each(lambda step: ended.append(step)))
    result = resumed.train(resume_from_checkpoint="last")
    assert (result.global_step, resumed.state.global_step, ended) == (3, 3, [])
    assert all(torch.equal(p, resumed.model.get_parameter(n)) for n, p in tiny.parameters(made).items())
    assert {path: path.read_bytes() for path in (tmp_path / "_trajectories").iterdir()} == before
    assert not (tmp_path / "_earlier").exists()
    assert "train_runtime" in resumed.state.log_history[-1], "what the end of a run does is done"
    further = new_trainer(tmp_path, max_steps=4)
    assert further.train(resume_from_checkpoint="last").global_step == 4, "and with more steps it goes on"


def test_model_only_checkpoint_cannot_be_resumed_from(tmp_path):
    made = new_trainer(tmp_path, max_steps=2, save_only_model=True)
    made.train()
    records = {path.name: path.read_bytes() for path in (tmp_path / "_trajectories").iterdir()}
    again = new_trainer(tmp_path, max_steps=3)
    for word in (True, str(tmp_path / "checkpoint-1")):
        with pytest.raises(ConfigurationError, match="save_only_model"):
            again.train(resume_from_checkpoint=word)
    assert {path.name: path.read_bytes() for path in (tmp_path / "_trajectories").iterdir()} == records


def test_resuming_in_the_middle_leaves_one_run_in_the_folder(tmp_path):
    """F14: the abandoned steps' records, evaluations and checkpoints are no longer among the run's."""
    values = {"eval_strategy": "steps", "eval_steps": 1, "eval_dataset": rows(2), **SAVING}
    made, _ = scripted(tmp_path, max_steps=4, **values)
    made.train()
    resumed, _ = scripted(tmp_path, max_steps=3, **values)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert rollouts(tmp_path) == [0, 1, 2]
    assert sorted(one.name for one in (tmp_path / "_evaluations").iterdir()) == [
        f"eval_00000{step}.json" for step in (1, 2, 3)
    ]
    assert [one.name for one in checkpoints_of(tmp_path)] == ["checkpoint-3", "checkpoint-2", "checkpoint-1"]
    aside = tmp_path / "_earlier" / "1"
    assert rollouts(aside) == [2, 3] and last_checkpoint(aside).name == "checkpoint-4"
    assert sorted(one.name for one in (aside / "_evaluations").iterdir()) == ["eval_000003.json", "eval_000004.json"]


def test_log_entry_that_a_kill_cuts_in_two_is_that_of_the_unbroken_run(tmp_path):
    values = {"max_steps": 4, "logging_steps": 3}
    made = new_trainer(tmp_path / "whole", **values)
    made.train()
    shutil.copytree(tmp_path / "whole" / "checkpoint-2", tmp_path / "broken" / "checkpoint-2")
    resumed = new_trainer(tmp_path / "broken", **values)
    resumed.train(resume_from_checkpoint=True)
    (one,), (other,) = ([e for e in each.state.log_history if "loss" in e] for each in (made, resumed))
    assert one["step"] == other["step"] == 3
    assert {k: v for k, v in one.items() if "time" not in k} == pytest.approx(
        {k: v for k, v in other.items() if "time" not in k}, nan_ok=True
    )


def test_second_live_run_is_refused_before_it_touches_anything(tmp_path):
    made = new_trainer(tmp_path, max_steps=1)
    made.train()
    before = sorted(str(one) for one in tmp_path.rglob("*"))
    second = new_trainer(tmp_path, max_steps=1)
    with only_run_in(tmp_path), pytest.raises(ConfigurationError, match=f"still alive .process {os.getpid()}"):
        second.train()
    assert sorted(str(one) for one in tmp_path.rglob("*") if one.name != "_run.lock") == [
        one for one in before if not one.endswith("_run.lock")
    ]
    second.train()


@pytest.fixture
def ctrl_c():
    """Ctrl-C interrupts, also where a shell started the suite in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_says_from_where_it_goes_on(tmp_path, caplog, kind):
    def interrupt(step):
        if step == 3:
            os.kill(os.getpid(), kind)

    made = new_trainer(tmp_path, max_steps=4, callbacks=[Each(interrupt)])
    with pytest.raises((KeyboardInterrupt, SystemExit)) as caught:
        made.train()
    told = f"Go on from {tmp_path}/checkpoint-2 with `trainer.train(resume_from_checkpoint='last')`"
    assert f"The training broke off. {told}" in caplog.text and caught.value.__notes__ == [told]
    assert getattr(caught.value, "code", 143) == 143 and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert new_trainer(tmp_path, max_steps=4).train(resume_from_checkpoint="last").global_step == 4


def test_run_without_a_checkpoint_says_so_and_a_handler_of_the_program_stays(tmp_path):
    def own(number, frame):
        seen.append(number)

    seen = []
    before = signal.signal(signal.SIGTERM, own)
    try:
        made = new_trainer(tmp_path, max_steps=1, callbacks=[Each(lambda step: os.kill(os.getpid(), signal.SIGTERM))])
        made.train()
        assert seen == [signal.SIGTERM] and signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before)
    assert "There is no checkpoint in" in how_to_go_on(str(tmp_path / "new"))


# ---- numbers that are none ------------------------------------------------------------------------------------------


def poison(made, steps, value=float("nan")):
    """The advantages of the given optimizer steps become `value`."""
    collate = made.experience_maker.passes.collate

    def poisoned(rows, **keywords):
        tensors = collate(rows, **keywords)
        if made.model.training and made.state.global_step + 1 in steps:
            tensors["advantages"] = torch.full_like(tensors["advantages"], value)
        return tensors

    object.__setattr__(made.experience_maker.passes, "collate", poisoned)


@pytest.mark.parametrize("max_grad_norm", [0.0, 1.0])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_step_with_a_loss_that_is_no_number_is_skipped_counted_and_told(tmp_path, caplog, value, max_grad_norm):
    made = new_trainer(tmp_path, max_steps=4, max_grad_norm=max_grad_norm, weight_decay=0.1)
    poison(made, {2}, value)
    seen = {}
    made.add_callback(Each(lambda step: seen.update({step: tiny.parameters(made)})))
    made.train()
    assert all(torch.equal(seen[2][name], seen[1][name]) for name in seen[1]), "not even momentum moves it"
    assert any(not torch.equal(seen[3][name], seen[2][name]) for name in seen[2]), "the next step is taken"
    assert all(torch.isfinite(p).all() for p in seen[4].values())
    assert history(made, "nonfinite_steps") == [0, 1, 1, 1]
    assert "Optimizer step 2 is skipped: its loss is not finite" in caplog.text
    assert "NaN" not in (tmp_path / "checkpoint-4" / "trainer_state.json").read_text()
    assert "Infinity" not in (tmp_path / "checkpoint-4" / "trainer_state.json").read_text()


def test_skipped_steps_are_counted_over_a_resumption(tmp_path):
    made = new_trainer(tmp_path, max_steps=2)
    poison(made, {2})
    made.train()
    resumed = new_trainer(tmp_path, max_steps=3)
    resumed.train(resume_from_checkpoint="last")
    assert history(resumed, "nonfinite_steps") == [0, 1, 1]


def test_several_in_a_row_end_the_run_with_its_last_weights_whole(tmp_path):
    made = new_trainer(tmp_path, max_steps=6, max_nonfinite_steps=2)
    poison(made, {2, 4, 5, 6})
    with pytest.raises(NonFiniteError, match=r"2 optimizer steps in a row .* step 5"):
        made.train()
    assert last_checkpoint(tmp_path) == tmp_path / "checkpoint-4"
    assert all(torch.isfinite(p).all() for p in made.model.parameters())


def test_gradient_that_is_no_number_is_held_back_though_the_loss_is_one(tmp_path, caplog):
    made = new_trainer(tmp_path, max_steps=2)
    parameter = next(p for p in made.model.parameters() if p.requires_grad)
    parameter.register_hook(lambda grad: grad * (math.inf if made.state.global_step == 1 else 1))
    made.train()
    assert history(made, "nonfinite_steps") == [0, 1] and "its gradient is not finite" in caplog.text
    assert all(torch.isfinite(p).all() for p in made.model.parameters())


def test_weights_that_became_no_numbers_are_not_saved(tmp_path):
    def break_weights(step):
        if step == 2:
            next(made.model.parameters()).data[0] = math.nan

    made = new_trainer(tmp_path, max_steps=3, callbacks=[Each(break_weights)])
    with pytest.raises(CheckpointError, match=r"checkpoint-2 is not saved.*checkpoint-1"):
        made.train()
    assert [one.name for one in checkpoints_of(tmp_path)] == ["checkpoint-1"]


# ---- full disks -----------------------------------------------------------------------------------------------------


@pytest.fixture
def full(monkeypatch):
    """Names of files that no longer fit; empty at first."""
    names = []
    replacing = os.replace

    def replace(source, target):
        if any(name in str(target) for name in names):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replacing(source, target)

    monkeypatch.setattr(files.os, "replace", replace)
    monkeypatch.setattr(files, "_told", set())
    return names


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("rollout_", "Records of episodes cannot be written"),
        ("eval_", "Evaluations cannot be written"),
        ("README.md", "Model cards cannot be written"),
    ],
)
def test_full_disk_costs_a_file_not_the_run(tmp_path, full, caplog, name, words):
    made, _ = scripted(tmp_path, max_steps=3, eval_strategy="steps", eval_steps=1, eval_dataset=rows(2), **SAVING)
    made.add_callback(Each(lambda step: full.append(name) if step == 1 else full.clear() if step == 2 else None))
    made.train()
    told = [record.getMessage() for record in caplog.records if "cannot be written" in record.getMessage()]
    assert len(told) == 1 and told[0].startswith(words) and "No space left" in told[0]
    assert made.state.global_step == 3 and last_checkpoint(tmp_path).name == "checkpoint-3"
    if name == "rollout_":
        assert rollouts(tmp_path) == [0, 2], "the one that did not fit is missing, later ones are there"


def test_full_disk_keeps_the_error_that_came_first_on_top(tmp_path, full, monkeypatch):
    """F10: the records are written while another error is on its way."""
    made, _ = scripted(tmp_path, max_steps=1)
    full.append("rollout_")
    monkeypatch.setattr(type(made.experience_maker), "_plan", lambda *a, **k: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        made.train()


def test_checkpoint_that_does_not_fit_ends_the_run_in_one_line_and_the_last_one_stays(tmp_path, monkeypatch):
    made = new_trainer(tmp_path, max_steps=4)
    save = torch.save

    def failing(data, path, *args, **kwargs):
        if "checkpoint-3" in str(path) and "optimizer" in str(path):
            save({}, path)
            raise RuntimeError("[enforce fail at inline_container.cc:858] . PytorchStreamWriter failed writing file")
        save(data, path, *args, **kwargs)

    monkeypatch.setattr(torch, "save", failing)
    with pytest.raises(CheckpointError) as caught:
        made.train()
    text = str(caught.value)
    assert "\n" not in text and f"checkpoint-3 could not be written to {tmp_path}" in text and "Free space" in text
    assert last_checkpoint(tmp_path) == tmp_path / "checkpoint-2" and str(tmp_path / "checkpoint-2") in text
    monkeypatch.undo()
    assert new_trainer(tmp_path, max_steps=4).train(resume_from_checkpoint="last").global_step == 4


def test_final_model_replaces_the_old_one_whole(tmp_path, monkeypatch):
    made, _ = scripted(tmp_path, max_steps=1)
    made.train()
    made.save_model(str(tmp_path))
    old = (tmp_path / "model.safetensors").read_bytes()
    monkeypatch.setattr(torch, "save", lambda *a, **k: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left")))
    next(made.model.parameters()).data += 1
    with pytest.raises(CheckpointError):
        made.save_model(str(tmp_path))
    assert (tmp_path / "model.safetensors").read_bytes() == old
    monkeypatch.undo()
    made.save_model(str(tmp_path))
    assert (tmp_path / "model.safetensors").read_bytes() != old and not (tmp_path / "_saving").exists()


# ---- the share of a micro-step --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "num_micro_steps"),
    [
        ({"num_iterations": 3, "steps_per_generation": 1, "gradient_accumulation_steps": 4}, [4, 4, 1]),
        ({"num_iterations": 1, "steps_per_generation": 2, "gradient_accumulation_steps": 4}, [4, 2]),
        ({"num_iterations": 1, "steps_per_generation": 2, "gradient_accumulation_steps": 1}, [1] * 6),
        ({"num_iterations": 2, "steps_per_generation": 2, "gradient_accumulation_steps": 2}, [2] * 6),
    ],
    ids=["windows cross batches", "a short last window", "two steps for a batch", "two passes"],
)
def test_every_optimizer_step_weighs_the_same_also_at_the_end_of_an_epoch(tmp_path, values, num_micro_steps):
    """F15: with advantages of 1 and weights that stay, the loss of a step is minus the sum of its coefficients."""
    made = new_trainer(
        tmp_path,
        per_device_train_batch_size=4 // values["steps_per_generation"],
        train_dataset=Dataset.from_dict({"task": ["t0", "t1", "t2"]}),
        num_train_epochs=1,
        learning_rate=0.0,
        model=tiny.model(),
        save_strategy="no",
        **values,
    )
    backward, plain = made.accelerator.backward, made.experience_maker.passes.collate
    losses = {}

    def collate(rows, **keywords):
        tensors = plain(rows, **keywords)
        return {**tensors, "advantages": torch.ones_like(tensors["advantages"])}

    def count(loss, **kwargs):
        losses.setdefault(made.state.global_step, []).append(float(loss.detach()))
        backward(loss, **kwargs)

    object.__setattr__(made.experience_maker.passes, "collate", collate)
    made.accelerator.backward = count
    made.train()
    assert [len(one) for one in losses.values()] == num_micro_steps
    assert [sum(one) for one in losses.values()] == pytest.approx([-1.0] * len(num_micro_steps), abs=1e-5)
    assert history(made, "policy_loss") == pytest.approx([-1.0] * len(num_micro_steps), abs=1e-5)
