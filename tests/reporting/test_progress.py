"""One line of progress: what it says, and that it is what a trainer shows."""

import io
from types import SimpleNamespace

import pytest
from datasets import Dataset
from transformers import PrinterCallback, ProgressCallback

from taspo_trl import StepBar
from taspo_trl.reporting.progress import evaluation_line
from tests.trainer.test_trainer import scripted


QUIET = SimpleNamespace(disable_tqdm=True)


def state(step, is_main=True):
    return SimpleNamespace(global_step=step, max_steps=60, is_world_process_zero=is_main)


def entry(success, **values):
    return {"success": success, "reward": success, "actions/invalid_share": 0.25, **values}


def test_lines_are_means_of_five_with_the_reward_where_it_is_another(capsys):
    bar = StepBar(is_interactive=False)
    bar.on_log(QUIET, state(0), None, entry(1.0))  # before training
    bar.on_train_begin(QUIET, state(0), None)
    for k, success in enumerate((0.0, 0.25, None, 0.25, 0.5, 0.5)):
        bar.on_log(QUIET, state(k + 1), None, entry(success, **{"guidance/coverage": 0.6}))
    bar.on_log(QUIET, state(7), None, entry(0.5, reward=1.0, **{"episodes/failed_share": 0.125}))
    bar.on_log(QUIET, state(7), None, {"train_runtime": 3.0})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 7
    assert lines[5].startswith("step 6/60, ")
    assert lines[5].endswith(" s a step: success 0.30, guided 60%, invalid actions 25%")  # of 0, .25, .25, .5, .5
    assert lines[6].endswith("success 0.40, reward 0.50, invalid actions 25%, failed episodes 12%")
    nobody = StepBar(is_interactive=False)
    nobody.on_train_begin(QUIET, state(0), None)
    nobody.on_log(QUIET, state(1), None, {"success": None, "reward": float("nan")})
    assert capsys.readouterr().out.endswith(": success unknown, invalid actions 0%\n"), "no zero that nobody saw"
    other = StepBar(is_interactive=False)
    other.on_train_begin(QUIET, state(0, False), None)
    other.on_log(QUIET, state(1, False), None, entry(0.5))
    assert capsys.readouterr().out == ""


def test_a_bar_begins_where_a_resumed_run_stands(monkeypatch):
    monkeypatch.setattr("sys.stderr", io.StringIO())
    bar = StepBar(is_interactive=True)
    bar.on_train_begin(QUIET, state(20), None)
    bar.on_log(QUIET, state(21), None, entry(0.5))
    bar.on_step_end(QUIET, state(21), None)
    assert (bar._bar.n, bar._bar.total, bar._bar.postfix) == (21, 60, "success 0.50, invalid actions 25%")
    bar.on_train_end(QUIET, state(21), None)


def test_an_evaluation_is_a_line():
    logs = {"eval_success": 0.41, "eval_success_low": 0.333, "eval_success_high": 0.491, "eval_turns_success": 6.0,
            "eval_num_plays": 144.0}  # fmt: skip
    assert evaluation_line(logs) == "eval_success 41.0 % (33.3 % to 49.1 %) over 144 episodes"
    assert (
        evaluation_line({"eval_success": None, "eval_success_low": None})
        == "eval_success unknown (unknown to unknown)"
    )
    assert evaluation_line({"success": 0.5}) is None


@pytest.mark.parametrize("disabled", [True, False])
def test_a_trainer_shows_lines_and_no_dictionary(tmp_path, capsys, disabled):
    mine = StepBar()
    made, _ = scripted(tmp_path, callbacks=[mine], disable_tqdm=disabled, eval_strategy="steps", eval_steps=1,
                       eval_dataset=Dataset.from_dict({"task": ["e0"]}))  # fmt: skip
    kinds = [type(one) for one in made.callback_handler.callbacks]
    assert kinds.count(StepBar) == 1 and not {PrinterCallback, ProgressCallback} & set(kinds)
    made.train()
    made.close()
    out = capsys.readouterr().out
    assert "step 1/1, " in out and "success 0.25, reward" not in out and "guided" in out and "{" not in out
    assert "step 1, eval_success 0.0 %" in out or "step 1, eval_success 100.0 %" in out
