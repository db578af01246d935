"""The short version of `benchmarks/kill_and_resume.py`: a few kills on one process and on two."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_killed_runs_leave_what_the_unbroken_run_leaves(processes):
    done = subprocess.run(
        [
            sys.executable,
            "benchmarks/kill_and_resume.py",
            *("--kills", "2", "--steps", "3", "--processes", str(processes)),
            *("--layouts", "two steps for a batch", "--no-results"),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "none" in done.stdout
