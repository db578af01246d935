"""The numbers of two finished quickstarts, TASPO's and GRPO's, as one file of results.

make quickstart
python -m taspo_trl.quickstart --guidance none --output-dir runs/quickstart-grpo
python benchmarks/quickstart.py runs/quickstart-tiny runs/quickstart-grpo
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from common import RESULTS

from taspo_trl.files import write_text


FILE = RESULTS / "quickstart.json"
PAIRED = ("model", "fast", "seed", "steps", "parameters", "evaluation", "versions")
"""What two runs must share to stand beside each other."""
OWN = ("guidance", "splits", "sampled", "seconds")


def joined(taspo: dict[str, Any], grpo: dict[str, Any]) -> dict[str, Any]:
    """Both summaries; they started from one policy.

    Raises:
        ValueError: they are no pair.
    """
    other = [name for name in PAIRED if taspo[name] != grpo[name]]
    before = [{split: rates["before"] for split, rates in one["splits"].items()} for one in (taspo, grpo)]
    if before[0] != before[1]:
        other.append("success before training")
    if (taspo["guidance"], grpo["guidance"]) != ("aligned", "none"):
        other.append("guidance: 'aligned' first, 'none' second")
    if other:
        raise ValueError(f"The two runs are no pair: {', '.join(other)}.")
    return {"command": "make quickstart", **taspo, "grpo": {name: grpo[name] for name in OWN}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("taspo", type=Path, help="folder of `make quickstart`")
    parser.add_argument("grpo", type=Path, help="folder of the same with `--guidance none`")
    parser.add_argument("--note", default="", help="what else the machine did, since the seconds depend on it")
    options = parser.parse_args()
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (options.taspo, options.grpo)]
    found = joined(*summaries)
    if options.note:
        found["note"] = options.note
    kept = json.loads(FILE.read_text()).get("seconds_of_12_steps_beside_153bd1b") if FILE.exists() else None
    if kept is not None:
        found["seconds_of_12_steps_beside_153bd1b"] = kept
    write_text(FILE, json.dumps(found, indent=2) + "\n")
    for split, rates in found["splits"].items():
        print(f"{split}: greedy {rates['before']:.1%} -> TASPO {rates['after']:.1%}", end="")
        print(f", GRPO {found['grpo']['splits'][split]['after']:.1%}; sampled ", end="")
        sampled = [one["sampled"][split] for one in (found, found["grpo"])]
        print(f"{sampled[0]['before']:.1%} -> {sampled[0]['after']:.1%}, {sampled[1]['after']:.1%}")


if __name__ == "__main__":
    main()
