"""`taspo analyze`: an analyzer over saved trajectories, before anyone trains with it."""

from __future__ import annotations

import argparse
from typing import Any

from ..training.model_folder import check_model_folder


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="taspo analyze",
        description="Write guidance for the trajectories of a run with an analyzer of your choice, and with a model "
        "also shifts and weights. What was asked once stays in the cache and costs nothing the next time.",
    )
    made.add_argument("trajectories", help="a run's output_dir, its _trajectories, or one of its files")
    made.add_argument(
        "--analyzer", help="LiteLLM's model name, e.g. deepseek/deepseek-chat (default: 'embedded', which is no LLM)"
    )
    made.add_argument("--api-base", help="root of the analyzer's API, e.g. http://localhost:8000/v1")
    made.add_argument("--budget-usd", type=float, help="stop asking after this much")
    made.add_argument("--budget-tokens", type=int, help="the same in tokens")
    made.add_argument("--requests-per-minute", type=int, help="pace of the requests")
    made.add_argument("--cache", default="auto", help="SQLite file of paid answers, or 'no' (default: user's cache)")
    made.add_argument("--workers", type=int, default=4, help="requests in flight (default: 4)")
    made.add_argument("--prompts", help="folder with extraction.txt and alignment.txt")
    made.add_argument("--max-evidence-items", type=int, default=12, help="evidence kept for a group (default: 12)")
    made.add_argument("--max-guidance-items", type=int, default=8, help="statements for a trajectory (default: 8)")
    made.add_argument("--max-guidance-tokens", type=int, default=256, help="tokens of a block (default: 256)")
    made.add_argument("--context-chars", type=int, default=12000, help="recorded text in one request (default: 12000)")
    made.add_argument(
        "--model", help="the policy that played: computes shifts and weights (needs save_trajectories=full)"
    )
    made.add_argument("--tokenizer", help="composes the guidance (default: the model's, else an estimate)")
    made.add_argument(
        "--allocation",
        choices=["action", "token"],
        help="TASPO's weights, by turn or token (default: the run's method)",
    )
    made.add_argument("-o", "--output", help="folder to write (default: beside what is read, NAME-analysis)")
    return made


def main(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)

    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from ..analyze import analyze
    from ..analyzer.prompts import load_prompts
    from ..credit import TokenWeights, TurnWeights

    if options.model:
        check_model_folder(options.model)
    prompts = load_prompts(options.prompts)
    analyzer = _analyzer(options)
    columns = (SpinnerColumn(), TextColumn("{task.completed} answers of the analyzer"), TimeElapsedColumn())
    try:
        with Progress(*columns, transient=True) as progress:
            bar = progress.add_task("", total=None)
            found = analyze(
                options.trajectories,
                analyzer=analyzer,
                output=options.output,
                model=options.model,
                tokenizer=options.tokenizer,
                prompts=prompts,
                max_evidence_items=options.max_evidence_items,
                max_guidance_items=options.max_guidance_items,
                max_guidance_tokens=options.max_guidance_tokens,
                context_chars=options.context_chars,
                workers=options.workers,
                credit={None: None, "action": TurnWeights(), "token": TokenWeights()}[options.allocation],
                on_reply=lambda request, reply: progress.advance(bar),
            )
    finally:
        if analyzer is not None:
            analyzer.close()
    Console().print(found.table())
    for path in found.files:
        print(path)
    return 0


def _analyzer(options: argparse.Namespace) -> Any:
    if options.analyzer in (None, "embedded"):
        return None
    from ..analyzer import LiteLLMAnalyzer

    return LiteLLMAnalyzer(
        options.analyzer,
        api_base=options.api_base,
        budget_usd=options.budget_usd,
        budget_tokens=options.budget_tokens,
        requests_per_minute=options.requests_per_minute,
        cache=None if options.cache == "no" else options.cache,
    )
