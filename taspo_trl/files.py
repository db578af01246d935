"""Files and folders that appear whole or not at all, whatever kills their writer."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO


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
