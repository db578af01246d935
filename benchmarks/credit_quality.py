"""Is the credit of the quickstart's policy right? Methods against the oracle's progress and against continuations.

    python benchmarks/credit_quality.py

Plays 60 held-out groups of the household with the warm-started policy and writes
`benchmarks/results/credit_quality.json`; docs/credit_quality.md says how to read it.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from common import save

from taspo_trl.cli import main
from taspo_trl.quickstart.policy import WarmStart, cached_folder, tiny_policy


PLAYED = "--split valid_seen --groups 60 --max-completion-length 8 --reading"
LABELLED = "--labels progress values --label-turns 500 --continuations 8"
METHODS = "--methods taspo grpo contrast contrast_probability"


if __name__ == "__main__":
    tiny_policy()  # makes it where it was never made
    with tempfile.TemporaryDirectory() as folder:
        given = ["--model", str(cached_folder(WarmStart())), "--dataset-kwargs", '{"preset": "small"}']
        if main(["credit", *given, *f"{PLAYED} {LABELLED} {METHODS}".split(), "--output", folder]) == 0:
            report = json.loads((Path(folder) / "credit.json").read_text())
            print(save("credit_quality", {"command": "python benchmarks/credit_quality.py", **report}))
