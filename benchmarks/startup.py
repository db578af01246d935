"""How long it takes to start: `import taspo_trl`, `taspo --help`, and `taspo train` until the first episode begins.

    OMP_NUM_THREADS=1 python benchmarks/startup.py [--repeats 3]

Each in processes of its own, with bytecode written before; seconds of the processor, since a machine that is shared
stretches the clock, and those of the clock beside them. The last two rows are what the libraries alone take that
training cannot do without, and the same where bitsandbytes is not installed. `imports` says whose modules it loads:
each package's share of the time that goes into its own modules. Writes `benchmarks/results/startup.json`.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from common import save
from rich.console import Console
from rich.table import Table


ROOT = Path(__file__).resolve().parents[1]
console = Console()

FIRST_EPISODE = """
import os, sys
from taspo_trl.environments import HouseholdEnvironment
HouseholdEnvironment.reset = lambda self, **row: os._exit(0)
from taspo_trl.cli import main
main(["train", "--config", "examples/household_tiny.yaml", "--model_name_or_path", sys.argv[1],
      "--output_dir", sys.argv[2]])
"""


LIBRARIES = "from trl import GRPOTrainer, ModelConfig, TrlParser"
HIDDEN = "import sys; sys.modules['bitsandbytes'] = None; "


def shares_of_imports(command: list[str]) -> dict[str, float]:
    """Package -> share of the seconds in its own modules, the largest ten and all others."""
    words = [sys.executable, "-X", "importtime", *command]
    told = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stderr
    seconds: Counter[str] = Counter()
    for own, name in re.findall(r"^import time: +(\d+) \| +\d+ \| *([\w.]+)", told, re.MULTILINE):
        seconds[name.split(".")[0]] += int(own)
    largest = dict(seconds.most_common(10)) | {"taspo_trl": seconds["taspo_trl"]}
    shares = {name: round(value / seconds.total(), 3) for name, value in largest.items()}
    return shares | {"all others": round(1 - sum(shares.values()), 3)}


def make_model(folder: str) -> None:
    """A random policy over the household's phrases."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from taspo_trl.quickstart.tokenizer import make_tokenizer

    tok = make_tokenizer("small")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=len(tok), eos_token_id=tok.eos_token_id, pad_token_id=tok.pad_token_id, **sizes)
    LlamaForCausalLM(config).save_pretrained(folder)
    tok.save_pretrained(folder)


def measure(command: list[str], repeats: int) -> dict[str, Any]:
    """Median seconds of the processor and of the clock, after one run that writes bytecode."""
    found = []
    for _ in range(repeats + 1):
        before, started = os.times(), time.perf_counter()
        subprocess.run([sys.executable, *command], cwd=ROOT, check=True, capture_output=True)
        after = os.times()
        worked = after.children_user + after.children_system - before.children_user - before.children_system
        found.append((worked, time.perf_counter() - started))
    cpu, clock = (statistics.median(one) for one in zip(*found[1:], strict=True))
    return {"cpu_seconds": round(cpu, 3), "clock_seconds": round(clock, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory() as folder:
        make_model(f"{folder}/model")
        commands = {
            "python": ["-c", "pass"],
            "import taspo_trl": ["-c", "import taspo_trl"],
            "taspo --help": ["-m", "taspo_trl.cli", "--help"],
            "taspo train --help": ["-m", "taspo_trl.cli", "train", "--help"],
            "taspo methods": ["-m", "taspo_trl.cli", "methods"],
            "taspo train to the first episode": ["-c", FIRST_EPISODE, f"{folder}/model", f"{folder}/out"],
            "import of TRL's trainer alone": ["-c", LIBRARIES],
            "the same without bitsandbytes": ["-c", HIDDEN + LIBRARIES],
        }
        results: dict[str, Any] = {name: measure(command, repeats) for name, command in commands.items()}
        imports = shares_of_imports(commands["taspo train to the first episode"])
    table = Table("", "processor", "clock", title="Seconds to start")
    for name, entry in results.items():
        table.add_row(name, *(f"{value:.2f}" for value in entry.values()))
    console.print(table)
    results["imports"] = imports
    console.print("Whose modules: " + ", ".join(f"{name} {share:.1%}" for name, share in imports.items()))
    console.print(f"written to {save('startup', {'repeats': repeats, **results})}")


if __name__ == "__main__":
    main()
