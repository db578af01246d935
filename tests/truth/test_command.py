"""`taspo credit` on a tiny model: what was measured is on disk before anything else is played."""

from __future__ import annotations

import json

import pytest

from taspo_trl.cli import credit
from tests import tiny


def test_the_report_is_written_before_the_reading_begins(tmp_path, monkeypatch):
    tiny.model().save_pretrained(tmp_path / "model")
    tiny.tokenizer().save_pretrained(tmp_path / "model")

    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(credit, "_reading", interrupted)
    command = ["--model", str(tmp_path / "model"), "--environment-kwargs", '{"preset": "small"}', "--groups", "1"]
    command += [
        "--dataset-kwargs",
        '{"preset": "small"}',
        "--generations",
        "2",
        "--max-turns",
        "2",
        "--resamples",
        "2",
    ]
    command += [
        "--max-completion-length",
        "8",
        "--reading",
        "--methods",
        "grpo",
        "oracle",
        "-o",
        str(tmp_path / "out"),
    ]
    with pytest.raises(KeyboardInterrupt):
        credit.main(command)
    report = json.loads((tmp_path / "out" / "credit.json").read_text())
    assert report["model"] == "model" and report["groups"] == 1 and "reading" not in report
    assert set(report["methods"]) == {"grpo", "oracle", "perfect progress"}
    assert (tmp_path / "out" / "credit.png").exists()
