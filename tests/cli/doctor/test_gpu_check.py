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


def test_all_its_parts_run_on_a_tiny_model(gpu_check, tmp_path, capsys):
    output = tmp_path / "check.json"
    assert gpu_check.main(["--device", "cpu", "--tiny", "--rounds", "1", "--output", str(output)]) == 0
    found = json.loads(output.read_text())
    table = found["table"].splitlines()
    assert (
        table[0].endswith("| CPU, tiny model: shows that the script works |")
        and found["table"] in capsys.readouterr().out
    )
    assert [line.split(" | ")[1] for line in table if "flash_attention_2" in line] == [
        "unrun: not installed, or no GPU |"
    ]
    assert not [name for name in gpu_check.PARTS if "unrun" in found[name]]
    step, scoring = found["step"], found["scoring"]
    assert step["step_ratio_median"] > 0 and step["runs"]["taspo"][0]["peak_gib"] is None
    # 8 rows of 60 + 8 tokens, one of them with an empty block, the others spliced at 55 with blocks of 32.
    assert scoring["scored_tokens"] == 8 * 68 + 7 * (68 - 55 + 32)
    assert scoring["empty_block_shift"] == 0.0 and scoring["nats_apart_largest"] < 0.1
    assert found["packing"]["padding_share"] > 0.1 and found["packing"]["sdpa"]["nats_apart_largest"] < 0.1
    assert step["runs"]["taspo"][0]["guidance/coverage_all"] == pytest.approx(0.75)  # 3 of 4 members: ceil(0.6 k)
    assert step["runs"]["grpo"][0].get("guidance/coverage_all", 0.0) == 0.0
    # 2 groups of 4 play 2 turns of 8 tokens each, but for the odd end token.
    assert step["runs"]["taspo"][0]["tokens/reply"] == pytest.approx(2 * 4 * 2 * 8, rel=0.1)
    assert found["generation"]["kept_keys_were_used"]
    once = found["in_update"]["runs"]["guided"]
    assert once["credit/scorable_share"] > 0 and once["time/logps"] < 0.01 < once["learning"]  # no pass of log pi_old
    riding, apart = (found["riding"]["runs"][name] for name in ("riding", "apart"))
    assert riding["credit/scorable_share"] == apart["credit/scorable_share"] > 0


def test_a_part_without_time_is_said_to_be_unrun(gpu_check, tmp_path):
    output = tmp_path / "check.json"
    arguments = ["--device", "cpu", "--tiny", "--minutes", "0", "--only", "beside", "--output", str(output)]
    assert gpu_check.main(arguments) == 0
    assert json.loads(output.read_text())["table"].endswith("| beside | unrun: no time was left of 0 minutes |")
