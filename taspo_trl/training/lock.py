"""One live run in an output folder: a lock of the operating system, which dies with the process that holds it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from ..errors import ConfigurationError


logger = logging.getLogger(__name__)

LOCK = "_run.lock"


@contextlib.contextmanager
def only_run_in(output_dir: str | os.PathLike) -> Iterator[None]:
    """Hold the folder for this run. Reading it, evaluating and viewing need no lock.

    A process that this one forks does not keep the lock alive. Where the file system knows no locks a warning says so.

    Raises:
        ConfigurationError: another live run has the folder; the message names its process.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    path = Path(output_dir, LOCK)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    open_handles.add(handle)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError(
                f"{output_dir} belongs to a run that is still alive ({_holder(path)}): two runs would overwrite each "
                "other's checkpoints and records. Wait for it or end it, or choose another `output_dir`."
            ) from None
        except OSError as error:
            logger.warning("%s cannot be locked (%s): see to it that no two runs use the folder.", path, error)
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        with contextlib.suppress(OSError):
            os.ftruncate(handle, 0)
            os.pwrite(handle, json.dumps(holder).encode(), 0)
        yield
    finally:
        open_handles.discard(handle)
        os.close(handle)


@contextlib.contextmanager
def if_abandoned(folder: str | os.PathLike) -> Iterator[bool]:
    """Whether a run had the folder and is dead; while the block lasts nobody else gets it.

    False where that cannot be known: nothing says that it was ever locked, or the file system knows no locks.
    """
    path = Path(folder, LOCK)
    try:
        import fcntl

        was_held = bool(path.read_bytes())  # written under the lock: a run that only begins is no dead one
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except (ImportError, OSError):
        yield False
        return
    open_handles.add(handle)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            was_held = False
        yield was_held
    finally:
        open_handles.discard(handle)
        os.close(handle)


open_handles: set[int] = set()
"""Those of this process; a forked one closes its copies."""


def _forget_in_child() -> None:
    for handle in open_handles:
        with contextlib.suppress(OSError):
            os.close(handle)
    open_handles.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)


def _holder(path: Path) -> str:
    try:
        data = json.loads(path.read_bytes())
        return f"process {data['pid']} on {data['host']}, since {data['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "its process is not known"
