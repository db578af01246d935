"""Which checkpoints of a run are whole, and which one of them `last` means. Reads names and heads of files only."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import zipfile
from pathlib import Path

from .errors import ConfigurationError


logger = logging.getLogger(__name__)

_NAME = re.compile(r"checkpoint-([0-9]+)")
_WEIGHTS = (
    "model*.safetensors",
    "adapter_model*.safetensors",
    "pytorch_model*",
    "adapter_model*.bin",
    "global_step*",
)
"""Patterns of what holds weights, in the formats of transformers, PEFT, FSDP and DeepSpeed."""


def checkpoints_of(folder: str | Path) -> list[Path]:
    """The folders `checkpoint-N` of a run, the largest N first."""
    path = Path(folder)
    if not path.is_dir():
        return []
    found = {one: int(match[1]) for one in path.iterdir() if (match := _NAME.fullmatch(one.name)) and one.is_dir()}
    return sorted(found, key=lambda one: found[one], reverse=True)


def step_of(checkpoint: str | Path) -> int:
    """The optimizer step after which a checkpoint was saved.

    Raises:
        ConfigurationError: it has no readable `trainer_state.json`.
    """
    fault = _state_fault(Path(checkpoint))
    if fault:
        raise ConfigurationError(f"{checkpoint} cannot be resumed from: {fault}.")
    return int(json.loads(Path(checkpoint, "trainer_state.json").read_bytes())["global_step"])


def fault_of(checkpoint: str | Path) -> str:
    """Why a checkpoint is not whole; empty where it is.

    A save that was killed, a full disk and an interrupted copy leave files that are missing or end early. Weights are
    not read, only the heads and ends of their files.
    """
    folder = Path(checkpoint)
    return _state_fault(folder) or weights_fault(folder)


def weights_fault(folder: str | Path) -> str:
    """Why the weights of a folder, or whatever else torch wrote into it, cannot be read; empty where they can."""
    folder = Path(folder)
    if not any(any(folder.glob(pattern)) for pattern in _WEIGHTS):
        return "it holds no weights"
    for index in sorted(folder.glob("*.index.json")):
        try:
            shards = set(json.loads(index.read_bytes())["weight_map"].values())
        except (ValueError, KeyError, AttributeError, TypeError):
            return f"{index.name} is cut off"
        for shard in sorted(shards):
            if not (folder / shard).is_file():
                return f"{shard} is missing"
    for file in sorted(folder.glob("*")):
        if file.suffix == ".safetensors" and not _is_whole_safetensors(file):
            return f"{file.name} is cut off"
        if file.suffix in (".pt", ".pth", ".bin") and file.is_file() and not _is_whole_torch(file):
            return f"{file.name} is cut off"
    return ""


def weights_digest(folder: str | Path) -> str | None:
    """A short name for the weights in a model's folder, whatever the folder is called; None where there are none.

    Of each file its name, its size, and a megabyte at its beginning, in its middle and at its end: training moves all
    of them.
    """
    files = sorted({file for pattern in _WEIGHTS for file in Path(folder).glob(pattern) if file.is_file()})
    digest = hashlib.blake2b(digest_size=8)
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name} {size} ".encode())
        with open(path, "rb") as file:
            for place in sorted({0, max(0, size // 2 - _PART // 2), max(0, size - _PART)}):
                file.seek(place)
                digest.update(file.read(_PART))
    return digest.hexdigest() if files else None


_PART = 2**20


def last_checkpoint(folder: str | Path) -> Path | None:
    """The whole `checkpoint-N` of `folder` with the largest N; None where there is none.

    Those that are not whole are passed over with a warning that names them.
    """
    torn: list[tuple[Path, str]] = []
    for one in checkpoints_of(folder):
        fault = fault_of(one)
        if not fault:
            for name, why in torn:
                logger.warning("%s is torn: %s. The last whole checkpoint is %s.", name, why, one)
            return one
        torn.append((one, fault))
    for name, why in torn:
        logger.warning("%s is torn: %s. There is no whole checkpoint.", name, why)
    return None


def checkpoint_to_resume(value: str | Path | bool | None, output_dir: str | Path) -> str | None:
    """The checkpoint folder that `resume_from_checkpoint` means.

    Args:
        value (`str` or `bool`, *optional*):
            `True`, `"true"` or `"last"`: the last whole checkpoint of `output_dir`. `None`, `False` or `"false"`:
            none. Else a folder.
        output_dir (`str` or `Path`):
            Where the run saves.

    Raises:
        ConfigurationError: there is no such checkpoint, it is torn, or it holds a model and nothing to go on with.
    """
    word = str(value).lower()
    if value is None or word in ("false", "none"):
        return None
    if word in ("true", "last"):
        last = last_checkpoint(output_dir)
        if last is None:
            raise ConfigurationError(
                f"There is no checkpoint in {output_dir} to resume from. Leave `resume_from_checkpoint` out to "
                "start anew (`save_strategy` and `save_steps` say when one is saved), or name a checkpoint's folder."
            )
        _check_training_state(last)
        return str(last)
    path = Path(str(value))
    fault = fault_of(path) if path.is_dir() else ""
    if fault or not path.is_dir():
        last = last_checkpoint(output_dir)
        remedy = f"`last` means {last}." if last else f"{output_dir} holds none either: leave the option out."
        if not path.is_dir():
            raise ConfigurationError(f"There is no checkpoint {value} to resume from. {remedy}")
        raise ConfigurationError(f"{value} is torn and cannot be resumed from: {fault}. {remedy}")
    _check_training_state(path)
    return str(value)


def _check_training_state(checkpoint: Path) -> None:
    """Every process of a run saves its random state, unless `save_only_model` says otherwise."""
    if not any(checkpoint.glob("rng_state*.pth")):
        whole = [one for one in checkpoints_of(checkpoint.parent) if any(one.glob("rng_state*.pth"))]
        other = next((one for one in whole if not fault_of(one)), None)
        remedy = f"Resume from {other}" if other else "Train it as a new run (`model_name_or_path`)"
        raise ConfigurationError(
            f"{checkpoint} holds a model only (`save_only_model`): neither its optimizer nor its place in the data, "
            f"so no run can go on from it. {remedy}, and save whole checkpoints with `save_only_model` False."
        )


def _state_fault(folder: Path) -> str:
    path = folder / "trainer_state.json"
    if not path.is_file():
        return "trainer_state.json is missing"
    try:
        state = json.loads(path.read_bytes())
    except ValueError:
        return "trainer_state.json is cut off"
    return "" if isinstance(state, dict) and "global_step" in state else "trainer_state.json has no `global_step`"


def _is_whole_safetensors(file: Path) -> bool:
    """The head says where the last tensor ends."""
    size = file.stat().st_size
    with open(file, "rb") as content:
        length = int.from_bytes(content.read(8), "little")
        if size < 8 + length or not length:
            return False
        try:
            head = json.loads(content.read(length))
            ends = [one["data_offsets"][1] for name, one in head.items() if name != "__metadata__"]
        except (ValueError, KeyError, IndexError, TypeError, AttributeError):
            return False
    return size == 8 + length + max(ends, default=0)


def _is_whole_torch(file: Path) -> bool:
    """torch writes a zip archive, whose list of contents comes last; older files are a bare pickle, or a tar."""
    with open(file, "rb") as content:
        head = content.read(4)
    return zipfile.is_zipfile(file) if head.startswith(b"PK") else bool(head.strip(b"\0"))
