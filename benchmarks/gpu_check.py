"""The core's speed and memory on a GPU, with random weights of Qwen2.5-1.5B's shape in bf16.

    python benchmarks/gpu_check.py                       # about 25 GB of GPU memory, minutes
    python benchmarks/gpu_check.py --device cpu --tiny   # the same path on a tiny model, in seconds

- step: a TASPO step (rollout + scoring + update) over a GRPO step, guidance on 60 % of the trajectories.
- scoring: seconds a position of the two-branch scoring pass over seconds a token of a plain forward; 1 = the pass
  costs what its tokens cost.
- tokens per second of rollout, scoring and update; peak memory, beside what `taspo doctor` estimates.

Both trainers run `train()` as users do, in turn, each alone on the device. Random weights hardly ever sample the
end token, so that replies have their full length and both do the same work. Prints tables and writes
`benchmarks/results/gpu_check.json` (not with `--tiny`, unless `--output` names a file).
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from common import machine_facts, save
from core import WORDS, Corridor, Guided, SampledLike, tokenizer
from datasets import Dataset
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config, TrainerCallback

from taspo_trl import TASPOConfig, TASPOTrainer
from taspo_trl.cli.doctor.memory import Precision, Setup, estimate_memory
from taspo_trl.cli.doctor.model_shape import published_config, shape_of
from taspo_trl.generation import GenerationRequest, SamplingSettings
from taspo_trl.generation.frozen import frozen_mode
from taspo_trl.guidance.stage import GuidanceStage
from taspo_trl.scoring.paired import PairedRow, score_pairs
from taspo_trl.scoring.projection import add_selected_projection


console = Console()


@dataclass(frozen=True)
class Scale:
    """How large the check is."""

    config: Qwen2Config
    groups: int
    generations: int
    turns: int
    words: int
    """Words, hence tokens, of an observation; a prompt shows a few of them."""
    reply_tokens: int
    block_tokens: int
    micro_batch_tokens: int
    scored_rows: int

    @property
    def episodes(self) -> int:
        return self.groups * self.generations


def full_scale() -> Scale:
    config = published_config("Qwen/Qwen2.5-1.5B-Instruct")
    return Scale(config, 4, 8, turns=8, words=300, reply_tokens=128, block_tokens=256, micro_batch_tokens=32768,
                 scored_rows=128)  # fmt: skip


def tiny_scale() -> Scale:
    config = Qwen2Config(
        vocab_size=len(tokenizer()), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=4096, tie_word_embeddings=True,
    )  # fmt: skip
    return Scale(config, 2, 4, turns=3, words=20, reply_tokens=16, block_tokens=32, micro_batch_tokens=2048,
                 scored_rows=8)  # fmt: skip


class Folded:
    """Samples over the model's whole vocabulary and hands on words of the small tokenizer."""

    def __init__(self, inner: Any, first_word: int):
        self.inner, self.first_word = inner, first_word

    def begin(self, sampling: SamplingSettings, seed: int) -> None:
        self.inner.begin(sampling, seed)

    def submit(self, request: GenerationRequest) -> Future:
        future: Future = Future()

        def fold(done: Future) -> None:
            generation = done.result()
            ids = tuple(self.first_word + one % len(WORDS) for one in generation.reply_ids)
            future.set_result(dataclasses.replace(generation, reply_ids=ids))

        self.inner.submit(request).add_done_callback(fold)
        return future

    def flush(self) -> None:
        self.inner.flush()


class Clock(TrainerCallback):
    """Seconds from the end of one optimizer step to the end of the next; the first step warms up and has none."""

    def __init__(self, wait: Callable[[], None]):
        self.wait, self.ends = wait, []

    def on_step_end(self, args, state, control, **kwargs):
        self.wait()
        self.ends.append(time.perf_counter())

    @property
    def seconds(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.ends, self.ends[1:], strict=False)]


def make_model(scale: Scale, device: torch.device, tok: PreTrainedTokenizerFast) -> Any:
    """Random weights in bf16."""
    torch.manual_seed(0)
    config = scale.config
    config.eos_token_id, config.pad_token_id, config.bos_token_id = tok.eos_token_id, tok.pad_token_id, None
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)


def make_trainer(scale: Scale, device: torch.device, is_guided: bool, steps: int, clock: Clock, folder: str) -> Any:
    tok = tokenizer()
    values = {"turns": scale.turns, "max_turns": scale.turns + 1, "size": scale.words}
    args = TASPOConfig(
        output_dir=folder,
        use_cpu=device.type == "cpu",
        bf16=True,
        report_to="none",
        disable_tqdm=True,
        num_generations=scale.generations,
        per_device_train_batch_size=scale.episodes,
        max_completion_length=scale.reply_tokens,
        max_steps=steps,
        logging_steps=1,
        gradient_checkpointing=True,
        save_strategy="no",
        save_trajectories="no",
        learning_rate=1e-6,
        micro_batch_tokens=scale.micro_batch_tokens,
    )
    made = TASPOTrainer(
        make_model(scale, device, tok),
        args=args,
        processing_class=tok,
        train_dataset=Dataset.from_dict({"task": WORDS[:64]}),
        environment_factory=type("Corridor_", (Corridor,), values),
        callbacks=[clock],
    )
    maker = made.experience_maker
    folded = Folded(maker.collector.engine, tok.convert_tokens_to_ids(WORDS[0]))
    policy = SampledLike(folded, tok, args.max_completion_length)
    stage = GuidanceStage(Guided(0.6, tok, scale.block_tokens) if is_guided else None)
    maker.guidance = stage
    maker.collector = dataclasses.replace(maker.collector, engine=policy, guidance=stage)
    return made


def run(scale: Scale, device: torch.device, is_guided: bool, steps: int) -> dict[str, Any]:
    """Medians of `steps` steps of one trainer, after one that warms up, and its peak memory in bytes."""
    clock = Clock(lambda: wait(device))
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with tempfile.TemporaryDirectory() as folder:
        made = make_trainer(scale, device, is_guided, steps + 1, clock, folder)
        try:
            made.train()
            entries = [entry for entry in made.state.log_history if "time/rollout" in entry][1:]
        finally:
            made.close()
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    del made
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    names = ("time/rollout", "time/scoring", "time/update", "tokens/prompt", "tokens/reply", "prompts/mean_length",
             "replies/mean_length", "guidance/coverage_all", "credit/scorable_share")  # fmt: skip
    found = {name: statistics.median(e[name] for e in entries if name in e) for name in names if name in entries[0]}
    return {"step": statistics.median(clock.seconds), "steps": clock.seconds, "peak_bytes": peak, **found}


def bench_steps(scale: Scale, device: torch.device, steps: int, rounds: int) -> dict[str, Any]:
    """TASPO and GRPO in turn."""
    runs: dict[str, list[dict[str, Any]]] = {"taspo": [], "grpo": []}
    for _ in range(rounds):
        for name, done in runs.items():
            done.append(run(scale, device, name == "taspo", steps))
    ratios = [t["step"] / g["step"] for t, g in zip(runs["taspo"], runs["grpo"], strict=True)]
    taspo = runs["taspo"][-1]
    row = taspo["prompts/mean_length"] + taspo["replies/mean_length"]
    rows = taspo["tokens/reply"] / taspo["replies/mean_length"]
    return {
        "step_ratio_median": statistics.median(ratios),
        "step_ratio_range": [min(ratios), max(ratios)],
        "sampled_tokens_per_second": taspo["tokens/reply"] / taspo["time/rollout"],
        "update_tokens_per_second": rows * row / taspo["time/update"],
        "peak_gib": {name: gib(max_of(done, "peak_bytes")) for name, done in runs.items()},
        "doctor_estimate_gib": gib(estimated_peak(scale, row, taspo["replies/mean_length"])),
        "runs": runs,
    }


def bench_scoring(scale: Scale, device: torch.device, repeats: int) -> dict[str, Any]:
    """Two-branch scoring against a plain forward over as many tokens, in the same batches' size."""
    tok = tokenizer()
    model = make_model(scale, device, tok)
    add_selected_projection(model)
    prompt, reply, block = 3 * scale.words, scale.reply_tokens, scale.block_tokens
    generator = torch.Generator().manual_seed(0)
    splice = prompt - 5  # the template's opening of the reply stands between guidance and reply

    def ids(length: int) -> tuple[int, ...]:
        return tuple(torch.randint(20, 4000, (length,), generator=generator).tolist())

    positions = tuple(range(prompt, prompt + reply))
    rows = [PairedRow(ids(prompt + reply), splice, (ids(block),), positions) for _ in range(scale.scored_rows)]
    scored_tokens = len(rows) * (2 * (prompt + reply) - splice + block)
    per_batch = max(1, scale.micro_batch_tokens // (prompt + reply + block))
    batch = torch.tensor([row.ids for row in rows[:per_batch]], device=device)
    starts = torch.arange(len(batch), device=device).unsqueeze(1) * (prompt + reply)
    places = (starts + torch.arange(prompt - 1, prompt + reply - 1, device=device)).flatten()

    def score() -> None:
        score_pairs(model, rows, max_tokens=scale.micro_batch_tokens)

    def forward() -> None:
        model(
            input_ids=batch,
            attention_mask=torch.ones_like(batch),
            use_cache=False,
            selected_positions=places,
            selected_targets=batch.flatten()[places + 1],
        )

    with torch.no_grad(), frozen_mode(model):
        pairs = [(median_seconds(score, device, 1), median_seconds(forward, device, 3)) for _ in range(repeats)]
    per_position = [scoring / scored_tokens for scoring, _ in pairs]
    per_token = [plain / batch.numel() for _, plain in pairs]
    ratios = [a / b for a, b in zip(per_position, per_token, strict=True)]
    return {
        "rows": len(rows),
        "row_tokens": prompt + reply,
        "block_tokens": block,
        "scored_tokens": scored_tokens,
        "scoring_tokens_per_second": 1 / statistics.median(per_position),
        "forward_tokens_per_second": 1 / statistics.median(per_token),
        "scoring_over_its_tokens_median": statistics.median(ratios),
        "scoring_over_its_tokens_range": [min(ratios), max(ratios)],
    }


def median_seconds(work: Callable[[], None], device: torch.device, calls: int) -> float:
    """Median seconds of `calls` calls after one that warms up."""
    seconds = []
    for _ in range(calls + 1):
        wait(device)
        started = time.perf_counter()
        work()
        wait(device)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[1:])


def estimated_peak(scale: Scale, row: float, reply: float) -> float:
    """What `taspo doctor` says of such a step."""
    from taspo_trl.cli.doctor.model_shape import meta_model

    fitting = TASPOConfig.generation_tokens // row
    setup = Setup(
        precision=Precision(weight=2, compute=2),
        micro_batch_tokens=scale.micro_batch_tokens,
        row_tokens=row,
        projected_tokens=scale.micro_batch_tokens * reply / row,
        generation_rows=min(scale.episodes, fitting),
        generation_tokens=row,
        prompt_tokens=row - reply,
    )
    return estimate_memory(shape_of(meta_model(scale.config)), setup).peak


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def gib(size: float | None) -> float | None:
    return None if size is None else round(size / 2**30, 3)


def max_of(runs: list[dict[str, Any]], name: str) -> float | None:
    values = [one[name] for one in runs if one[name] is not None]
    return max(values) if values else None


def show(results: dict[str, Any]) -> None:
    steps, scoring = results["steps"], results["scoring"]
    table = Table(title=f"{results['device']}, {results['parameters'] / 1e9:.3f} billion parameters, bf16")
    table.add_column("measured")
    table.add_column("value", justify="right")
    peaks, low_high = steps["peak_gib"], steps["step_ratio_range"]
    for name, value in (
        ("TASPO step / GRPO step", f"{steps['step_ratio_median']:.3f} ({low_high[0]:.3f} to {low_high[1]:.3f})"),
        ("scoring pass / its tokens in a plain forward", f"{scoring['scoring_over_its_tokens_median']:.3f}"),
        ("sampled tokens per second", f"{steps['sampled_tokens_per_second']:,.0f}"),
        ("scored tokens per second", f"{scoring['scoring_tokens_per_second']:,.0f}"),
        ("trained tokens per second", f"{steps['update_tokens_per_second']:,.0f}"),
        ("peak memory of TASPO, GRPO (GiB)", f"{peaks['taspo']}, {peaks['grpo']}"),
        ("`taspo doctor` estimates (GiB)", f"{steps['doctor_estimate_gib']}"),
    ):
        table.add_row(name, value)
    console.print(table)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", help="cuda (default), cuda:1, ... or cpu")
    parser.add_argument("--tiny", action="store_true", help="a tiny model, to see that the script works")
    parser.add_argument("--steps", type=int, default=4, help="measured steps of a run (default: 4)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each trainer (default: 3)")
    parser.add_argument("--output", default=None, help="another results file")
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print(
            "gpu_check: torch sees no CUDA GPU here, so there is nothing to measure. To see that the script works: "
            "`python benchmarks/gpu_check.py --device cpu --tiny`.",
            file=sys.stderr,
        )
        return 1
    scale = tiny_scale() if options.tiny else full_scale()
    results = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "is_tiny": options.tiny,
        "parameters": sum(p.numel() for p in make_model(scale, torch.device("meta"), tokenizer()).parameters()),
        "scoring": bench_scoring(scale, device, options.rounds),
        "steps": bench_steps(scale, device, options.steps, options.rounds),
    }
    show(results)
    if options.output:
        Path(options.output).write_text(json.dumps({"machine": machine_facts(), **results}, indent=2) + "\n")
    elif not options.tiny:
        console.print(f"written to {save('gpu_check', results)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
