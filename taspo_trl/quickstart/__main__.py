"""Command line of the quickstart."""

from __future__ import annotations

import argparse
import os
import warnings


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m taspo_trl.quickstart", description="Train a small policy on the household world with TASPO."
    )
    parser.add_argument("--model", default="tiny", help="tiny, smollm2, or a model id or folder (default: tiny)")
    parser.add_argument(
        "--output-dir", default=None, help="where everything is left (default: runs/quickstart-MODEL, or ...-fast)"
    )
    parser.add_argument(
        "--fast", action="store_true", help="a smoke run of the same path in about a minute, in a folder of its own"
    )
    parser.add_argument("--guidance", default="aligned", help="aligned, random_success, nearest_success, none, ...")
    parser.add_argument("--steps", type=int, default=None, help="training steps (default: what suits the model)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the training (default: 0)")
    options = parser.parse_args()
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    warnings.filterwarnings("ignore", category=FutureWarning)

    from .run import Quickstart, run

    name = options.model.rstrip("/").split("/")[-1]
    run(
        Quickstart(
            model=options.model,
            output_dir=options.output_dir or f"runs/quickstart-{name}{'-fast' if options.fast else ''}",
            fast=options.fast,
            guidance=options.guidance,
            num_steps=options.steps,
            seed=options.seed,
        )
    )


if __name__ == "__main__":
    main()
