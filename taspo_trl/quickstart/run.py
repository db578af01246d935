"""The quickstart: a small policy on the household world, evaluated, trained with TASPO, and evaluated again.

`python -m taspo_trl.quickstart` builds (or loads) the policy, plays held-out tasks, trains through [`TASPOTrainer`],
plays the same tasks again, and leaves a summary with a paired test, metrics, trajectories and plots in one folder.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ..evaluation.results import EvaluationResult, compare
from ..files import replacing, write_text
from ..redaction import without_secrets
from ..training.earlier_run import set_aside
from .policy import WarmStart, tiny_policy, warm_started_lora


@dataclass(frozen=True)
class Quickstart:
    """What the quickstart runs.

    Args:
        model (`str`, *optional*, defaults to `"tiny"`):
            `"tiny"`: a Llama of 0.7 M parameters. `"smollm2"`: SmolLM2-135M-Instruct from its PyPI wheel, with LoRA.
            Anything else: a model id or folder, with LoRA.
        output_dir (`str`, *optional*, defaults to `"runs/quickstart"`):
            Where everything is left.
        fast (`bool`, *optional*, defaults to `False`):
            A smoke run of the same path in about a minute; its numbers mean nothing.
        guidance (`str`, *optional*, defaults to `"aligned"`):
            As in [`~taspo_trl.TASPOConfig`]; `"none"` runs plain GRPO.
        num_steps (`int`, *optional*):
            Training steps; None takes what suits the model.
        num_tasks (`int`, *optional*):
            Held-out tasks of each split; None takes what suits the model.
        warm_start (`WarmStart`, *optional*):
            How the tiny policy is made; None takes the recipe.
        seed (`int`, *optional*, defaults to `0`):
            Of the training; the warm start has its own.
    """

    model: str = "tiny"
    output_dir: str = "runs/quickstart"
    fast: bool = False
    guidance: str = "aligned"
    num_steps: int | None = None
    num_tasks: int | None = None
    warm_start: WarmStart | None = None
    seed: int = 0


def run(settings: Quickstart | None = None, console: Console | None = None) -> dict[str, Any]:
    """Run the quickstart; returns the summary that is also written to `summary.json`."""
    settings = settings or Quickstart()
    console = console or Console()
    _prepare_torch(settings)
    started = time.perf_counter()
    seconds: dict[str, float] = {}

    console.rule("1. The policy")
    model, tokenizer, peft_config = _policy(settings, console)
    seconds["policy"] = time.perf_counter() - started

    set_aside(settings.output_dir, before=time.time())
    trainer = _trainer(settings, model, tokenizer, peft_config)
    console.rule("2. Held-out tasks before training")
    before, sampled_before = _evaluations(trainer), _sampled(trainer)
    seconds["evaluation before"] = time.perf_counter() - started - sum(seconds.values())

    console.rule(f"3. Training: {trainer.args.max_steps} steps of TASPO (guidance: {settings.guidance})")
    trainer.train()
    seconds["training"] = time.perf_counter() - started - sum(seconds.values())

    console.rule("4. The same tasks after training")
    after, sampled_after = _evaluations(trainer), _sampled(trainer)
    trainer.save_model()
    trainer.save_state()
    seconds["evaluation after"] = time.perf_counter() - started - sum(seconds.values())
    trainer.close()

    folder = Path(settings.output_dir)
    summary = _summary(settings, trainer, before, after, seconds)
    summary["sampled"] = {
        split: {"before": sampled_before[split].overall().value, "after": sampled_after[split].overall().value}
        for split in sampled_before
    }
    summary["credit"] = _credit(folder)
    summary["stages"] = stages_lines(trainer.state.log_history)
    _write(folder, summary, trainer, before, after)
    _print_tables(console, summary, before, after)
    console.print(f"Finished in {sum(seconds.values()):.0f} s. Summary, plots and trajectories: [bold]{folder}[/bold]")
    console.print(f"To look at it: [bold]{Path(sys.executable).parent / 'taspo'} view --open {folder}[/bold]")
    return summary


def _prepare_torch(settings: Quickstart) -> None:
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()
    if settings.model == "tiny":
        # Kernels this small gain nothing from a second thread and lose much where cores are shared; and with one
        # thread sums have one order, so that machines of a kind agree on every number.
        torch.set_num_threads(1)


def _policy(settings: Quickstart, console: Console) -> tuple[Any, Any, Any]:
    from tqdm.auto import tqdm

    warm_start = settings.warm_start or WarmStart()
    if settings.fast:
        warm_start = replace(warm_start, num_steps=300, num_turns=9600)
    if settings.model == "tiny":
        with tqdm(total=warm_start.num_steps, desc="warm start", unit="step", disable=None) as bar:
            model, tokenizer = tiny_policy(warm_start, on_step=lambda step, loss: _advance(bar, loss))
        return model, tokenizer, None
    from peft import LoraConfig

    is_known = settings.model == "smollm2"
    if is_known:
        from .smollm2 import smollm2_folder

        name = str(smollm2_folder())
    else:
        name = settings.model
    steps = (10 if settings.fast else 200) if is_known else 0
    with tqdm(total=steps, desc="warm start", unit="step", disable=None if steps else True) as bar:
        model, tokenizer = warm_started_lora(
            name,
            replace(warm_start, num_steps=steps, num_turns=12 * steps, batch_size=12, learning_rate=1.5e-3),
            on_step=lambda step, loss: _advance(bar, loss),
        )
    if not is_known:
        console.print(f"{name} is taken as it is: no warm start.")
    peft_config = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    return model, tokenizer, peft_config


def _advance(bar: Any, loss: float) -> None:
    bar.update()
    bar.set_postfix(loss=f"{loss:.3f}", refresh=False)


def _trainer(settings: Quickstart, model: Any, tokenizer: Any, peft_config: Any) -> Any:
    import torch

    from .. import TASPOConfig, TASPOTrainer
    from ..config import has_bf16_cpu, has_bf16_gpu
    from ..environments import HouseholdEnvironment

    is_tiny = settings.model == "tiny"
    num_steps = settings.num_steps or (4 if settings.fast else 60 if is_tiny else 8)
    tasks_per_step = 8 if is_tiny else 4
    on_cpu = not torch.cuda.is_available()
    args = TASPOConfig(
        output_dir=settings.output_dir,
        seed=settings.seed,
        max_steps=num_steps,
        num_generations=8,
        per_device_train_batch_size=8 * tasks_per_step,
        max_completion_length=8 if is_tiny else 24,
        learning_rate=2e-4 if is_tiny else 1e-4,
        lr_scheduler_type="constant",
        adam_beta2=0.95,
        # Where most groups fail, as those of an untrained model, the penalty alone would make their advantages.
        invalid_action_penalty=0.2 if is_tiny else 0.0,
        guidance=settings.guidance,
        micro_batch_tokens=8192 if is_tiny else 4096,
        per_device_eval_batch_size=160 if is_tiny else 48,
        gradient_checkpointing=False,
        use_cpu=on_cpu,
        bf16=has_bf16_cpu() if on_cpu else has_bf16_gpu(),
        logging_steps=1,
        save_strategy="no",
        report_to="none",
    )
    size = settings.num_tasks or (24 if settings.fast else None if is_tiny else 66)
    return TASPOTrainer(
        model=model,
        args=args,
        processing_class=tokenizer,
        train_dataset=HouseholdEnvironment.dataset("train", preset="small"),
        eval_dataset={
            split: HouseholdEnvironment.dataset(split, preset="small", size=size)
            for split in ("valid_seen", "valid_unseen")
        },
        environment_factory=HouseholdEnvironment,
        peft_config=peft_config,
    )


def _evaluations(trainer: Any, kind: str = "") -> dict[str, EvaluationResult]:
    results = {}
    for split, data in trainer.eval_dataset.items():
        trainer.evaluate(data, metric_key_prefix=f"eval_{kind}{split}")
        results[split] = trainer.last_evaluation
    return results


def _sampled(trainer: Any) -> dict[str, EvaluationResult]:
    """The same tasks with replies drawn as in training: a policy can become sure of itself without knowing more."""
    greedy, trainer.args.eval_temperature = trainer.args.eval_temperature, 1.0
    try:
        return _evaluations(trainer, "sampled_")
    finally:
        trainer.args.eval_temperature = greedy


def _credit(folder: Path) -> dict[str, Any]:
    """How near the recorded credit of the last batches comes to the oracle's progress; empty where none was moved."""
    from ..environments import HouseholdEnvironment
    from ..records import read_records
    from ..truth.assess import recorded_report

    records = list(read_records(folder / "_trajectories"))
    last = max(record.rollout for record in records) - 9
    report = recorded_report(
        [record for record in records if record.rollout >= last], {None: HouseholdEnvironment}, num_resamples=500
    )
    name = next(name for name in report["methods"])
    found = report["methods"][name]
    return {
        "method": name,
        "turns": report["turns"],
        "batches": len({record.rollout for record in records if record.rollout >= last}),
        **{part: found["progress"][part] for part in ("all", "successes", "failures")},
        "top_weight_refused_in_successes": found["top_weight_refused_in_successes"],
        "refused_share_in_successes": found["refused_share_in_successes"],
    }


def _summary(
    settings: Quickstart,
    trainer: Any,
    before: dict[str, EvaluationResult],
    after: dict[str, EvaluationResult],
    seconds: dict[str, float],
) -> dict[str, Any]:
    import torch
    import transformers
    import trl

    from .. import __version__

    splits = {}
    for split in before:
        paired = compare(before[split], after[split])
        splits[split] = {
            "num_tasks": paired.num_pairs,
            "before": before[split].overall().value,
            "after": after[split].overall().value,
            "solved_only_before": paired.only_first,
            "solved_only_after": paired.only_second,
            "p_value": paired.p_value,
            "families": {
                family: {"before": rate.value, "after": after[split].families()[family].value, "tasks": rate.num_plays}
                for family, rate in before[split].families().items()
            },
        }
    return {
        "model": settings.model,
        "fast": settings.fast,
        "guidance": settings.guidance,
        "seed": settings.seed,
        "steps": trainer.state.global_step,
        "parameters": sum(p.numel() for p in trainer.model.parameters()),
        "evaluation": {"temperature": trainer.args.eval_temperature, "seed": trainer.args.eval_seed},
        "splits": splits,
        "seconds": {name: round(value, 1) for name, value in seconds.items()},
        "versions": {
            "taspo_trl": __version__,
            "trl": trl.__version__,
            "transformers": transformers.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "machine": {"processor": platform.processor() or platform.machine(), "threads": torch.get_num_threads()},
    }


def _print_tables(
    console: Console, summary: dict[str, Any], before: dict[str, EvaluationResult], after: dict[str, EvaluationResult]
) -> None:
    if summary["fast"]:
        console.print(
            "A smoke run: every stage works here. Its policy is hardly warm-started and solves next to nothing,"
        )
        console.print("so that there are no rates to show; the full run (without `--fast`, `FAST=1`) has them.")
        for line in summary["stages"]:
            console.print(f"  {line}", highlight=False)
        return
    for split in before:
        console.print(_table(split, before[split], after[split]))
    for line in _lines(summary):
        console.print(line, highlight=False)


def stages_lines(history: list[dict[str, Any]]) -> list[str]:
    """What the stages of a run did, one line each, from its log."""
    entries = [entry for entry in history if "turns/mean" in entry]

    def mean(name: str) -> float:
        values = [entry.get(name) or 0.0 for entry in entries]  # None: there was nothing to count
        return sum(values) / max(1, len(values))

    weights = [
        entry[name] for entry in entries for name in ("credit/weight_min", "credit/weight_max") if name in entry
    ]
    span = f"{min(weights):.2f} to {max(weights):.2f}" if weights else "all 1"
    return [
        f"played:   {len(entries)} batches, {mean('turns/mean'):.1f} turns an episode, "
        f"{mean('actions/invalid_share'):.0%} of the actions refused",
        f"guided:   {mean('guidance/coverage'):.0%} of the episodes with an advantage, "
        f"{mean('guidance/statements'):.1f} statements for each",
        f"weighed:  {mean('credit/weighted_share'):.0%} of the episodes, weights {span}",
        f"updated:  {len(entries)} steps, gradient norm {mean('grad_norm'):.2g}",
    ]


def _lines(summary: dict[str, Any]) -> list[str]:
    """Sampled success, and the credit report in three lines."""
    sampled = ", ".join(
        f"{one['before']:.1%} before and {one['after']:.1%} after ({split})"
        for split, one in summary["sampled"].items()
    )
    lines = [
        f"Sampled as in training (temperature 1): {sampled}. Greedy success also rises when a policy only sharpens."
    ]
    credit = summary["credit"]
    value, low, high = credit["all"]["auc"]
    if summary["guidance"] == "none" or value is None:
        return lines

    def of(part: str) -> str:
        auc = credit[part]["auc"][0]
        return "-" if auc is None else f"{auc:.3f}"

    interval = f" [{low:.3f}, {high:.3f}]" if low is not None else ""
    lines += [
        f"Credit against the oracle's plan, {credit['turns']} turns of the last {credit['batches']} batches: AUC "
        f"{value:.3f}{interval}, where 0.5 is a coin",
        f"  in successes {of('successes')}, in failures {of('failures')}; weights move by "
        f"{credit['all']['dose'][0]:.3f} (root mean square)",
    ]
    if credit["top_weight_refused_in_successes"] is not None:
        lines.append(
            "  the top weight of a success lies on a refused action in "
            f"{credit['top_weight_refused_in_successes']:.1%}; of its actions "
            f"{credit['refused_share_in_successes']:.1%} were refused"
        )
    return lines


def _table(split: str, before: EvaluationResult, after: EvaluationResult) -> Table:
    paired = compare(before, after)
    table = Table(title=f"Success on {paired.num_pairs} held-out tasks ({split}), each played once, greedy")
    for column in ("family", "tasks", "before", "after", "95 % interval after", "p (McNemar, exact)"):
        table.add_column(column, justify="left" if column == "family" else "right")
    for family, rate in before.families().items():
        later = after.families()[family]
        one = compare(before, after, family)
        table.add_row(
            family,
            str(rate.num_plays),
            f"{rate.value:.1%}",
            f"{later.value:.1%}",
            f"{later.low:.1%} – {later.high:.1%}",
            f"{one.p_value:.2g}",
        )
    later = after.overall()
    table.add_section()
    table.add_row(
        "all",
        str(later.num_plays),
        f"{before.overall().value:.1%}",
        f"{later.value:.1%}",
        f"{later.low:.1%} – {later.high:.1%}",
        f"{paired.p_value:.2g}",
        style="bold",
    )
    return table


def _write(
    folder: Path,
    summary: dict[str, Any],
    trainer: Any,
    before: dict[str, EvaluationResult],
    after: dict[str, EvaluationResult],
) -> None:
    from .. import plots
    from ..records import read_records

    write_text(folder / "summary.json", json.dumps(without_secrets(summary), indent=2) + "\n")
    write_text(folder / "metrics.json", json.dumps(trainer.state.log_history, indent=1) + "\n")
    with replacing(folder / "summary.txt") as file:
        _print_tables(Console(file=file, width=110), summary, before, after)
    plots.learning_curves(trainer.state.log_history).savefig(folder / "learning_curves.png")
    plots.success_by_family(
        {
            f"{split}, {name}": result[split]
            for split in before
            for name, result in (("before", before), ("after", after))
        }
    ).savefig(folder / "success_by_family.png")
    plots.credit_weights_figure(read_records(folder / "_trajectories")).savefig(folder / "credit_weights.png")
