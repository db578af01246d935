"""The core's speed and memory on a GPU, with random weights of Qwen2.5-1.5B's shape in bf16, in at most six minutes.

    python benchmarks/gpu_check.py                       # about 25 GB of GPU memory
    python benchmarks/gpu_check.py --device cpu --tiny   # the same path on a tiny model: its numbers mean nothing
    python benchmarks/gpu_check.py --only packing scoring

- scoring: seconds a position of the two-branch scoring pass over seconds a token of a plain forward (1 = the pass
  costs what its tokens cost); the same in whole forwards; how far bf16 lets the two be apart.
- alternatives: what else could have been done in a turn, continued from its prefix, over whole forwards.
- packing: rows without padding over padded ones, with sdpa and with flash attention where it is installed.
- step: a TASPO step (rollout + scoring + update) over a GRPO step, guidance on 60 % of the trajectories, beside what
  `taspo doctor` estimates; tokens per second of rollout and update.
- generation: a rollout from `model.generate` over one that is decoded from kept keys.
- riding: several optimizer steps for a rollout batch, scoring that rides on the pass of log pi_old over scoring apart,
  and over no guidance, with peak memory. Replies are told, not sampled.
- in_update: one optimizer step without gradient checkpointing, whose own forward is scoring's plain branch, over one
  without guidance, with peak memory.
- beside: scoring that is still waited for where it runs while others play, with an engine that answers slowly.

Trainers run `train()` as users do, in turn, each alone on the device. Random weights hardly ever sample the end token,
so that replies have their full length and all do the same work. Prints a Markdown table and writes
`benchmarks/results/gpu_check.json` (not with `--tiny`, unless `--output` names a file). A part that does not fit into
the time is said to be unrun.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from common import machine_facts, save
from core import WORDS, Corridor, Guided, tokenizer
from datasets import Dataset
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config, TrainerCallback
from transformers.utils import is_flash_attn_2_available

from taspo_trl import TASPOConfig, TASPOTrainer
from taspo_trl.cli.doctor.memory import Precision, Setup, estimate_memory
from taspo_trl.cli.doctor.model_shape import published_config, shape_of
from taspo_trl.generation import Generation, GenerationRequest, SamplingSettings
from taspo_trl.generation.frozen import frozen_mode
from taspo_trl.guidance.stage import GuidanceStage
from taspo_trl.loss.batches import LossRow, collate
from taspo_trl.rows import pack_rows
from taspo_trl.scoring.alternatives import AlternativeTurn, score_turns
from taspo_trl.scoring.paired import PairedLogps, PairedRow, continue_from_shared_keys, score_pairs
from taspo_trl.scoring.projection import add_selected_projection, selected_forward
from taspo_trl.training.rollout_batch import ExperienceMaker
from taspo_trl.types import FinishReason


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
    ragged_rows: int
    """Rows of very different lengths, for what padding costs."""
    latency: float
    """Seconds of a slow answer."""

    @property
    def episodes(self) -> int:
        return self.groups * self.generations


def full_scale() -> Scale:
    config = published_config("Qwen/Qwen2.5-1.5B-Instruct")
    return Scale(config, 4, 8, turns=4, words=300, reply_tokens=96, block_tokens=256, micro_batch_tokens=32768,
                 scored_rows=128, ragged_rows=96, latency=2.0)  # fmt: skip


def tiny_scale() -> Scale:
    config = Qwen2Config(
        vocab_size=len(tokenizer()), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=4096, tie_word_embeddings=True,
    )  # fmt: skip
    return Scale(config, 2, 4, turns=2, words=20, reply_tokens=8, block_tokens=32, micro_batch_tokens=2048,
                 scored_rows=8, ragged_rows=8, latency=0.02)  # fmt: skip


@dataclass
class Run:
    """The device, the scale, and the time that is left."""

    scale: Scale
    device: torch.device
    until: float
    """No part begins after it."""
    reserve: float
    """Seconds for the parts behind `step`."""
    results: dict[str, Any] = field(default_factory=dict)
    lines: list[tuple[str, str]] = field(default_factory=list)
    """What was measured, and the value."""

    @property
    def left(self) -> float:
        return self.until - time.perf_counter()

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def peak(self, reset: bool = False) -> float | None:
        """GiB since the last reset."""
        if self.device.type != "cuda":
            return None
        found = round(torch.cuda.max_memory_allocated(self.device) / 2**30, 3)
        if reset:
            torch.cuda.reset_peak_memory_stats(self.device)
        return found

    def seconds(self, work: Callable[[], None], calls: int) -> float:
        """Median seconds of `calls` calls after one that warms up."""
        seconds = []
        for _ in range(calls + 1):
            self.wait()
            started = time.perf_counter()
            work()
            self.wait()
            seconds.append(time.perf_counter() - started)
        return statistics.median(seconds[1:])

    def free(self) -> None:
        if self.device.type == "cuda":
            gc.collect()
            torch.cuda.empty_cache()

    def say(self, name: str, value: str) -> None:
        self.lines.append((name, value))
        print(f"  {name}: {value}", flush=True)


def make_model(scale: Scale, device: torch.device, tok: PreTrainedTokenizerFast, attention: str | None = None) -> Any:
    """Random weights in bf16."""
    torch.manual_seed(0)
    config = scale.config
    config.eos_token_id, config.pad_token_id, config.bos_token_id = tok.eos_token_id, tok.pad_token_id, None
    given = {} if attention is None else {"attn_implementation": attention}
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, **given)


# ---- passes of one model -------------------------------------------------------------------------------------------


def bench_scoring(run: Run) -> dict[str, Any]:
    """Two-branch scoring against a plain forward over as many tokens, in the same batches' size."""
    scale, device = run.scale, run.device
    model = make_model(scale, device, tokenizer())
    add_selected_projection(model)
    prompt, reply, block = 3 * scale.words, scale.reply_tokens, scale.block_tokens
    draw = random.Random(0)
    splice = prompt - 5  # the template's opening of the reply stands between guidance and reply

    def ids(length: int) -> tuple[int, ...]:
        return tuple(draw.randrange(20, 4000) for _ in range(length))

    positions = tuple(range(prompt, prompt + reply))
    rows = [
        PairedRow(ids(prompt + reply), splice, (ids(block) if k else (),), positions) for k in range(scale.scored_rows)
    ]
    guided = [row for row in rows if row.blocks[0]]
    continued_tokens = len(rows) * (prompt + reply) + len(guided) * (prompt + reply - splice + block)
    whole_tokens = len(rows) * (prompt + reply) + len(guided) * (prompt + reply + block)
    per_batch = max(1, scale.micro_batch_tokens // (prompt + reply + block))
    batch = torch.tensor([row.ids for row in rows[:per_batch]], device=device)
    starts = torch.arange(len(batch), device=device).unsqueeze(1) * (prompt + reply)
    places = (starts + torch.arange(prompt - 1, prompt + reply - 1, device=device)).flatten()
    found: dict[str, list[PairedLogps]] = {}

    def score(name: str, continues: bool) -> Callable[[], None]:
        def work() -> None:
            continue_from_shared_keys(model, continues)
            found[name] = score_pairs(model, rows, max_tokens=scale.micro_batch_tokens)

        return work

    def forward() -> None:
        model(
            input_ids=batch,
            attention_mask=torch.ones_like(batch),
            use_cache=False,
            selected_positions=places,
            selected_targets=batch.flatten()[places + 1],
        )

    with torch.no_grad(), frozen_mode(model):
        plain = run.seconds(forward, 3) / batch.numel()
        continued, whole = run.seconds(score("continued", True), 1), run.seconds(score("whole", False), 1)
    away = [
        abs(a - b)
        for one, other in zip(found["continued"], found["whole"], strict=True)
        for a, b in zip(one.guided[0], other.guided[0], strict=True)
    ]
    first = found["continued"][0]
    result = {
        "rows": len(rows),
        "row_tokens": prompt + reply,
        "block_tokens": block,
        "scored_tokens": continued_tokens,
        "scoring_tokens_per_second": continued_tokens / continued,
        "forward_tokens_per_second": 1 / plain,
        "scoring_over_its_tokens": continued / continued_tokens / plain,
        "whole_over_its_tokens": whole / whole_tokens / plain,
        "whole_over_continued": whole / continued,
        "nats_apart_median": statistics.median(away),
        "nats_apart_largest": max(away),
        "empty_block_shift": max(abs(a - b) for a, b in zip(first.plain, first.guided[0], strict=True)),
    }
    run.say("scoring pass / its tokens in a plain forward", f"{result['scoring_over_its_tokens']:.3f}")
    run.say("scoring in whole forwards / continued from keys", f"{result['whole_over_continued']:.2f}")
    run.say(
        "log-probabilities of the two apart, median and largest (nats)",
        f"{result['nats_apart_median']:.2g}, {result['nats_apart_largest']:.2g}",
    )
    run.say("shift of an empty block", f"{result['empty_block_shift']:g}")
    run.say("scored tokens per second", f"{result['scoring_tokens_per_second']:,.0f}")
    return result


def bench_alternatives(run: Run) -> dict[str, Any]:
    """Eight actions of each turn, with and without a block: behind one prefix, and in whole rows."""
    scale = run.scale
    model = make_model(scale, run.device, tokenizer())
    add_selected_projection(model)
    draw = random.Random(1)

    def ids(length: int) -> tuple[int, ...]:
        return tuple(draw.randrange(20, 4000) for _ in range(length))

    prompt = 3 * scale.words
    turns = [
        AlternativeTurn(
            (f"t{k}", 0), tuple("abcdefgh"), tuple(ids(8) for _ in range(8)), ids(prompt + scale.reply_tokens // 2),
            prompt - 5, {"aligned": ids(scale.block_tokens)},
        )
        for k in range(max(2, scale.scored_rows // 8))
    ]  # fmt: skip

    def score(continues: bool) -> Callable[[], None]:
        def work() -> None:
            continue_from_shared_keys(model, continues)
            score_turns(model, turns, max_tokens=scale.micro_batch_tokens)

        return work

    with torch.no_grad(), frozen_mode(model):
        continued, whole = run.seconds(score(True), 1), run.seconds(score(False), 1)
    run.say("8 alternatives of a turn in whole rows / behind one prefix", f"{whole / continued:.2f}")
    return {"turns": len(turns), "seconds": continued, "whole_over_continued": whole / continued}


def ragged_rows(number: int, longest: int) -> list[LossRow]:
    """Mostly short rows and a few long ones, as agents make them; the last tenth of each is learned from."""
    draw = random.Random(0)
    rows = []
    for _ in range(number):
        length = max(16, min(longest, int(longest / 6 * draw.lognormvariate(0.0, 0.8))))
        positions = tuple(range(length - length // 10 - 1, length))
        rows.append(
            LossRow(
                tuple(draw.randrange(20, 4000) for _ in range(length)),
                positions, (1e-3,) * len(positions), (1.0,) * len(positions),
            )
        )  # fmt: skip
    return rows


def bench_packing(run: Run) -> dict[str, Any]:
    """Forward and backward over ragged rows, padded and without padding."""
    scale = run.scale
    rows = ragged_rows(scale.ragged_rows, 8 * scale.words)
    lengths = [len(row.ids) for row in rows]
    batches = pack_rows(lengths, scale.micro_batch_tokens)
    share = 1 - sum(lengths) / sum(len(batch) * max(lengths[k] for k in batch) for batch in batches)
    result: dict[str, Any] = {"padding_share": share}
    has_flash = run.device.type == "cuda" and is_flash_attn_2_available()
    for attention in ("sdpa", "flash_attention_2") if has_flash else ("sdpa",):
        seconds, logps = learned(run, attention, rows)
        away = (logps[True] - logps[False]).abs().max()
        result[attention] = {"packed_over_padded": seconds[True] / seconds[False], "nats_apart_largest": float(away)}
        run.say(
            f"rows without padding / padded, {attention} ({share:.0%} padding)",
            f"{result[attention]['packed_over_padded']:.3f}",
        )
        run.free()
    if not has_flash:
        run.say("rows without padding / padded, flash_attention_2", "unrun: not installed, or no GPU")
    return result


def learned(run: Run, attention: str, rows: list[LossRow]) -> tuple[dict[bool, float], dict[bool, torch.Tensor]]:
    """Seconds of a forward and a backward over all rows, padded and without padding, and their log-probabilities."""
    model = make_model(run.scale, run.device, tokenizer(), attention)
    add_selected_projection(model)
    model.gradient_checkpointing_enable()
    model.train()
    lengths = [len(row.ids) for row in rows]
    found: dict[int, torch.Tensor] = {}

    def learn(padding_free: bool) -> None:
        for batch in pack_rows(lengths, run.scale.micro_batch_tokens, padding_free):
            members = [rows[k] for k in batch]
            output = selected_forward(model, collate(members, padding_free=padding_free, device=run.device))
            parts = output.logps.detach().float().cpu().split([len(row.positions) for row in members])
            found.update(zip(batch, parts, strict=True))
            output.logps.sum().backward()
            model.zero_grad()

    seconds, logps = {}, {}
    for padding_free in (False, True):
        seconds[padding_free] = run.seconds(partial(learn, padding_free), 1)
        logps[padding_free] = torch.cat([found[k] for k in range(len(rows))])
    return seconds, logps


# ---- trainers ------------------------------------------------------------------------------------------------------


class Acting:
    """What an engine samples over the model's whole vocabulary, as words of the small tokenizer with an action."""

    def __init__(self, inner: Any, tok: PreTrainedTokenizerFast, length: int):
        self.inner, self.length, self.end = inner, length, tok.eos_token_id
        self.first_word = tok.convert_tokens_to_ids(WORDS[0])
        self.open, self.close = tok.convert_tokens_to_ids(["<action>", "</action>"])

    @property
    def is_stepped(self) -> bool:
        return getattr(self.inner, "is_stepped", False)

    def step(self) -> bool:
        return self.inner.step()

    def begin(self, sampling: SamplingSettings, seed: int) -> None:
        self.inner.begin(sampling, seed)

    def submit(self, request: GenerationRequest) -> Future:
        future: Future = Future()

        def act(done: Future) -> None:
            sampled = [one for one in done.result().reply_ids if one != self.end][: self.length - 5]
            ids = [self.first_word + one % len(WORDS) for one in sampled]
            reply = (*ids, self.open, *ids[:2], self.close, self.end)
            future.set_result(Generation(reply, FinishReason.STOP))

        self.inner.submit(request).add_done_callback(act)
        return future

    def flush(self) -> None:
        self.inner.flush()


class Told:
    """Answers with random words, at once or after some seconds, and leaves the device alone."""

    def __init__(self, length: int, latency: float = 0.0):
        self.length, self.latency, self.threads = length, latency, ThreadPoolExecutor(64)

    def begin(self, sampling: SamplingSettings, seed: int) -> None:
        self.random = random.Random(seed)

    def submit(self, request: GenerationRequest) -> Future:
        answer = Generation(tuple(self.random.randrange(20, 4000) for _ in range(self.length)), FinishReason.STOP)

        def late() -> Generation:
            time.sleep(self.latency)
            return answer

        if self.latency:
            return self.threads.submit(late)
        future: Future = Future()
        future.set_result(answer)
        return future

    def flush(self) -> None:
        pass


class Clock(TrainerCallback):
    """Seconds from the end of one optimizer step to the end of the next; the first step warms up and has none."""

    def __init__(self, wait: Callable[[], None]):
        self.wait = wait
        self.ends: list[float] = []

    def on_step_end(self, args, state, control, **kwargs):
        self.wait()
        self.ends.append(time.perf_counter())

    @property
    def seconds(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.ends, self.ends[1:], strict=False)]


@dataclass(frozen=True)
class Variant:
    """What one trainer does differently."""

    is_guided: bool
    num_steps: int = 1
    """Optimizer steps for each rollout batch."""
    replies: str = "kept keys"
    """From kept keys, from `generate`, or told at once or late."""
    values: dict[str, Any] = field(default_factory=dict)


def make_trainer(run: Run, variant: Variant, rollouts: int, clock: Clock, folder: str) -> Any:
    scale, tok = run.scale, tokenizer()
    values = {"turns": scale.turns, "max_turns": scale.turns + 1, "size": scale.words}
    args = TASPOConfig(
        output_dir=folder,
        use_cpu=run.device.type == "cpu",
        bf16=True,
        report_to="none",
        disable_tqdm=True,
        num_generations=scale.generations,
        per_device_train_batch_size=scale.episodes // variant.num_steps,
        steps_per_generation=variant.num_steps,
        max_completion_length=scale.reply_tokens,
        max_steps=rollouts * variant.num_steps,
        logging_steps=1,
        save_strategy="no",
        save_trajectories="no",
        learning_rate=1e-6,
        micro_batch_tokens=scale.micro_batch_tokens,
        **{"gradient_checkpointing": True, **variant.values},
    )
    made = TASPOTrainer(
        make_model(scale, run.device, tok),
        args=args,
        processing_class=tok,
        train_dataset=Dataset.from_dict({"task": WORDS[:64]}),
        environment_factory=type("Corridor_", (Corridor,), values),
        callbacks=[clock],
    )
    maker = made.experience_maker
    engine: Any = maker.collector.engine
    if variant.replies == "generate":
        engine._why_model = "the benchmark compares"
    elif variant.replies != "kept keys":
        engine = Told(scale.reply_tokens, scale.latency if variant.replies == "late" else 0.0)
    stage = GuidanceStage(Guided(0.6, tok, scale.block_tokens) if variant.is_guided else None)
    maker.guidance = stage
    acting = Acting(engine, tok, scale.reply_tokens)
    maker.collector = dataclasses.replace(maker.collector, engine=acting, guidance=stage)
    return made


_LOGGED = ("time/rollout", "time/scoring", "time/logps", "time/update", "tokens/prompt", "tokens/reply",
           "prompts/mean_length", "replies/mean_length", "guidance/coverage_all", "credit/scorable_share")  # fmt: skip


def train(run: Run, variant: Variant, rollouts: int = 1) -> dict[str, Any]:
    """Medians over `rollouts` rollout batches of one trainer, after one that warms up, and its peak memory in GiB."""
    clock = Clock(run.wait)
    run.peak(reset=True)
    with tempfile.TemporaryDirectory() as folder:
        made = make_trainer(run, variant, rollouts + 1, clock, folder)
        try:
            made.train()
            log = made.state.log_history
            counts = getattr(made.engine.engine, "counts", {})
            why = getattr(made.engine.engine, "why_generate", "")
        finally:
            made.close()
    peak = run.peak()
    del made
    run.free()
    # Per rollout batch: its stages are logged with its first optimizer step, the update with each.
    entries = [entry for entry in log if "time/rollout" in entry][1:]
    found = {name: statistics.median(e[name] for e in entries if name in e) for name in _LOGGED if name in entries[0]}
    updates = [entry["time/update"] for entry in log if "time/update" in entry][variant.num_steps :]
    found["time/update"] = sum(updates) / rollouts
    seconds = sum(clock.seconds[variant.num_steps - 1 :]) / rollouts
    learning = sum(found.get(name, 0.0) for name in ("time/logps", "time/scoring", "time/update"))
    return {
        "step": seconds, "learning": learning, "peak_gib": peak, "why_generate": why,
        "computed_prompt_tokens": counts.get("computed_prompt_tokens", 0), **found,
    }  # fmt: skip


def bench_step(run: Run, rounds: int) -> dict[str, Any]:
    """TASPO and GRPO in turn, as often as the time allows."""
    runs: dict[str, list[dict[str, Any]]] = {"taspo": [], "grpo": []}
    for _ in range(rounds):
        started = time.perf_counter()
        for name, done in runs.items():
            done.append(train(run, Variant(is_guided=name == "taspo")))
        if run.left < time.perf_counter() - started + run.reserve:
            break
    ratios = [t["step"] / g["step"] for t, g in zip(runs["taspo"], runs["grpo"], strict=True)]
    taspo, grpo = runs["taspo"][-1], runs["grpo"][-1]
    row = taspo["prompts/mean_length"] + taspo["replies/mean_length"]
    rows = taspo["tokens/reply"] / taspo["replies/mean_length"]
    result = {
        "step_ratio_median": statistics.median(ratios),
        "step_ratio_range": [min(ratios), max(ratios)],
        "scoring_over_update": taspo["time/scoring"] / taspo["time/update"],
        "sampled_tokens_per_second": taspo["tokens/reply"] / taspo["time/rollout"],
        "update_tokens_per_second": rows * row / taspo["time/update"],
        "doctor_estimate_gib": round(estimated_peak(run.scale, row, taspo["replies/mean_length"]) / 2**30, 3),
        "runs": runs,
    }
    low, high = result["step_ratio_range"]
    run.say(
        f"TASPO step / GRPO step, {len(ratios)} round(s)",
        f"{result['step_ratio_median']:.3f} ({low:.3f} to {high:.3f})",
    )
    run.say("scoring / update", f"{result['scoring_over_update']:.3f}")
    run.say("sampled tokens per second", f"{result['sampled_tokens_per_second']:,.0f}")
    run.say("trained tokens per second", f"{result['update_tokens_per_second']:,.0f}")
    run.say("peak memory of TASPO, GRPO (GiB)", f"{taspo['peak_gib']}, {grpo['peak_gib']}")
    run.say("`taspo doctor` estimates (GiB)", f"{result['doctor_estimate_gib']}")
    return result


def bench_generation(run: Run) -> dict[str, Any]:
    """The rollout of a GRPO step, decoded from kept keys and by `generate`."""
    known = run.results.get("step", {}).get("runs", {}).get("grpo")
    kept = known[-1] if known else train(run, Variant(is_guided=False))
    generated = train(run, Variant(is_guided=False, replies="generate"))
    result = {
        "generate_over_kept_keys": generated["time/rollout"] / kept["time/rollout"],
        "kept_keys_were_used": not kept["why_generate"],
        "why_not": kept["why_generate"],
        "kept_keys_seconds": kept["time/rollout"],
        "generate_seconds": generated["time/rollout"],
        "peak_gib": {"kept keys": kept["peak_gib"], "generate": generated["peak_gib"]},
    }
    why = f" (kept keys were not used: {kept['why_generate']})" if kept["why_generate"] else ""
    run.say("rollout with `generate` / from kept keys", f"{result['generate_over_kept_keys']:.2f}{why}")
    return result


@contextlib.contextmanager
def scored_apart() -> Iterator[None]:
    """Nothing rides on the pass of log pi_old inside."""
    original = ExperienceMaker._ride
    ExperienceMaker._ride = lambda *_: None  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        ExperienceMaker._ride = original  # type: ignore[method-assign]


def bench_riding(run: Run) -> dict[str, Any]:
    """log pi_old + scoring + update of a rollout batch with two optimizer steps."""
    riding = train(run, Variant(True, num_steps=2, replies="told"))
    plain = train(run, Variant(False, num_steps=2, replies="told"))
    with scored_apart():
        apart = train(run, Variant(True, num_steps=2, replies="told"))
    result = {
        "riding_over_plain": riding["learning"] / plain["learning"],
        "apart_over_plain": apart["learning"] / plain["learning"],
        "scoring_over_update": riding["time/scoring"] / riding["time/update"],
        "peak_gib": {"riding": riding["peak_gib"], "apart": apart["peak_gib"], "plain": plain["peak_gib"]},
        "runs": {"riding": riding, "apart": apart, "plain": plain},
    }
    run.say("log pi_old + scoring + update, riding / without guidance", f"{result['riding_over_plain']:.3f}")
    run.say("the same, scored apart / without guidance", f"{result['apart_over_plain']:.3f}")
    run.say(
        "peak memory riding, apart, without guidance (GiB)", ", ".join(str(one) for one in result["peak_gib"].values())
    )
    return result


def bench_in_update(run: Run) -> dict[str, Any]:
    """Scoring + update of a rollout batch with one optimizer step that keeps its activations."""
    values = {"gradient_checkpointing": False}
    guided, plain = (train(run, Variant(is_guided, replies="told", values=values)) for is_guided in (True, False))
    result = {
        "guided_over_plain": guided["learning"] / plain["learning"],
        "scoring_over_update": guided["time/scoring"] / guided["time/update"],
        "peak_gib": {"guided": guided["peak_gib"], "plain": plain["peak_gib"]},
        "runs": {"guided": guided, "plain": plain},
    }
    run.say(
        "scoring + update of a single update, its forward shared / without guidance",
        f"{result['guided_over_plain']:.3f}",
    )
    run.say("peak memory of both (GiB)", ", ".join(str(one) for one in result["peak_gib"].values()))
    return result


def bench_beside(run: Run) -> dict[str, Any]:
    """What is waited for of scoring and log pi_old, behind an engine that answers slowly."""
    if "score_during_rollout" not in {one.name for one in dataclasses.fields(TASPOConfig)}:
        run.say("visible scoring beside the rollout / behind it", "unrun: not in this version")
        return {"unrun": "no `score_during_rollout`"}
    seconds = {}
    for beside in (True, False):
        found = train(run, Variant(True, num_steps=2, replies="late", values={"score_during_rollout": beside}))
        seconds[beside] = found.get("time/logps", 0.0) + found["time/scoring"]
    run.say("visible log pi_old + scoring, beside the rollout / behind it", f"{seconds[True] / seconds[False]:.3f}")
    return {"visible_over_behind": seconds[True] / seconds[False], "seconds": seconds[True], "behind": seconds[False]}


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


# ---- all of it -----------------------------------------------------------------------------------------------------


PARTS = ("scoring", "alternatives", "packing", "step", "generation", "riding", "in_update", "beside")


def markdown(run: Run) -> str:
    """A table for the documentation; numbers of a CPU say so in its head."""
    facts = run.results
    where = facts["device"] if run.device.type == "cuda" else "CPU, tiny model: shows that the script works"
    if run.device.type != "cuda" and not facts["is_tiny"]:
        where = "CPU"
    lines = [f"| {facts['parameters'] / 1e9:.3f} billion parameters, bf16 | {where} |", "|---|---|"]
    return "\n".join([*lines, *(f"| {name} | {value} |" for name, value in run.lines)])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cuda (default), cuda:1, ... or cpu")
    parser.add_argument("--tiny", action="store_true", help="a tiny model, to see that the script works")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="some of the parts")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each trainer of `step` at most (default: 2)")
    parser.add_argument("--minutes", type=float, default=6.0, help="no part begins after so many (default: 6)")
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
    # The last part needs about a sixth of the time.
    run = Run(scale, device, time.perf_counter() + 50 * options.minutes, 20 * options.minutes)
    run.results |= {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "is_tiny": options.tiny,
        "parameters": sum(p.numel() for p in make_model(scale, torch.device("meta"), tokenizer()).parameters()),
    }
    benches: dict[str, Callable[[], dict[str, Any]]] = {
        "scoring": lambda: bench_scoring(run),
        "alternatives": lambda: bench_alternatives(run),
        "packing": lambda: bench_packing(run),
        "step": lambda: bench_step(run, options.rounds),
        "generation": lambda: bench_generation(run),
        "riding": lambda: bench_riding(run),
        "in_update": lambda: bench_in_update(run),
        "beside": lambda: bench_beside(run),
    }
    for name in PARTS:
        if name not in options.only:
            continue
        if run.left <= 0:
            run.say(name, f"unrun: no time was left of {options.minutes:g} minutes")
            run.results[name] = {"unrun": "no time was left"}
            continue
        print(f"{name} ({run.left:.0f} s are left)", flush=True)
        started = time.perf_counter()
        run.results[name] = benches[name]() | {"wall_seconds": round(time.perf_counter() - started, 1)}
        run.free()
    run.results["table"] = markdown(run)
    print(run.results["table"])
    if options.output:
        Path(options.output).write_text(json.dumps({"machine": machine_facts(), **run.results}, indent=2) + "\n")
    elif not options.tiny:
        print(f"written to {save('gpu_check', run.results)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
