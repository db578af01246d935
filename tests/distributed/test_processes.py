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

from tests.launching import torchrun


ROOT = Path(__file__).resolve().parents[2]


def launch(folder: Path, processes: int, timeout: float = 240, launcher: list[str] | None = None, **options):
    """Run the worker in `processes` processes; returns the finished process."""
    folder.mkdir(parents=True, exist_ok=True)
    payload = json.dumps({"output": str(folder), **options})
    if processes > 1 and launcher is None:
        launcher = torchrun(processes)
    command = [sys.executable, *(launcher or []), "-m", "tests.distributed.worker", payload]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "TOKENIZERS_PARALLELISM": "false"}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )


def results(folder: Path, processes: int) -> list[dict]:
    return [torch.load(folder / f"{processes}-{rank}.pt") for rank in range(processes)]


def both(tmp_path, **options):
    """(one process, two processes) of the same training."""
    for processes in (1, 2):
        done = launch(tmp_path / str(processes), processes, **options)
        assert done.returncode == 0, done.stderr[-3000:]
    return results(tmp_path / "1", 1)[0], results(tmp_path / "2", 2)


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
@pytest.mark.parametrize(
    ("scenario", "options"),
    [
        ("ragged", {"config": {"beta": 0.1, "entropy_coef": 0.01}}),
        ("uneven", {}),
        ("ragged", {"steps_per_generation": 2, "steps": 4}),
        # 12 episodes on two ranks: the second group of four straddles them.
        ("ragged", {"episodes": 12}),
    ],
    ids=["kl and entropy", "ranks without guidance (EVL-2)", "two steps per rollout", "straddling groups"],
)
def test_two_processes_train_as_one(tmp_path, scenario, options):
    one, several = both(tmp_path, scenario=scenario, **options)
    assert max(entry["guidance/coverage"] for entry in one["log"] if "guidance/coverage" in entry) > 0
    assert_same_training(one, several)
    assert sum(rank["requests"] for rank in several) == one["requests"]


@pytest.mark.slow
def test_loss_that_is_no_number_on_one_rank_skips_the_step_on_all(tmp_path):
    done = launch(tmp_path, 2, scenario="nan_on_rank_one", steps=3)
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = results(tmp_path, 2)
    assert [entry["nonfinite_steps"] for entry in first["log"]] == [0, 1, 1]
    for name, value in first["parameters"].items():
        assert torch.isfinite(value).all() and torch.equal(value, second["parameters"][name]), name


@pytest.mark.slow
def test_analyzer_that_fails_on_one_rank_costs_only_its_groups(tmp_path):
    done = launch(tmp_path, 2, scenario="analyzer_fails_on_one_rank")
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = results(tmp_path, 2)
    assert all(torch.equal(value, second["parameters"][name]) for name, value in first["parameters"].items())
    entry = first["log"][0]
    assert 0 < entry["guidance/coverage"] < 1 and entry["guidance/none/timeout"] > 0


@pytest.mark.slow
def test_exception_on_one_rank_ends_both(tmp_path):
    done = launch(tmp_path, 2, scenario="assertion_on_one_rank", timeout=60)
    assert done.returncode != 0
    assert "a bug on one rank" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("tied", [False, True])
def test_sharded_parameters_score_and_train_as_whole_ones(tmp_path, tied):
    """FSDP2 over two CPU processes: the same log-probabilities, loss and gradients."""
    for processes in (1, 2):
        done = subprocess.run(
            [sys.executable, *torchrun(processes), "-m", "tests.distributed.sharded", str(tmp_path), str(int(tied))],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
    load = lambda world, rank: torch.load(tmp_path / f"sharded-{world}-{rank}.pt", weights_only=False)  # noqa: E731
    whole, shards = load(1, 0), [load(2, rank) for rank in range(2)]
    for k, one in enumerate(whole["scored"]):
        other = shards[k % 2]["scored"][k // 2]
        assert one.plain == pytest.approx(other.plain, abs=1e-9)
        assert one.guided[0] == pytest.approx(other.guided[0], abs=1e-9)
    assert whole["loss"] == pytest.approx(sum(shard["loss"] for shard in shards), abs=1e-9)
    for name, gradient in whole["gradients"].items():
        assert gradient.abs().max() > 0
        assert torch.allclose(gradient, shards[0]["gradients"][name], atol=1e-9), name
