"""The table of model classes in the documentation is what its script finds."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.model_classes import examine, page


RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "model_classes.json"
ROWS = {row["model_type"]: row for row in json.loads(RESULTS.read_text())["classes"]}


@pytest.mark.parametrize(
    "kind",
    [
        "llama", "qwen2", "qwen3", "gemma3_text", "mistral", "gpt2", "opt", "recurrent_gemma", "modernbert-decoder", 
        "mpt", "bert", "cohere", "phi3", "mixtral",
    ],
)  # fmt: skip
def test_rows_are_true(kind):
    assert examine(kind)[0] == ROWS[kind]["outcome"]


def test_the_page_holds_all_rows():
    text = (RESULTS.parents[2] / "docs" / "models.md").read_text()
    made = page(list(ROWS.values()), Counter(row["outcome"] for row in ROWS.values()))
    assert text.split("| model type")[1] == made.split("| model type")[1]
