"""Is the credit of the quickstart's policy right? Methods against the oracle's progress and against continuations.

    python benchmarks/credit_quality.py [--teacher runs/quickstart-tiny]

Plays 60 held-out groups of the household with the warm-started policy, continues 2,000 of their turns 16 times,
measures every method whose turns have credit, then TASPO alone under other guidance, then what could be better in it
and where gradients of whole distributions point (`credit_variants.py`), and writes
`benchmarks/results/credit_quality.json` and the figure of docs/credit_quality.md, which says how to read them. About
half an hour on two idle cores; what was played before it was stopped is not played again.

`--teacher` is a model of the same vocabulary that OPD matches; without it OPD is left out.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from common import save
from credit_variants import Setting, reports

from taspo_trl.cli import main
from taspo_trl.methods import METHODS
from taspo_trl.quickstart.policy import WarmStart, cached_folder, tiny_policy


FOLDER = Path("runs/credit_quality")
FIGURE = Path("docs/images/credit_quality.png")
SETTING = Setting(cached_folder(WarmStart()), FOLDER / "aligned" / "values.progress.jsonl")
PLAYED = f"--split {SETTING.split} --groups {SETTING.groups} --max-completion-length 8"
LABELLED = f"--labels progress values --label-turns {SETTING.label_turns} --continuations {SETTING.continuations}"
OURS = ("contrast", "contrast_probability")
CAPPED = ("capped", "contrast_probability_capped")
WITHOUT_TURNS = {
    "opd": "compares distributions over the vocabulary with another model's",
    "opsd": "compares distributions over the vocabulary",
    "grpo_opsd": "compares distributions over the vocabulary",
    "sdpo": "compares distributions over the vocabulary",
    "grpo_sdpo": "compares distributions over the vocabulary",
}
"""Their turns have no credit; of their gradients there are cosines."""


def measured(name: str, *methods: str, more: str = "", guidance: str = "aligned") -> dict:
    """The report of one call, over the same episodes as all others."""
    folder = FOLDER / name
    given = ["--model", str(SETTING.model), "--dataset-kwargs", '{"preset": "small"}']
    options = f"{PLAYED} {more} --guidance {guidance} --methods {' '.join(methods)} --output {folder}"
    if main(["credit", *given, *options.split()]) != 0:
        raise SystemExit(f"{name} did not finish; run it again to go on.")
    report = json.loads((folder / "credit.json").read_text())
    for method in report["methods"].values():
        for kind in report["labels"]:
            method[kind].pop("examples")  # texts of episodes, which `credit.json` keeps
    return report


def all_reports(teacher: Path | None) -> dict[str, dict]:
    methods = [name for name in METHODS if name not in WITHOUT_TURNS]
    found = {"aligned": measured("aligned", *methods, *OURS, *CAPPED, more=LABELLED)}
    for guidance in ("oracle_plan", "random_success"):
        folder = FOLDER / guidance
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(SETTING.progress, folder)
        found[guidance] = measured(guidance, "grpo", "taspo", *OURS, more=LABELLED, guidance=guidance)
    found["reading"] = measured("reading", "grpo", "taspo", more="--reading")
    return found | reports(SETTING, teacher)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teacher", type=Path, help="folder of the model that OPD matches")
    options = parser.parse_args()
    tiny_policy()  # makes it where it was never made
    measured_reports = all_reports(options.teacher)
    shutil.copy(FOLDER / "aligned" / "credit.png", FIGURE)
    facts = {"command": "python benchmarks/credit_quality.py", "without_turns": WITHOUT_TURNS}
    print(save("credit_quality", {**facts, **measured_reports}))
