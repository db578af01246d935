"""Findings and estimates as lines of text. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from .devices import Devices, gigabytes
from .estimate import Estimate
from .findings import Finding, Status
from .memory import MemoryEstimate
from .workload import ACTION_TOKENS


_MARKS = {Status.OK: "ok  ", Status.ABSENT: "-   ", Status.WARNING: "warn", Status.FAILURE: "FAIL"}
_WIDTH = 22


def finding_lines(findings: Sequence[Finding]) -> Iterator[str]:
    """One line for each finding under its group's name, and one for its remedy."""
    group = ""
    for one in findings:
        if one.group != group:
            group = one.group
            yield f"\n{group}"
        yield f"  {_MARKS[one.status]}  {one.name:<{_WIDTH}}  {one.detail}"
        if one.remedy:
            yield f"{'':8}{'':<{_WIDTH}}  -> {one.remedy}"


def estimate_lines(found: Estimate, devices: Devices) -> Iterator[str]:
    """Assumptions first, then what follows from them."""
    yield "\nestimate: arithmetic on these assumptions, nothing was trained. Limits are the most that a run can take."
    for name, value in found.basis.items():
        yield _line(name, value)
    yield from _token_lines(found)
    yield from _memory_lines(found, devices)
    yield from _analyzer_lines(found)


def memory_finding(found: Estimate, devices: Devices) -> Finding | None:
    """A warning where the most that is estimated is beyond the smallest GPU's memory."""
    if found.memory is None or not devices.gpus or found.device == "cpu":
        return None
    smallest = min(gpu.memory for gpu in devices.gpus)
    if found.memory.most("cuda") <= smallest:
        return None
    detail = f"{_range(found)} are needed, but a GPU here has {gigabytes(smallest)}"
    remedy = "Lower `micro_batch_tokens` or `generation_tokens`, use LoRA, or more processes with FSDP2 or ZeRO-3."
    return Finding("recipe", "memory", Status.WARNING, detail, remedy)


def estimate_dict(found: Estimate) -> dict[str, Any]:
    """The estimate for programs."""
    return {
        "assumptions": dict(found.basis),
        "rollout_batches": found.batches,
        "batch": found.batch.as_dict(),
        "memory_bytes": None if found.memory is None else _memory_dict(found.memory, found.device),
        "analyzer_usd_of_a_batch": found.dollars,
    }


def _memory_dict(memory: MemoryEstimate, device: str) -> dict[str, float]:
    return {**memory.totals, "peak": memory.peak, "most": memory.most(device)}


def _range(found: Estimate) -> str:
    assert found.memory is not None
    return f"{gigabytes(found.memory.peak)} to {gigabytes(found.memory.most(found.device))}"


def _token_lines(found: Estimate) -> Iterator[str]:
    one, plan = found.batch, found.plan
    yield "\n  tokens of a rollout batch, all processes"
    yield _line("episodes", f"{plan.episodes:,} ({plan.episodes // plan.group_size:,} tasks x {plan.group_size})")
    yield _line("turns", f"{one.turns:,.0f}")
    yield _line("sampled", f"{one.sampled_tokens:,.0f} (prompts read: {one.prompt_tokens:,.0f})")
    shared = "each with weights of its own" if plan.has_teacher else "common prefix once"
    branches = {0: "nothing is scored", 1: f"two branches, {shared}"}
    scored = branches.get(plan.num_branches, f"{1 + plan.num_branches} branches, {shared}")
    yield _line("scored", f"{one.scored_tokens:,.0f} ({scored})")
    if plan.alternatives:
        what = f"up to {plan.alternatives} actions of {ACTION_TOKENS:.0f} tokens in each guided turn"
        yield _line("alternatives", f"{one.alternative_tokens:,.0f} ({what})")
        if plan.samples:
            yield _line("", f"and {one.alternative_replies:,.0f} replies, where the world lists no actions")
    if plan.continuations:
        what = f"{plan.continuations} from each state"
        yield _line("continuations", f"{one.continued_replies:,.0f} replies ({what}, episodes of full length)")
    yield _line("log-probabilities", f"{one.old_logp_tokens + one.ref_logp_tokens:,.0f} (old and reference policy)")
    yield _line("trained on", f"{one.trained_tokens:,.0f}, of them {one.loss_tokens:,.0f} in the loss")
    if (run := found.run) is not None:
        yield _line("whole run", f"{found.batches:,.0f} rollout batches, {run.sampled_tokens:,.0f} tokens sampled")
    else:
        yield _line("whole run", "not known: set `max_steps`, or make the tasks available")


def _memory_lines(found: Estimate, devices: Devices) -> Iterator[str]:
    yield "\n  memory of one process, estimated from the model's sizes (doctor/memory.py states the formulae)"
    if found.memory is None:
        yield _line("peak", "not known: the model's sizes are not")
        return
    for name, size in found.memory.resident.items():
        yield _line(name, gigabytes(size))
    for stage, parts in found.memory.stages.items():
        if parts:
            details = ", ".join(f"{name} {gigabytes(size)}" for name, size in parts.items())
            yield _line(f"+ in {stage}", f"{gigabytes(sum(parts.values()))} ({details})")
    beside = "allocator and libraries" if found.device == "cpu" else "allocator and CUDA, as commonly seen"
    yield _line("peak", f"{_range(found)}: its tensors, and with {beside}; a colocated engine not counted")
    if devices.gpus:
        yield _line("there is", ", ".join(gigabytes(gpu.memory) for gpu in devices.gpus))
    for note in found.memory.notes:
        yield _line("note", note)


def _analyzer_lines(found: Estimate) -> Iterator[str]:
    one = found.batch
    yield "\n  analyzer"
    if not one.analyzer_calls:
        yield _line("calls", "none: no `analyzer_model`, or a guidance that asks no analyzer")
        return
    yield _line("calls of a batch", f"{one.analyzer_calls:,.0f} at most (0.6 of that in a small run, docs/scaling.md)")
    yield _line("tokens of a batch", f"{one.analyzer_prompt_tokens or 0:,.0f} + {one.analyzer_reply_tokens or 0:,.0f}")
    if found.dollars is None:
        yield _line("cost", "not known: LiteLLM's list has no price for this model")
        return
    yield _line(
        "cost of a batch", f"{found.dollars:,.2f} USD, from LiteLLM's price list, cached prompts at full price"
    )
    if found.batches is not None:
        yield _line("whole run", f"{found.dollars * found.batches:,.2f} USD")


def _line(name: str, value: str) -> str:
    return f"        {name:<{_WIDTH + 6}}  {value}"
