"""Which files of a folder hold a run: trajectories, logs, evaluations, tokenizer.

Looks and reads lines; knows nothing of what a record means, except how an earlier version becomes the newest.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..checkpoints import checkpoints_of
from ..errors import RecordError
from ..files import PARTIAL
from ..records import as_newest


@dataclass(frozen=True)
class RecordFile:
    """A file of trajectory records."""

    path: Path
    is_partial: bool
    """Left behind by a run that was stopped while it wrote: complete lines, then perhaps half of one."""


@dataclass(frozen=True)
class RunFiles:
    """What a run left on disk."""

    name: str
    records: tuple[RecordFile, ...]
    logs: tuple[Path, ...]
    """Files that may hold the log history, the newest first."""
    evaluations: tuple[Path, ...]
    tokenizer: Path | None
    output: Path
    """Where its page goes by default."""
    notes: tuple[str, ...] = ()
    """What a reader should know about the files."""


def find_run(run_dir: str | os.PathLike) -> RunFiles:
    """The files of a run.

    Args:
        run_dir (`str` or `PathLike`):
            The run's `output_dir`; a folder of record files (`*.jsonl`), as `analyze` writes; or one such file.

    Raises:
        RecordError: there is no run; the message says where one may be.
    """
    path = Path(run_dir)
    if path.is_file() and path.name.removesuffix(PARTIAL).endswith(".jsonl"):
        single = RecordFile(path, path.name.endswith(PARTIAL))
        return RunFiles(path.name, (single,), (), (), None, path.with_name(f"{path.name}_view.html"))
    if not path.is_dir():
        raise RecordError(f"{path} is no folder. Give the `output_dir` of a training run.")
    own = path / "_trajectories"
    records, notes = _record_files(own) if own.is_dir() else _record_files(path, is_mixed=True)
    checkpoints = checkpoints_of(path)
    logs = [path / "trainer_state.json", *(one / "trainer_state.json" for one in checkpoints), path / "metrics.json"]
    run = RunFiles(
        name=path.resolve().name,
        records=records,
        logs=tuple(one for one in logs if one.is_file()),
        evaluations=tuple(sorted((path / "_evaluations").glob("*.json"))),
        tokenizer=next((one for one in _tokenizers(path, checkpoints) if one.is_file()), None),
        output=path / "_view.html",
        notes=(*notes, *_unfinished_evaluations(path / "_evaluations")),
    )
    if not (run.records or run.logs or run.evaluations):
        raise RecordError(f"{path} holds no run: no _trajectories, no log, no _evaluations. {_remedy(path)}")
    return run


def read_lines(file: RecordFile) -> Iterator[dict[str, Any] | str]:
    """The raw records of a file in the newest form; a string says what is wrong with a line that is none."""
    with open(file.path, "rb") as lines:
        for count, line in enumerate(lines, 1):
            if not line.strip():
                continue
            if file.is_partial and not line.endswith(b"\n"):
                yield f"{file.path.name}, line {count}: cut in the middle by the end of the run"
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                yield f"{file.path.name}, line {count}: no JSON ({error})"
                continue
            yield (
                dict(as_newest(record))
                if _is_record(record)
                else f"{file.path.name}, line {count}: no trajectory record"
            )


def read_json(path: Path) -> Any:
    """The content of a JSON file.

    Raises:
        ValueError: it holds none, for example because its run was stopped while it wrote.
    """
    try:
        return json.loads(path.read_bytes())
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _is_record(value: Any) -> bool:
    return isinstance(value, dict) and (value.get("kind") == "trajectory" or isinstance(value.get("turns"), list))


def _record_files(folder: Path, is_mixed: bool = False) -> tuple[tuple[RecordFile, ...], list[str]]:
    """Finished and partial files with notes; in a mixed folder only those that begin with a record."""
    finished = [RecordFile(one, False) for one in folder.glob("*.jsonl")]
    partial = [RecordFile(one, True) for one in sorted(folder.glob(f"*.jsonl{PARTIAL}"))]
    if is_mixed:
        finished = [one for one in finished if _begins_with_record(one)]
        partial = [one for one in partial if _begins_with_record(one)]
    names = {one.path.name for one in finished}
    left = [one for one in partial if one.path.name.removesuffix(PARTIAL) not in names]
    notes = [
        f"{one.path.name} was left by a run that was stopped while it wrote; its complete records are shown."
        if one in left
        else f"{one.path.name} is not shown: the finished file is there too."
        for one in partial
    ]
    return tuple(sorted([*finished, *left], key=lambda one: one.path.name)), notes


def _begins_with_record(file: RecordFile) -> bool:
    return isinstance(next(read_lines(file), None), dict)


def _tokenizers(folder: Path, checkpoints: list[Path]) -> list[Path]:
    return [one / "tokenizer.json" for one in (folder, *checkpoints)]


def _unfinished_evaluations(folder: Path) -> list[str]:
    return [f"{one.name} is an evaluation that was not finished." for one in sorted(folder.glob(f"*.json{PARTIAL}"))]


def _remedy(folder: Path) -> str:
    runs = sorted(one.parent for one in folder.glob("*/_trajectories"))
    if runs:
        more = ", ..." if len(runs) > 3 else ""
        return f"There are runs in it: {', '.join(str(one) for one in runs[:3])}{more}."
    return 'Give the `output_dir` of a training run; with `save_trajectories="no"` it has no trajectories.'
