"""Server mode from two processes: each asks for its own episodes, one sends the weights, both learn the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.generation.fake_vllm import FakeVLLM
from tests.generation.training import wandering
from tests.launching import torchrun


ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_two_processes_generate_on_their_own_and_one_sends_the_weights(tmp_path):
    with FakeVLLM(wandering) as fake:
        done = subprocess.run(
            [sys.executable, *torchrun(2), "-m", "tests.generation.process_worker", fake.url, str(tmp_path)],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        requests = list(fake.requests)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert (first["num_opened"], second["num_opened"]) == (1, 0)
    assert (len(first["updates"]), len(second["updates"])) == (2, 0)
    # Two batches of eight episodes, four for each process, of different lengths; every request has its own seed.
    counts = [one["num_requests"] for one in (first, second)]
    assert counts[0] != counts[1] and len(requests) == sum(counts) > 16
    assert len({body["seed"] for body in requests}) == len(requests)
    for name, value in first["parameters"].items():
        assert torch.equal(value, second["parameters"][name]), name
    assert any(not torch.equal(first["updates"][0][name], first["updates"][1][name]) for name in first["parameters"])
    assert first["missing"] == [0.0, 0.0]
