"""Two runs in one folder are never read as one, and nothing of the first is lost."""

import os
import time

from taspo_trl.records import read_records
from taspo_trl.training.earlier_run import set_aside
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
