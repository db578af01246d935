"""`benchmarks/gpu_check.py` without a GPU: it says so, and its path runs on a tiny model."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest
import torch


BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture
def gpu_check(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("gpu_check")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_it_says_that_there_is_no_gpu(gpu_check, capsys):
    assert gpu_check.main([]) == 1
    printed = capsys.readouterr().err
    assert "no CUDA GPU" in printed and "--device cpu --tiny" in printed


@pytest.mark.slow
def test_the_same_path_runs_on_a_tiny_model(gpu_check, tmp_path, capsys):
    output = tmp_path / "check.json"
    arguments = ["--device", "cpu", "--tiny", "--steps", "1", "--rounds", "1", "--output", str(output)]
    assert gpu_check.main(arguments) == 0
    assert "TASPO step / GRPO step" in capsys.readouterr().out
    found = json.loads(output.read_text())
    steps, scoring = found["steps"], found["scoring"]
    assert steps["step_ratio_median"] > 0 and steps["peak_gib"]["taspo"] is None
    assert scoring["scored_tokens"] == 8 * (2 * 76 - 55 + 32)  # rows of 60 + 16, spliced at 55, blocks of 32
    assert steps["runs"]["taspo"][0]["guidance/coverage_all"] == pytest.approx(0.75)  # 3 of 4 members: ceil(0.6 k)
    assert steps["runs"]["grpo"][0].get("guidance/coverage_all", 0.0) == 0.0
    # 2 groups of 4 play 3 turns of 16 tokens each, but for the odd end token.
    assert steps["runs"]["taspo"][0]["tokens/reply"] == pytest.approx(2 * 4 * 3 * 16, rel=0.1)
    assert steps["sampled_tokens_per_second"] > 0 and scoring["forward_tokens_per_second"] > 0
