"""Hands a rollout batch to TRL's own metrics and to its table of completions."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

from ..redaction import redactor, without_secrets
from ..reporting.metrics import COUNTS, tokens_seen
from ..rollout.rewards import conversation_of
from .nonfinite import finite_or_nan
from .rollout_batch import Experience


def log_experience(
    experience: Experience, state: Any, metrics: MutableMapping[str, list[float]], logs: MutableMapping[str, Any]
) -> None:
    """Append a rollout batch to what TRL's `log` averages, prints and uploads.

    Args:
        experience (`Experience`):
            The rollout batch.
        state ([`~transformers.TrainerState`]):
            Its `num_input_tokens_seen` is advanced by what TRL counts: [`~taspo_trl.reporting.metrics.tokens_seen`].
        metrics (`MutableMapping[str, list[float]]`):
            TRL's `_metrics["train"]`.
        logs (`MutableMapping[str, Any]`):
            TRL's `_logs`: prompts, completions, rewards, advantages and extra columns, one entry a trajectory.
    """
    # TRL's `log` averages over the batches since the last one; a reason that a batch does not name counts 0 in it.
    num_earlier = len(metrics["reward"])
    for name in {*metrics, *experience.metrics}:
        if name.startswith(COUNTS):
            metrics[name].extend([0.0] * (num_earlier - len(metrics[name])))
            metrics[name].append(experience.metrics.get(name, 0.0))
        elif name in experience.metrics:
            metrics[name].append(finite_or_nan(experience.metrics[name]))
    trajectories = [member for one in experience.collected for member in one.group.trajectories]
    state.num_input_tokens_seen += sum(map(tokens_seen, trajectories))
    metrics["num_tokens"] = [state.num_input_tokens_seen]
    # A column that an earlier batch had and this one lacks is filled up: TRL's table takes the last rows of each.
    redact = redactor()
    names = sorted({*logs["rewards"], *(name for t in trajectories for name in t.rewards)})
    for trajectory, advantage in zip(trajectories, experience.advantages, strict=True):
        prompt, completion = without_secrets(conversation_of(trajectory), redact)
        logs["prompt"].append(prompt)
        logs["completion"].append(completion)
        logs["advantages"].append(advantage)
        for name in names:
            logs["rewards"][name].append(trajectory.rewards.get(name))
    for column in sorted({*logs["extra"], *(column for one in experience.collected for column in one.extra_logs)}):
        for one in experience.collected:
            missing = [None] * len(one.group.trajectories)
            logs["extra"][column].extend(one.extra_logs.get(column, missing))


def pending_log(trainer: Any) -> dict[str, Any]:
    """What the Trainer has summed up since its last log entry, as plain numbers."""
    return {
        "metrics": {name: [float(one) for one in values] for name, values in trainer._metrics["train"].items()},
        "loss": float(trainer._tr_loss),
        "last_step": trainer._globalstep_last_logged,
        "num_nonfinite": trainer._finite_steps.num_skipped,
    }


def restore_pending_log(trainer: Any, pending: Mapping[str, Any]) -> None:
    """Go on summing where [`pending_log`] stood, so that a resumed run's next entry is that of the unbroken one.

    Older checkpoints have nothing pending.
    """
    if pending:
        trainer._metrics["train"].update({name: list(values) for name, values in pending["metrics"].items()})
        trainer._tr_loss = getattr(trainer, "_tr_loss", 0.0) + pending["loss"]
        trainer._globalstep_last_logged = pending["last_step"]
        trainer._finite_steps.num_skipped = pending["num_nonfinite"]
