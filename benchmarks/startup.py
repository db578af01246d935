"""How long it takes to start: `import taspo_trl`, `taspo --help`, and `taspo train` until the first episode begins.

    OMP_NUM_THREADS=1 python benchmarks/startup.py [--repeats 3]

Each in processes of its own, with bytecode written before; seconds of the processor, since a machine that is shared
stretches the clock, and those of the clock beside them. The last row is what the libraries alone take that training
cannot do without. Writes `benchmarks/results/startup.json`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
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
            "taspo train to the first episode": ["-c", FIRST_EPISODE, f"{folder}/model", f"{folder}/out"],
            "import of TRL's trainer alone": ["-c", "from trl import GRPOTrainer, ModelConfig, TrlParser"],
        }
        results = {name: measure(command, repeats) for name, command in commands.items()}
    table = Table("", "processor", "clock", title="Seconds to start")
    for name, entry in results.items():
        table.add_row(name, *(f"{value:.2f}" for value in entry.values()))
    console.print(table)
    episode, libraries = (results[name]["cpu_seconds"] for name in list(results)[-2:])
    results["share of the libraries"] = round(libraries / episode, 3)
    console.print(f"written to {save('startup', {'repeats': repeats, **results})}")


if __name__ == "__main__":
    main()
