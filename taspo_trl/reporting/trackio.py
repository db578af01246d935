"""Trajectories as trackio traces: what the policy and the environment said, with the guidance and the weights.

Everything in a trace is untrusted text; trackio's dashboard escapes it. Values of environment variables that are named
like secrets are taken out, since a world may echo them. Episodes leave this machine only where
`hub_push_trajectories` allows it.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..records import TrajectoryRecord
from ..redaction import redactor
from ..rollout.rewards import conversation_of
from ..types import Credit, Turn


logger = logging.getLogger(__name__)

TRACE_KEY = "trajectories"
"""What the traces are logged as."""

_DESTINATIONS = ("TRACKIO_SPACE_ID", "TRACKIO_BUCKET_ID", "TRACKIO_DATASET_ID", "TRACKIO_SERVER_URL")


def log_traces(args: Any, records: Sequence[TrajectoryRecord], step: int) -> bool:
    """Log a rollout batch to the trackio run of this process, if it wants one. Call it on the main process only.

    Args:
        args ([`~taspo_trl.TASPOConfig`]):
            `report_to` decides, with the fields that say where a run's files go. With `log_unique_prompts` only the
            first trajectory of each group is logged.
        records (`Sequence[TrajectoryRecord]`):
            The batch.
        step (`int`):
            `global_step`. Given to trackio, so that its axis stays that of the trainer.

    Returns:
        `bool`: whether anything was logged.
    """
    if not records or not is_reported(args):
        return False
    if leaves(args) and not args.hub_push_trajectories:
        logger.info("trackio gets no trajectories: its logs go elsewhere, and `hub_push_trajectories` is not set.")
        return False
    import trackio

    if not hasattr(trackio, "Trace") or trackio.context_vars.current_run.get() is None:
        logger.info("trackio gets no trajectories: it has no traces (before 0.25) or no run.")
        return False
    shown = firsts(records) if getattr(args, "log_unique_prompts", False) else records
    takes_spans = "spans" in inspect.signature(trackio.Trace).parameters
    traces = []
    for record in shown:
        content = trace_content(record)
        traces.append(trackio.Trace(**content if takes_spans else _without_spans(content)))
    trackio.log({TRACE_KEY: traces}, step=step)
    return True


@contextlib.contextmanager
def traces_kept_here(args: Any) -> Iterator[None]:
    """While a push runs, keep trackio from copying logs with episodes into a Space, as it does after any push."""
    if not is_reported(args) or leaves(args) or args.hub_push_trajectories:
        yield
        return
    kept, args.trackio_static_space_id = args.trackio_static_space_id, False
    try:
        yield
    finally:
        args.trackio_static_space_id = kept


def trace_content(record: TrajectoryRecord) -> dict[str, Any]:
    """The keywords of a `trackio.Trace`: the chat, what is known of the trajectory, and a span for each turn."""
    trajectory, credit, guidance = record.trajectory, record.credit, record.guidance
    opening, completion = conversation_of(trajectory)
    metadata: dict[str, Any] = {
        "uid": trajectory.uid,
        "group": record.group_id,
        "family": trajectory.family,
        "status": "error" if trajectory.error else "success" if trajectory.success else "failed",
        "stop_reason": trajectory.stop_reason.value,
        "reward": trajectory.reward,
        "turns": len(trajectory.turns),
        "duration_ms": round(trajectory.seconds * 1000),
    }
    if trajectory.error:
        metadata["error"] = trajectory.error
    if credit is not None:
        metadata |= {"advantage": round(credit.advantage, 4), "weights": _rounded(credit.weights)}
        if credit.fallback:
            metadata["weights_are_1_because"] = credit.fallback
    if guidance is not None:
        metadata["construction"] = guidance.construction
        metadata |= {"guidance": guidance.text} if guidance else {"no_guidance": guidance.abstain_reason}
    return cleaned(
        {
            "messages": [*opening, *completion],
            "metadata": metadata,
            "spans": [_span(k, turn, credit) for k, turn in enumerate(trajectory.turns)],
        },
        redactor(),
    )


def _span(index: int, turn: Turn, credit: Credit | None) -> dict[str, Any]:
    """A turn in trackio's execution tree. The texts are in the messages; this holds the action and its credit."""
    weight = credit.weights[index] if credit is not None else None
    support = credit.supports[index] if credit is not None and credit.supports else None
    output: dict[str, Any] = {"action": turn.action, "accepted": turn.valid}
    if credit is not None and weight is not None:
        output |= {"weight": round(weight, 4), "weighted_advantage": round(credit.advantage * weight, 4)}
    if support is not None:
        output["support"] = round(support, 4)
    shown_weight = f", w {weight:.2f}" if weight is not None else ""
    return {
        "id": f"turn-{index}",
        "name": f"turn {index}{shown_weight}: {turn.action or 'no action'}",
        "kind": "generation",
        "output": output,
        "usage": {"input_tokens": len(turn.prompt_ids), "output_tokens": len(turn.reply_ids)},
    }


def _without_spans(content: Mapping[str, Any]) -> dict[str, Any]:
    """For trackio before spans: the chat and the metadata, which has the weights too."""
    return {name: value for name, value in content.items() if name != "spans"}


def firsts(records: Iterable[TrajectoryRecord]) -> list[TrajectoryRecord]:
    """The first record of each group."""
    by_group: dict[str, TrajectoryRecord] = {}
    for record in records:
        by_group.setdefault(record.group_id, record)
    return list(by_group.values())


def is_reported(args: Any) -> bool:
    """Whether the run reports to trackio."""
    return "trackio" in (args.report_to or ())


def leaves(args: Any) -> bool:
    """Whether trackio's logs go to a Space, a bucket, a data set or a server."""
    fields = (args.push_to_hub, args.trackio_space_id, args.trackio_static_space_id, args.trackio_bucket_id)
    return any(fields) or any(os.environ.get(name) for name in _DESTINATIONS)


def _rounded(values: Iterable[float]) -> list[float]:
    return [round(value, 4) for value in values]


def cleaned(value: Any, redact: Callable[[str], str]) -> Any:
    """`value` without secrets, and without half surrogates, which no JSON writer of trackio takes."""
    if isinstance(value, str):
        return redact(value).encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping):
        return {str(key): cleaned(inner, redact) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [cleaned(inner, redact) for inner in value]
    return value
