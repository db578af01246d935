"""Several processes: the same numbers as one, whatever the ranks hold, and no rank that waits for ever."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.distributed import worker
from tests.launching import torchrun


ROOT = Path(__file__).resolve().parents[2]


def launch(runs: list[dict], processes: int = 2, timeout: float = 480, launcher: list[str] | None = None):
    """Run the worker in `processes` processes, one run after the other; returns the finished process."""
    command = [
        sys.executable, *(launcher or torchrun(processes)), "-m", "tests.distributed.worker", json.dumps(runs)
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "TOKENIZERS_PARALLELISM": "false"}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )


def results(folder: Path, processes: int) -> list[dict]:
    return [torch.load(folder / f"{processes}-{rank}.pt") for rank in range(processes)]


SAME = {
    "kl and entropy": {"config": {"beta": 0.1, "entropy_coef": 0.01}},
    "ranks without guidance (EVL-2)": {"scenario": "uneven"},
    "two steps per rollout": {"steps_per_generation": 2, "steps": 4},
    # 12 episodes on two ranks: the second group of four straddles them.
    "straddling groups, without padding": {"episodes": 12, "config": {"padding_free": True}},
    "scored in the update": {"steps": 2, "config": {"context": "conversation"}},
    "scored beside the rollout": {
        "episodes": 12,
        "steps_per_generation": 2,
        "steps": 2,
        "config": {"beta": 0.1, "score_during_rollout": True},
    },
    # One method of each interface: an advantage, weights by another teacher, a distillation term.
    "gigpo": {"steps": 2, "config": {"method": "gigpo"}},
    "serl": {"steps": 2, "config": {"method": "serl", "method_options": {"teacher_every": 1}}},
    "sdar": {
        "steps": 2,
        "config": {"method": "sdar", "guidance": "random_success", "method_options": {"weight": 0.1}},
    },
    # What is scored beside the action.
    "contrast": {"config": {"method_options": {"support": "contrast", "alternatives": 4}}},
}
APART = {"nan": {"scenario": "nan_on_rank_one", "steps": 3}, "analyzer": {"scenario": "analyzer_fails_on_one_rank"}}
"""What ranks do to each other."""


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    """Folder of each run of two processes. One start serves all: it costs more than the runs."""
    folder = tmp_path_factory.mktemp("two")
    runs = {**SAME, **APART}
    folders = {name: folder / str(place) for place, name in enumerate(runs)}
    for one in folders.values():
        one.mkdir()
    done = launch([{"output": str(folders[name]), **options} for name, options in runs.items()])
    assert done.returncode == 0, done.stderr[-3000:]
    return folders


def assert_same_training(one, several, tolerance=1e-6):
    for rank in several:
        for name, value in one["parameters"].items():
            assert torch.allclose(value, rank["parameters"][name], atol=tolerance, rtol=0), f"{name} differs"
    for entry, other in zip(one["log"], several[0]["log"], strict=True):
        # Everything but timings is an average over trajectories or tokens, not over processes.
        for key, value in entry.items():
            if key.startswith("time/") or key in ("step_time", "analyzer/seconds_per_call"):
                continue
            if isinstance(value, float) and not math.isnan(value):
                assert other[key] == pytest.approx(value, abs=tolerance), key


@pytest.mark.slow
@pytest.mark.parametrize("name", SAME)
def test_two_processes_train_as_one(tmp_path, two_processes, name):
    worker.run({"output": str(tmp_path), **SAME[name]})
    (one,), several = results(tmp_path, 1), results(two_processes[name], 2)
    if "method" not in SAME[name].get("config", {}):
        assert max(entry["guidance/coverage"] for entry in one["log"] if "guidance/coverage" in entry) > 0
        assert sum(rank["requests"] for rank in several) == one["requests"]
    assert_same_training(one, several)


@pytest.mark.slow
def test_loss_that_is_no_number_on_one_rank_skips_the_step_on_all(two_processes):
    first, second = results(two_processes["nan"], 2)
    assert [entry["nonfinite_steps"] for entry in first["log"]] == [0, 1, 1]
    for name, value in first["parameters"].items():
        assert torch.isfinite(value).all() and torch.equal(value, second["parameters"][name]), name


@pytest.mark.slow
def test_analyzer_that_fails_on_one_rank_costs_only_its_groups(two_processes):
    first, second = results(two_processes["analyzer"], 2)
    assert all(torch.equal(value, second["parameters"][name]) for name, value in first["parameters"].items())
    entry = first["log"][0]
    assert 0 < entry["guidance/coverage"] < 1 and entry["guidance/none/timeout"] > 0


@pytest.mark.slow
def test_exception_on_one_rank_ends_both(tmp_path):
    done = launch([{"output": str(tmp_path), "scenario": "assertion_on_one_rank"}], timeout=60)
    assert done.returncode != 0
    assert "a bug on one rank" in done.stderr


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    """The folder with what one and two processes found for untied and tied embeddings."""
    folder = tmp_path_factory.mktemp("sharded")
    for processes in (1, 2):
        done = subprocess.run(
            [sys.executable, *torchrun(processes), "-m", "tests.distributed.sharded", str(folder)],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("tied", [False, True])
def test_sharded_parameters_score_and_train_as_whole_ones(sharded, tied):
    """FSDP2 over two CPU processes: the same log-probabilities, loss and gradients."""

    def load(world, rank):
        return torch.load(sharded / f"sharded-{int(tied)}-{world}-{rank}.pt", weights_only=False)

    whole, shards = load(1, 0), [load(2, rank) for rank in range(2)]
    for k, one in enumerate(whole["scored"]):
        other = shards[k % 2]["scored"][k // 2]
        assert one.plain == pytest.approx(other.plain, abs=1e-9)
        assert one.guided[0] == pytest.approx(other.guided[0], abs=1e-9)
    assert whole["loss"] == pytest.approx(sum(shard["loss"] for shard in shards), abs=1e-9)
    for name, gradient in whole["gradients"].items():
        assert gradient.abs().max() > 0
        assert torch.allclose(gradient, shards[0]["gradients"][name], atol=1e-9), name
