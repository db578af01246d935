"""How long a rollout batch takes: operations and bytes against what the device does in a second.

A roofline. Forwards and backwards take their floating-point operations over the rate of a large matrix product; a
decoding step reads all weights and the keys and values of its rows, over the rate of a copy. Both rates are measured
on this machine or given, and `EFFICIENCY` of them is assumed to be reached. Not counted: environments, analyzer,
communication between processes, loading, saving, evaluation.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .memory import ModelShape, Precision, cache_bytes, weight_bytes
from .workload import BatchCounts, Plan, Workload, answered_tokens, forward_flop, update_factor


EFFICIENCY = 0.5
"""Share of the measured rates that a training step is assumed to reach; no measurement of ours stands behind it."""


@dataclass(frozen=True, slots=True)
class Rates:
    """What one device does in a second."""

    flop: float
    """Floating-point operations of a large matrix product in the recipe's precision."""
    bandwidth: float
    """Bytes read by a copy, plus as many written."""
    source: str = ""
    """Where the numbers are from, for the reader."""


@dataclass(frozen=True, slots=True)
class Seconds:
    """Of one rollout batch on one process."""

    sampling: float | None
    """None: an engine elsewhere generates, whose speed is not known here."""
    scoring: float
    """Both branches."""
    logps: float
    """Old and reference log-probabilities."""
    update: float

    @property
    def total(self) -> float:
        return (self.sampling or 0.0) + self.scoring + self.logps + self.update


def batch_seconds(
    counts: BatchCounts,
    work: Workload,
    plan: Plan,
    shape: ModelShape,
    precision: Precision,
    rates: Rates,
    *,
    concurrency: float,
    is_full: bool,
    is_checkpointed: bool,
) -> Seconds:
    """Seconds of a rollout batch. Pure.

    Args:
        counts (`BatchCounts`), work (`Workload`), plan (`Plan`):
            What is done, over all processes.
        shape (`ModelShape`), precision (`Precision`), rates (`Rates`):
            With what.
        concurrency (`float`):
            Rows that one process decodes at a time; 0 = generation is elsewhere.
        is_full (`bool`), is_checkpointed (`bool`):
            Whether all weights are trained; gradient checkpointing.
    """
    flop = EFFICIENCY * rates.flop * plan.processes

    def forward(tokens: float, projected: float) -> float:
        return forward_flop(tokens, counts.row_tokens, shape, projected) / flop

    answered = answered_tokens(work, plan.is_conversation)
    logp_tokens = counts.old_logp_tokens + counts.ref_logp_tokens
    logp_rows = logp_tokens / counts.row_tokens
    return Seconds(
        sampling=_sampling(counts, work, plan, shape, precision, rates, concurrency) if concurrency else None,
        scoring=forward(counts.scored_tokens, 2 * counts.scored_rows * answered),
        logps=forward(logp_tokens, logp_rows * answered),
        update=update_factor(is_full, is_checkpointed)
        * forward(counts.trained_tokens, counts.trained_rows * answered),
    )


def _sampling(
    counts: BatchCounts,
    work: Workload,
    plan: Plan,
    shape: ModelShape,
    precision: Precision,
    rates: Rates,
    concurrency: float,
) -> float:
    """Reading the prompts, then decoding: the slower of reading memory and computing, for each step."""
    flop, bandwidth = EFFICIENCY * rates.flop, EFFICIENCY * rates.bandwidth
    prefill = forward_flop(counts.prompt_tokens, work.prompt_tokens, shape, counts.turns) / (flop * plan.processes)
    steps = math.ceil(counts.turns / plan.processes / concurrency) * work.reply_tokens
    length = work.prompt_tokens + work.reply_tokens / 2
    moved = weight_bytes(shape, precision) + concurrency * length * cache_bytes(shape, precision)
    computed = forward_flop(concurrency, 2 * length, shape, concurrency)
    return prefill + steps * max(moved / bandwidth, computed / flop)


def measure_rates(compute_bytes: int, kind: str) -> Rates:
    """The rates of this machine's first device, in about a second. `kind` is cuda, mps or cpu."""
    import torch

    device = torch.device(kind)
    dtype = torch.bfloat16 if compute_bytes == 2 else torch.float32
    size = 8192 if kind == "cuda" else 2048 if kind == "mps" else 1024
    left, right = (torch.ones(size, size, dtype=dtype, device=device) for _ in range(2))
    seconds = fastest(lambda: left @ right, lambda: _wait(kind))
    block = torch.ones((2**30 if kind == "cuda" else 2**27) // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(block)  # written over and over: new memory would be cleared by the system first
    copied = fastest(lambda: target.copy_(block), lambda: _wait(kind))
    names = f"{size} x {size} {str(dtype).split('.')[-1]} product and a copy, measured on {kind}"
    return Rates(2.0 * size**3 / seconds, 2.0 * block.numel() * 4 / copied, names)


def fastest(work: Callable[[], Any], wait: Callable[[], None], budget: float = 0.4) -> float:
    """Seconds of the fastest call within `budget` seconds; a first one warms up and is not counted."""
    work()
    wait()
    best, end = math.inf, time.perf_counter() + budget
    while best == math.inf or time.perf_counter() < end:
        started = time.perf_counter()
        work()
        wait()
        best = min(best, time.perf_counter() - started)
    return best


def _wait(kind: str) -> None:
    """GPUs work behind the caller's back."""
    import torch

    if kind == "cuda":
        torch.cuda.synchronize()
    elif kind == "mps":
        torch.mps.synchronize()
