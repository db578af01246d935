"""`taspo doctor`'s estimates beside a small run: peak memory, and what an analyzer is asked and answers.

python benchmarks/doctor.py runs/quickstart-tiny

Trains the household recipe for two steps in processes of their own on a CPU, with a local endpoint that answers as
the embedded analyzer does and counts tokens with cl100k, and writes `benchmarks/results/doctor.json`. Memory is the
peak of the process's resident set over what it had with everything imported and no model; the estimate is made from
the recipe's limits, and once more from the means of that very run. `tensors_mib` is the most that torch's profiler
sees allocated at a time in scoring and in the update, of another run, whose resident set says nothing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "examples" / "household_tiny.yaml"
MICRO_BATCHES = (4096, 32768)
STEPS = 2
MIB = 2**20


def measure(arguments: list[str]) -> None:
    """In a process of its own: train, and print what its resident set grew by."""
    import litellm  # noqa: F401  # what is imported late would count as the training's
    import pandas  # noqa: F401
    import torch

    import taspo_trl.trainer  # noqa: F401
    from taspo_trl.cli import main

    torch.ones(512, 512) @ torch.ones(512, 512)  # the thread pool and its buffers
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    code = main(["train", *arguments])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"code": code, "before": before, "peak": peak}))


def profile_tensors(arguments: list[str]) -> None:
    """In a process of its own: train a step, and print the most bytes of tensors that scoring and update allocate."""
    from torch.profiler import ProfilerActivity, profile

    import taspo_trl.trainer
    from taspo_trl.cli import main
    from taspo_trl.training.passes import PolicyPasses

    found: dict[str, int] = {}

    def profiled(stage: str, function: Any) -> Any:
        def call(*args: Any, **keywords: Any) -> Any:
            with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
                value = function(*args, **keywords)
            events = seen.profiler.kineto_results.events()
            held = itertools.accumulate(event.nbytes() for event in events if event.name() == "[memory]")
            found[stage] = max(found.get(stage, 0), *held, 0)
            return value

        return call

    PolicyPasses.score = profiled("scoring", PolicyPasses.score)
    trainer = taspo_trl.trainer.TASPOTrainer
    trainer._update = profiled("update", trainer._update)
    main(["train", *arguments, "--max_steps", "1"])
    print(json.dumps(found))


def profiled_stages(recipe: list[str]) -> dict[str, float]:
    """What [`profile_tensors`] prints, in MiB."""
    words = [sys.executable, __file__, "--profile", *recipe]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return {stage: size / MIB for stage, size in json.loads(done.stdout.splitlines()[-1]).items()}


def trained(recipe: list[str]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, __file__, "--measure", *recipe], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def estimated(recipe: list[str], *more: str) -> dict[str, Any]:
    """What `taspo doctor --json` says."""
    words = [sys.executable, "-m", "taspo_trl.cli", "doctor", "--json", *more, *recipe]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=False)
    return json.loads(done.stdout)["estimate"]


def logged(folder: str) -> list[dict[str, float]]:
    content = json.loads(Path(folder, "trainer_state.json").read_text())
    return [entry for entry in content["log_history"] if "turns/mean" in entry]


def bench(model: str, url: str) -> dict[str, Any]:
    memory, analyzer = [], []
    for tokens in MICRO_BATCHES:
        with tempfile.TemporaryDirectory() as folder:
            recipe = [
                "--config", str(CONFIG), "--model_name_or_path", model, "--output_dir", folder, "--max_steps",
                str(STEPS), "--micro_batch_tokens", str(tokens), "--eval_strategy", "no", "--bf16", "false",
                "--analyzer_model", "hosted_vllm/local", "--analyzer_api_base", url, "--analyzer_cache", "no",
            ]  # fmt: skip
            found = trained(recipe)
            entries = logged(folder)
            limits, means = estimated(recipe), estimated(recipe, "--from-run", folder)
            tensors = profiled_stages(recipe)
        grown = (found["peak"] - found["before"]) / MIB
        row: dict[str, Any] = {
            "micro_batch_tokens": tokens,
            "measured_mib": grown,
            "imports_mib": found["before"] / MIB,
        }
        row["tensors_mib"] = tensors
        for name, one in (("limits", limits), ("from_run", means)):
            row[f"estimate_{name}_mib"] = [one["memory_bytes"][end] / MIB for end in ("peak", "most")]
            row[f"stages_{name}_mib"] = {k: v / MIB for k, v in one["memory_bytes"].items()}
        memory.append(row)
        names = ("analyzer/calls", "analyzer/tokens_prompt", "analyzer/tokens_completion")
        measured = {name: sum(entry.get(name, 0.0) for entry in entries) / len(entries) for name in names}
        analyzer.append(
            {
                "measured": measured,
                "groups_with_contrast": 1 - sum(entry["frac_reward_zero_std"] for entry in entries) / len(entries),
                **{
                    f"estimate_{name}": {k: one["batch"][k] for k in one["batch"] if k.startswith("analyzer_")}
                    for name, one in (("limits", limits), ("from_run", means))
                },
            }
        )
    return {"steps": STEPS, "memory": memory, "analyzer": analyzer}


def main() -> None:
    if "--measure" in sys.argv[1:2]:
        measure(sys.argv[2:])
        return
    if "--profile" in sys.argv[1:2]:
        profile_tensors(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="runs/quickstart-tiny", help="the quickstart's policy")
    options = parser.parse_args()
    from analyzer_endpoint import endpoint
    from common import save

    with endpoint("0", "tokens") as url:
        results = bench(options.model, url)
    table = Table(title="Peak memory over the imports, MiB")
    for name in ("micro_batch_tokens", "measured", "estimate, limits", "estimate, from the run"):
        table.add_column(name, justify="right")
    for row in results["memory"]:
        ranges = ("{:.0f} to {:.0f}".format(*row[f"estimate_{name}_mib"]) for name in ("limits", "from_run"))
        table.add_row(str(row["micro_batch_tokens"]), f"{row['measured_mib']:.0f}", *ranges)
    Console().print(table)
    Console().print_json(data=results["analyzer"])
    print(save("doctor", results))


if __name__ == "__main__":
    main()
