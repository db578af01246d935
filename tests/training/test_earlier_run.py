"""Two runs in one folder are never read as one, and nothing of the first is lost."""

import os
import time

from taspo_trl.checkpoints import last_checkpoint
from taspo_trl.records import read_records
from taspo_trl.training.earlier_run import set_aside, set_aside_beyond
from tests.checkpoints import put_checkpoint
from tests.trainer.test_trainer import rows, scripted


def put(folder, name, age):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(name)
    os.utime(path, (time.time() - age,) * 2)


def test_older_files_move_and_newer_ones_stay(tmp_path):
    put(tmp_path, "_trajectories/rollout_000000.jsonl", 100)
    put(tmp_path, "_evaluations/eval_000004.json", 100)
    put(tmp_path, "_evaluations/eval_000000.json", 1)
    put(tmp_path, "model.safetensors", 100)
    put(tmp_path, "trainer_state.json", 100)
    target = set_aside(tmp_path, before=time.time() - 50)
    assert target == tmp_path / "_earlier" / "1"
    assert (target / "_trajectories/rollout_000000.jsonl").read_text() == "_trajectories/rollout_000000.jsonl"
    assert (target / "trainer_state.json").exists() and not (tmp_path / "trainer_state.json").exists()
    assert [one.name for one in (target / "_evaluations").iterdir()] == ["eval_000004.json"]
    assert (tmp_path / "_evaluations/eval_000000.json").exists() and (tmp_path / "model.safetensors").exists()
    assert set_aside(tmp_path, before=time.time() - 50) is None
    put(tmp_path, "_trajectories/rollout_000000.jsonl", 100)
    assert set_aside(tmp_path, before=time.time() - 50).name == "2"


def test_checkpoints_of_an_earlier_run_are_not_the_last_of_this_one(tmp_path):
    os.utime(put_checkpoint(tmp_path, 7), (time.time() - 100,) * 2)
    put_checkpoint(tmp_path, 3)
    target = set_aside(tmp_path, before=time.time() - 50)
    assert last_checkpoint(tmp_path) == tmp_path / "checkpoint-3"
    assert last_checkpoint(target) == target / "checkpoint-7", "nothing is deleted"


def test_what_lies_beyond_the_resumed_step_is_set_aside(tmp_path, caplog):
    kept = [
        "_trajectories/rollout_000000.jsonl",
        "_trajectories/rollout_000001.jsonl",
        "_evaluations/eval_000004.json",
        "_evaluations/eval_seen_2_000000.json",
        "completions/completions_00004.parquet",
    ]
    moved = [
        "_trajectories/rollout_000002.jsonl",
        "_trajectories/rollout_000002-process1.jsonl.partial",
        "_trajectories/rollout_000003.jsonl.partial",
        "_evaluations/eval_000005.json",
        "_evaluations/eval_seen_2_000008.json",
        "completions/completions_00005.parquet",
        "trainer_state.json",
    ]
    for name in [*kept, *moved]:
        put(tmp_path, name, 0)
    for step in (4, 6):
        put_checkpoint(tmp_path, step)
    target = set_aside_beyond(tmp_path, 4, 2)
    assert all((tmp_path / name).exists() for name in kept)
    assert all((target / name).exists() and not (tmp_path / name).exists() for name in moved)
    assert last_checkpoint(tmp_path) == tmp_path / "checkpoint-4" and last_checkpoint(target).name == "checkpoint-6"
    assert "goes on after step 4" in caplog.text
    assert set_aside_beyond(tmp_path, 4, 2) is None


def test_log_of_a_finished_run_stays_when_it_is_resumed_at_its_end(tmp_path):
    (tmp_path / "trainer_state.json").write_text('{"global_step": 6}')
    assert set_aside_beyond(tmp_path, 6, 3) is None
    assert set_aside_beyond(tmp_path, 5, 3) is not None


def test_a_second_run_has_its_own_records_and_a_resumed_one_goes_on(tmp_path):
    first, _ = scripted(tmp_path, max_steps=2, save_strategy="steps", save_steps=1, eval_dataset=rows(2))
    first.evaluate()
    first.train()
    assert {r.rollout for r in read_records(tmp_path / "_trajectories")} == {0, 1}
    assert (tmp_path / "_evaluations" / "eval_000000.json").exists(), "what was evaluated before training is its own"

    resumed, _ = scripted(tmp_path, max_steps=3, save_strategy="steps", save_steps=1)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert {r.rollout for r in read_records(tmp_path / "_trajectories")} == {0, 1, 2}

    second, _ = scripted(tmp_path, max_steps=1)
    second.train()
    assert {r.rollout for r in read_records(tmp_path / "_trajectories")} == {0}
    assert {r.rollout for r in read_records(tmp_path / "_earlier" / "1" / "_trajectories")} == {0, 1, 2}
