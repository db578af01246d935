"""Files that survive their writer, whatever kills it: whole or not at all, or line by line."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from .errors import ConfigurationError
from .redaction import without_secrets


logger = logging.getLogger(__name__)

PARTIAL = ".partial"
"""Ending of a file that is being written."""


@contextlib.contextmanager
def replacing(path: str | os.PathLike, binary: bool = False) -> Iterator[IO]:
    """A file to write, in UTF-8, that takes the place of `path` when the block ends without an error.

    A reader sees the old content or the new one, never half of it, and after a power failure too. Half a surrogate
    pair becomes its escape. If the block fails the old content stays, and what was written is removed again: on a full
    disk it would only be in the way.

    Args:
        path (`str` or `PathLike`):
            Its folder is made.
        binary (`bool`, *optional*, defaults to `False`):
            Bytes instead of text.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + PARTIAL)
    text = {} if binary else {"encoding": "utf-8", "errors": "backslashreplace", "newline": "\n"}
    try:
        with open(partial, "wb" if binary else "w", **text) as file:  # type: ignore[call-overload]
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise
    flush_entry(path.parent)


def write_text(path: str | os.PathLike, text: str) -> None:
    """Put `text` into the file `path`, as [`replacing`] does."""
    with replacing(path) as file:
        file.write(text)


def flush_entry(folder: str | Path) -> None:
    """Write a folder's list of names to the disk; where a file system cannot, it does so by itself."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def flush_folder(folder: str | Path) -> None:
    """Write everything in a folder to the disk.

    Raises:
        OSError: the disk does not take it.
    """
    for root, _, names in os.walk(os.fspath(folder)):
        for name in names:
            handle = os.open(Path(root, name), os.O_RDONLY)
            try:
                os.fsync(handle)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.EBADF):  # what this file system does not know
                    raise
            finally:
                os.close(handle)
        flush_entry(root)


def remove_folder(folder: str | os.PathLike, trash: str | os.PathLike) -> None:
    """Remove a folder in one step for its readers: it is renamed into `trash` first.

    Args:
        folder (`str` or `PathLike`):
            What to remove; may be missing.
        trash (`str` or `PathLike`):
            A folder on the same file system whose content nobody reads.
    """
    folder, trash = Path(folder), Path(trash)
    trash.mkdir(parents=True, exist_ok=True)
    target = trash / f"removed-{folder.name}"
    shutil.rmtree(target, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        os.rename(folder, target)
    shutil.rmtree(target, ignore_errors=True)


@dataclass
class SkippedLines:
    """Lines of one of our files that cannot be read: left out while reading, counted and named once at the end.

    Args:
        path (`Path`):
            The file.
        what (`str`):
            What its lines are, in the plural: "trajectory records".
    """

    path: Path
    what: str
    reasons: list[str] = field(default_factory=list)
    """`line N: why`, in their order."""

    def add(self, number: int, error: object) -> None:
        """Leave out line `number`, which counts from 1."""
        why = f"no field {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__
        self.reasons.append(f"line {number}: {why[:_REASON_CHARS]}")

    def tell(self) -> None:
        """Say how many lines were left out, and name the first of them."""
        if self.reasons:
            rest = len(self.reasons) - _NAMED_LINES
            logger.warning(
                "%s: %d of its lines are no %s and are skipped (%s%s).",
                self.path,
                len(self.reasons),
                self.what,
                "; ".join(self.reasons[:_NAMED_LINES]),
                f"; and {rest} more" if rest > 0 else "",
            )


def go_on(path: Path, facts: Mapping[str, Any], take: Callable[[Any], None], *, what: str, other: str) -> None:
    """Give `take` each line of what an interrupted run left in a file; starts the file when there is none.

    The first line names the settings. The last one of a killed run may be cut; such lines, and those that `take`
    cannot read, are left out, and what [`append_line`] writes next begins a line of its own.

    Args:
        path (`Path`):
            The file, JSON lines.
        facts (`Mapping[str, Any]`):
            The settings that it belongs to.
        take (`Callable`):
            Called with the data of a line.
        what (`str`), other (`str`):
            What the lines are, and what a file with other settings holds; for the messages.

    Raises:
        ConfigurationError: the file belongs to other settings.
    """
    header = json.dumps(without_secrets({"settings": facts}), sort_keys=True, default=str)
    if not path.exists() or path.stat().st_size == 0:
        write_text(path, header + "\n")
        return
    # A kill may cut a character in two; and lines end at nothing else: JSON leaves other separators in its strings.
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    if lines[0] != header:
        raise ConfigurationError(f"{path} holds {other}. Delete it, or choose another output.")
    end_last_line(path)
    skipped = SkippedLines(path, what)
    for number, line in enumerate(lines[1:], 2):
        if not line.strip():
            continue
        try:
            take(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            skipped.add(number, error)
    skipped.tell()


def append_line(path: str | os.PathLike, data: Mapping[str, Any]) -> None:
    """Add a line to a file of JSON lines, without secrets."""
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(without_secrets(data), ensure_ascii=False) + "\n")


def end_last_line(path: Path) -> None:
    """A run that was killed while writing leaves half a line: the next one begins a line of its own."""
    if path.exists() and path.stat().st_size:
        with open(path, "rb+") as file:
            file.seek(-1, os.SEEK_END)
            if file.read() != b"\n":
                file.write(b"\n")


_NAMED_LINES = 5
_REASON_CHARS = 200
_told: set[tuple[str, str]] = set()


@contextlib.contextmanager
def spared(what: str, path: str | os.PathLike) -> Iterator[None]:
    """A failure of the disk inside costs this file only; it is said aloud once for each kind and folder.

    For what a run can do without. Checkpoints are no such thing.

    Args:
        what (`str`):
            Names the file in the warning, in the plural: "the episodes' records".
        path (`str` or `PathLike`):
            Where it should have gone.
    """
    try:
        yield
    except OSError as error:
        place = str(Path(path).parent)
        if (what, place) not in _told:
            _told.add((what, place))
            logger.warning(
                "%s cannot be written to %s: %s. The run goes on without them; free space or mend the folder, and the "
                "next ones are written again.",
                what[:1].upper() + what[1:],
                place,
                error.strerror or error,
            )
