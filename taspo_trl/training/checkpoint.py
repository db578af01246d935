"""What TRL's checkpoints lack: the rows of a partly used rollout batch, and where in it the run stands.

The rows are in a file of their own, whose name begins with `_`: they hold what the policy wrote in its episodes, and
checkpoints may be pushed to the Hub without it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..errors import ConfigurationError
from ..loss.batches import LossRow, from_state, to_state


logger = logging.getLogger(__name__)

Buffer = list[list[list[LossRow]]]
"""For each micro-step of a rollout batch its micro-batches of rows."""

_TEACHER = "taspo_teacher.pt"
_VERSION = 2


@dataclass(frozen=True)
class TrainingState:
    """The position of a run inside its rollout batches."""

    step: int
    """Micro-steps taken so far (TRL's `_step`)."""
    buffer: Buffer | None
    """This process's rows of a partly used rollout batch; None between batches, and where the rows did not travel."""
    layout: Mapping[str, int]
    """The settings that the buffer was made for; a run with others cannot use it."""
    logged: Mapping[str, Any] = field(default_factory=dict)
    """What is summed up for the next log entry, where a checkpoint is saved between two of them."""

    @property
    def micro_steps_per_rollout(self) -> int:
        """Micro-steps that use one rollout batch, with the settings of the run that saved this."""
        return self.layout["steps_per_generation"] * self.layout["num_iterations"]

    @property
    def num_rollouts(self) -> int:
        """Rollout batches of which the run keeps the records: all but one that is to be played again."""
        num_rollouts, num_used = divmod(self.step, self.micro_steps_per_rollout)
        return num_rollouts + (num_used > 0 and self.buffer is not None)


def state_path(folder: str | Path, process_index: int) -> Path:
    """Where the state of a process lies in a checkpoint folder."""
    return Path(folder) / f"taspo_state_{process_index}.pt"


def rows_path(folder: str | Path, process_index: int) -> Path:
    """Where the rows of a process lie in a checkpoint folder."""
    return Path(folder) / f"_taspo_rows_{process_index}.pt"


def save_state(folder: str | Path, process_index: int, state: TrainingState) -> None:
    """Write the state into a checkpoint folder: tensors, numbers and strings, which load without running code."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    position = {"step": state.step, "layout": dict(state.layout), "logged": dict(state.logged)}
    torch.save({"version": _VERSION, **position}, state_path(folder, process_index))
    rows = rows_path(folder, process_index)
    if state.buffer is None:
        rows.unlink(missing_ok=True)  # those of an earlier run in the same folder
        return
    buffer = [[[dict(to_state(row)) for row in batch] for batch in micro] for micro in state.buffer]
    torch.save({"version": _VERSION, "step": state.step, "buffer": buffer}, rows)


def save_teacher(folder: str | Path, state: Mapping[str, Any]) -> None:
    """Write what a method's teacher keeps, the same on every process."""
    if state:
        torch.save({"version": _VERSION, "teacher": dict(state)}, Path(folder) / _TEACHER)


def load_teacher(folder: str | Path) -> Mapping[str, Any]:
    """Read what [`save_teacher`] wrote.

    Raises:
        ConfigurationError: the checkpoint is of a run whose method had no such teacher.
    """
    path = Path(folder) / _TEACHER
    if not path.exists():
        return {}
    return _load(path)["teacher"]


def load_state(folder: str | Path, process_index: int) -> TrainingState | None:
    """Read what [`save_state`] wrote; None when the checkpoint has no such file.

    A process that the run did not have before stands where the first one does.

    Raises:
        ConfigurationError: the file has a layout that this version of the package does not know.
    """
    path = state_path(folder, process_index)
    if not path.exists():
        path = state_path(folder, 0)
    if not path.exists():
        return None
    data = _load(path)
    rows = rows_path(folder, process_index)
    kept = _load(rows) if rows.exists() else {}
    # A push adds files and removes none: `last-checkpoint` on the Hub may still have the rows of an earlier one.
    buffer = _buffer(kept["buffer"]) if kept.get("step") == data["step"] else None
    return TrainingState(data["step"], buffer, data["layout"], data.get("logged", {}))


def resumed_position(
    checkpoint: str, state: TrainingState, layout: Mapping[str, int], micro_steps_per_rollout: int
) -> tuple[int, Buffer | None]:
    """(micro-steps taken, rows that are left of the rollout batch) of a run that resumes with `layout`.

    Raises:
        ConfigurationError: the checkpoint stands inside a rollout batch that was made for other settings.
    """
    per_rollout = state.layout["steps_per_generation"] * state.layout["num_iterations"]
    num_rollouts, num_used = divmod(state.step, per_rollout)
    if not num_used:  # between two batches, which other settings may have other micro-steps for
        return num_rollouts * micro_steps_per_rollout, None
    if dict(state.layout) != dict(layout):
        raise ConfigurationError(
            f"{checkpoint} stands in a partly used rollout batch made for {dict(state.layout)}, but the run has "
            f"{dict(layout)}. Resume with the same settings, or from a checkpoint between two rollout batches."
        )
    if state.buffer is None:
        logger.warning(
            "%s does not hold the rows of its partly used rollout batch, which stay behind when a checkpoint goes "
            "to the Hub. The tasks of that batch are played again, for the updates that are left of it.",
            checkpoint,
        )
    return state.step, state.buffer


def _load(path: Path) -> dict[str, Any]:
    data: dict[str, Any] = torch.load(path, weights_only=True)
    if data["version"] != _VERSION:
        raise ConfigurationError(
            f"{path} is a training state of version {data['version']!r}, this version of taspo_trl reads {_VERSION}. "
            "Resume with the version that wrote it."
        )
    return data


def _buffer(data: Sequence) -> Buffer:
    return [[[from_state(row) for row in batch] for batch in micro] for micro in data]


def unreadable_file(checkpoint: str) -> str | None:
    """The name of the first file of a checkpoint that torch cannot read; None where it can read all.

    For the message after something failed: it reads every file, which for a large optimizer takes a while.
    """
    for path in sorted(Path(checkpoint).glob("*")):
        if path.suffix not in (".pt", ".pth", ".bin") or not path.is_file():
            continue
        try:
            torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:
            if "Unsupported global" not in str(error):  # refused for its classes, not for its bytes
                return path.name
    return None
