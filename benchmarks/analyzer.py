"""What an analyzer behind LiteLLM costs: time that a training step waits for it, and calls and tokens per group.

    OMP_NUM_THREADS=1 python benchmarks/analyzer.py [--only visible|calls|small-model]

- visible: training steps with a local endpoint that answers at once and one that takes 2 s a call. Hideable is the
  smaller of the analyzer's wall time at 4 workers and the step's other work from the first eligible group's end on
  (rollout, plain log-probabilities); the table says which share of it stayed visible.
- calls: calls and tokens for one group of 4, 8 and 16 household trajectories, half of them successes.
- small-model (only when asked for; needs what `make quickstart MODEL=smollm2` installs): what becomes of the answers
  of SmolLM2-135M, a model far too weak for the job, on the same groups.

The endpoint runs in a process of its own and answers as the embedded analyzer does, or with SmolLM2. Prints tables
and writes `benchmarks/results/analyzer.json`.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import random
import statistics
import tempfile
import time
from typing import Any

from analyzer_endpoint import endpoint
from common import RESULTS, save
from rich.console import Console
from rich.table import Table


DELAYS = (0.0, 2.0)
BATCHES = ((8, 8), (16, 8))  # tasks, generations; the paper's is the second
GROUP_SIZES = (4, 8, 16)
WORKERS = 4


# ---- visible time --------------------------------------------------------------------------------------------------

ACTIONS = [f"go to place {k}" for k in range(60)]


def make_tokenizer() -> Any:
    """Every action is one token, so that a random policy acts: what it does is not measured here."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<|pad|>", "<|unknown|>", "<|end|>"]
    words = [*(f"<action>{action}</action>" for action in ACTIONS), "go", "to", "place", *map(str, range(60))]
    words += [*"[].,:;-", *["Privileged", "Guidance", "End", "You", "are", "at", "and", "see", "thing", "find", "the"]]
    tokenizer = Tokenizer(
        models.WordLevel({word: k for k, word in enumerate(dict.fromkeys([*special, *words]))}, "<|unknown|>")
    )
    pattern = Regex(r"<action>[^<]*</action>|<\|\w+\|>|\w+|[^\w\s]")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(pattern, "removed", invert=True)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|pad|>",
        unk_token="<|unknown|>",
        eos_token="<|end|>",
        padding_side="left",
        chat_template="{% for m in messages %}{{ m['content'] }}<|end|>{% endfor %}",
    )


def make_environment() -> type:
    """Episodes of 4 to 24 turns of 0.2 s, as many for a group; every other one succeeds, whatever was done."""
    from taspo_trl.environments import ResetResult, StepResult, TextEnvironment

    class Wander(TextEnvironment):
        max_turns = 24
        num_plays = 0

        def reset(self, *, seed: int, **row: Any) -> ResetResult:
            Wander.num_plays += 1
            self.is_lucky = Wander.num_plays % 2 == 0
            self.left = random.Random(seed).randint(4, 24)
            return ResetResult("You are at place 0.", {"task": "find the thing at place 7"})

        def step(self, action: str) -> StepResult:
            time.sleep(0.2)
            self.left -= 1
            is_over = self.left == 0
            seen = " and ".join(f"thing {k} at place {k}" for k in range(12))
            info = {"success": is_over and self.is_lucky}
            return StepResult(f"You {action} and see {seen}.", float(is_over and self.is_lucky), is_over, False, info)

        def close(self) -> None:
            pass

    return Wander


def make_trainer(url: str, folder: str, num_tasks: int, num_generations: int) -> Any:
    from datasets import Dataset
    from transformers import LlamaConfig, LlamaForCausalLM

    from taspo_trl import TASPOConfig, TASPOTrainer
    from taspo_trl.analyzer import LiteLLMAnalyzer

    tokenizer = make_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=1024,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    args = TASPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        report_to="none",
        disable_tqdm=True,
        num_generations=num_generations,
        per_device_train_batch_size=num_tasks * num_generations // 2,
        steps_per_generation=2,  # two updates from a batch: log pi_old is computed while the analyzer works
        max_steps=4,
        max_completion_length=16,
        save_strategy="no",
        save_trajectories="no",
        logging_steps=1,
        gradient_checkpointing=False,
        analyzer_workers=WORKERS,
    )
    return TASPOTrainer(
        LlamaForCausalLM(config),
        args=args,
        train_dataset=Dataset.from_list([{"task_id": str(k)} for k in range(64)]),
        processing_class=tokenizer,
        environment_factory=make_environment(),
        analyzer=LiteLLMAnalyzer("hosted_vllm/local", api_base=url, cache=None),
    )


def measure_visible(url: str, num_tasks: int, num_generations: int) -> list[dict[str, float]]:
    """One row for each rollout batch but the first, which also starts LiteLLM."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(url, folder, num_tasks, num_generations)
        stage = trainer.experience_maker.guidance
        submit, collect = stage.submit, stage.collect
        groups: list[list[tuple[float, Any]]] = [[]]
        visible: list[tuple[float, float]] = []  # (time when the step began to wait, seconds)

        def noted_submit(group: Any) -> None:
            groups[-1].append((time.monotonic(), group))
            submit(group)

        def noted_collect() -> Any:
            started = time.monotonic()
            batch = collect()
            visible.append((started, batch.visible_seconds))
            groups.append([])
            return batch

        stage.submit, stage.collect = noted_submit, noted_collect
        trainer.train()
        stage.submit, stage.collect = submit, collect
        rows = []
        for submitted, (waited_from, seconds) in list(zip(groups, visible, strict=False))[1:]:
            alone = time.monotonic()
            for _, group in submitted:
                stage.submit(group)
            batch = stage.collect()
            alone = time.monotonic() - alone
            overlap = waited_from - submitted[0][0]  # every group here is eligible
            hideable = min(alone, overlap)
            calls = len(batch.extractions) + sum(bool(one) for one in batch.guidance.values())
            rows.append(
                {
                    "calls": float(calls),
                    "analyzer_alone": alone,
                    "overlap": overlap,
                    "hideable": hideable,
                    "visible": seconds,
                    "visible_share": (seconds - (alone - hideable)) / hideable,
                }
            )
        trainer.close()
    return rows


def report_visible(console: Console) -> list[dict[str, Any]]:
    table = Table(title=f"Analyzer time in a training step, {WORKERS} workers (medians, seconds)")
    columns = ("calls", "analyzer_alone", "overlap", "hideable", "visible", "visible_share")
    for name in ("tasks x generations", "endpoint", *columns):
        table.add_column(name, justify="right")
    results = []
    for num_tasks, num_generations in BATCHES:
        for delay in DELAYS:
            with endpoint(str(delay)) as url:
                rows = measure_visible(url, num_tasks, num_generations)
            medians = {name: statistics.median(row[name] for row in rows) for name in columns}
            results.append({"tasks": num_tasks, "generations": num_generations, "delay": delay, **medians})
            shown = [f"{medians[name]:.2f}" for name in columns[1:-1]]
            table.add_row(
                f"{num_tasks} x {num_generations}",
                f"{delay:g} s",
                f"{medians['calls']:.0f}",
                *shown,
                f"{100 * medians['visible_share']:.1f} %",
            )
    console.print(table)
    return results


# ---- calls and tokens ----------------------------------------------------------------------------------------------


def household_group(index: int, size: int) -> Any:
    """Half of the members follow the plan, the others take random admissible actions."""
    from taspo_trl.environments.household import HouseholdEnvironment, solve
    from taspo_trl.types import StopReason, Trajectory, TrajectoryGroup, Turn

    row = {"preset": "small", "split": "train", "index": index}
    plan, members = solve(row), []
    for k in range(size):
        environment, rng, turns = HouseholdEnvironment("small"), random.Random(1000 * index + k), []
        start = environment.reset(seed=0, **row)
        observation, info, is_over = start.observation, start.info, False
        # Successes look around before they follow the plan, so that not all are the same.
        actions = iter([*["look"] * rng.randint(0, 2), *plan]) if k % 2 == 0 else None
        while not is_over and len(turns) < 20:
            action = next(actions, "look") if actions is not None else rng.choice(info["admissible_actions"])
            result = environment.step(action)
            turns.append(
                Turn(
                    (1, 2, 3, 4),
                    (5,),
                    "",
                    action,
                    (True,),
                    observation,
                    result.observation,
                    bool(result.info["valid"]),
                    splice_index=3,
                )
            )
            observation, info, is_over = result.observation, result.info, result.terminated or result.truncated
        success = info.get("success") is True
        members.append(
            Trajectory(
                uid=f"g{index}-k{k}",
                task=row,
                task_text=start.info["task"],
                family=start.info.get("family", "all"),
                environment=None,
                generation_idx=k,
                turns=tuple(turns),
                stop_reason=StopReason.SOLVED if success else StopReason.FAILED,
                success=success,
                opening=(),
                environment_reward=float(success),
                reward=float(success),
            )
        )
    return TrajectoryGroup(f"g{index}", tuple(members))


def report_calls(console: Console, num_groups: int = 12) -> list[dict[str, Any]]:
    from taspo_trl.analyze import ApproximateTokenizer
    from taspo_trl.analyzer import LiteLLMAnalyzer
    from taspo_trl.guidance.aligned import AlignedConstruction
    from taspo_trl.guidance.base import GuidanceContext
    from taspo_trl.guidance.block import Composer
    from taspo_trl.guidance.stage import GuidanceStage

    table = Table(title="One household group (means)")
    columns = ("successes", "calls", "prompt_tokens", "completion_tokens", "prompt_tokens_per_trajectory", "coverage")
    for name in ("group size", *columns):
        table.add_column(name.replace("_", " "), justify="right")
    results = []
    with endpoint("0") as url:
        for size in GROUP_SIZES:
            analyzer = LiteLLMAnalyzer("hosted_vllm/local", api_base=url, cache=None)
            construction = AlignedConstruction(Composer(ApproximateTokenizer()))
            stage = GuidanceStage(construction, WORKERS, context=GuidanceContext(analyzer))
            groups = [household_group(index, size) for index in range(num_groups)]
            for group in groups:
                stage.submit(group)
            batch = stage.collect()
            totals = analyzer.totals
            stage.close()
            analyzer.close()
            result = {
                "successes": statistics.mean(sum(t.success for t in group.trajectories) for group in groups),
                "calls": totals.calls / num_groups,
                "prompt_tokens": totals.prompt_tokens / num_groups,
                "completion_tokens": totals.completion_tokens / num_groups,
                "prompt_tokens_per_trajectory": totals.prompt_tokens / num_groups / size,
                "coverage": sum(map(bool, batch.guidance.values())) / (num_groups * size),
            }
            results.append({"group_size": size, **result})
            table.add_row(
                str(size),
                *(f"{result[name]:.2f}" if result[name] < 100 else f"{result[name]:,.0f}" for name in columns),
            )
    console.print(table)
    return results


# ---- a model that is too weak --------------------------------------------------------------------------------------


def report_small_model(console: Console, num_groups: int = 2) -> dict[str, float]:
    from taspo_trl.analyze import ApproximateTokenizer
    from taspo_trl.analyzer import LiteLLMAnalyzer
    from taspo_trl.guidance.aligned import AlignedConstruction
    from taspo_trl.guidance.base import GuidanceContext
    from taspo_trl.guidance.block import Composer
    from taspo_trl.guidance.stage import GuidanceStage
    from taspo_trl.reporting.metrics import analyzer_metrics, guidance_metrics

    with endpoint("small-model") as url:
        analyzer = LiteLLMAnalyzer("hosted_vllm/local", api_base=url, cache=None, timeout=600.0)
        construction = AlignedConstruction(
            Composer(ApproximateTokenizer()),
            max_chars=2000,  # its window is 8,192 tokens, and this is a CPU
        )
        stage = GuidanceStage(construction, 1, context=GuidanceContext(analyzer))
        groups = [household_group(index, 4) for index in range(num_groups)]
        for group in groups:
            stage.submit(group)
        batch = stage.collect()
        stage.close()
        analyzer.close()
    trajectories = [t for group in groups for t in group.trajectories]
    metrics = guidance_metrics(batch.guidance, batch.extractions, trajectories, [1.0] * len(trajectories))
    metrics |= analyzer_metrics(batch.calls)
    table = Table(title="SmolLM2-135M as the analyzer")
    table.add_column("")
    table.add_column("value", justify="right")
    for name, value in metrics.items():
        table.add_row(name, f"{value:.4g}")
    console.print(table)
    return {name: value for name, value in metrics.items() if not math.isnan(value)}  # JSON has no NaN


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["visible", "calls", "small-model"])
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    console = Console()
    path = RESULTS / "analyzer.json"
    results = json.loads(path.read_text()) if path.exists() else {}  # a part that is not run keeps its last numbers
    results.pop("machine", None)
    if options.only in (None, "calls"):
        results["calls"] = report_calls(console)
    if options.only in (None, "visible"):
        results["visible"] = report_visible(console)
    if options.only == "small-model":
        results["small-model"] = report_small_model(console)
    save("analyzer", results)


if __name__ == "__main__":
    main()
