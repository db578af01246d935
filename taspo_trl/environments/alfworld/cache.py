"""A folder of results keyed by content, made once by whichever process comes first.

Entries are files of bytes, written to a temporary name and renamed, so that a reader sees a whole entry or none.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any


logger = logging.getLogger(__name__)

_LOCK_SECONDS = 60.0


def cache_dir() -> Path:
    """Where this package keeps what it can make again: `TASPO_CACHE`, else `taspo_trl` in the user's cache folder."""
    if folder := os.environ.get("TASPO_CACHE"):
        return Path(folder).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "taspo_trl"


class DiskCache:
    """Entries below `folder`; when it cannot be used, everything is made anew, which is slow but right.

    Args:
        folder (`Path`):
            Made on the first write. Deleting it, or any file in it, is always safe.
        suffix (`str`):
            Ending of an entry's file name.
    """

    def __init__(self, folder: Path, suffix: str):
        self._folder = folder
        self._suffix = suffix

    def fetch(self, key: str, make: Callable[[], bytes], check: Callable[[bytes], Any]) -> bytes:
        """The entry `key`, which `make` makes when there is none or when `check` raises `ValueError` for it.

        Of several processes that want the same new entry, one makes it and the others wait.
        """
        path = self._folder / key[:2] / (key + self._suffix)
        if (entry := _read(path, check)) is not None:
            return entry
        with self._lock(path.parent):
            if (entry := _read(path, check)) is not None:
                return entry
            entry = make()
            try:
                write_atomically(path, entry)
            except OSError as error:
                self._complain(error)
            return entry

    @contextmanager
    def _lock(self, folder: Path) -> Iterator[None]:
        """Hold `folder`'s lock, or go on without: it saves work, nothing depends on it."""
        from filelock import FileLock, Timeout

        with ExitStack() as stack:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                # One lock for all entries of a sub-folder: a lock file for each entry would double the files.
                stack.enter_context(FileLock(folder / ".lock", timeout=_LOCK_SECONDS))
            except Timeout:
                logger.warning(f"{folder} has been locked for {_LOCK_SECONDS:.0f} s; not waiting any longer.")
            except (OSError, NotImplementedError) as error:  # no such folder, or a file system without locks
                self._complain(error)
            yield

    def _complain(self, error: Exception) -> None:
        logger.warning(f"The cache folder {self._folder} cannot be used ({error}). Set `TASPO_CACHE` to another one.")


def write_atomically(path: Path, data: bytes) -> None:
    """Write `path` whole or not at all."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _read(path: Path, check: Callable[[bytes], Any]) -> bytes | None:
    try:
        entry = path.read_bytes()
        check(entry)
    except OSError:  # not there, or not to be read: then writing it will say so
        return None
    except ValueError as error:
        logger.warning(f"The cache entry {path} is damaged ({error}); it is made again.")
        return None
    return entry
