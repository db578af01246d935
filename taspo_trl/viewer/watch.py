"""Keeps the page of a run that still goes on up to date."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from ..errors import RecordError
from .sources import find_run
from .write import write_viewer


_PATIENCE = 10
"""A page that took s seconds to write is not written again before 10 s: at most a tenth of a core."""


def watch(
    run_dir: str | os.PathLike,
    output: str | os.PathLike | None = None,
    *,
    seconds: float = 10.0,
    on_write: Callable[[Path, int], None] = lambda path, count: None,
    on_wait: Callable[[str], None] = lambda reason: None,
    sleep: Callable[[float], None] = time.sleep,
) -> Path | None:
    """Write the page of a run anew whenever the run left something new, until Ctrl-C.

    The page is always whole. An open one loads itself again every `seconds`; the last one, which is written when the
    watch ends, does not.

    Args:
        run_dir, output:
            As in [`~taspo_trl.viewer.write_viewer`]. The folder may be empty yet, or not there.
        seconds (`float`, *optional*, defaults to `10.0`):
            How often the run's files are looked at.
        on_write (`Callable`, *optional*):
            Called with the page and how often it was written.
        on_wait (`Callable`, *optional*):
            Called once with the reason while there is nothing to show.
        sleep (`Callable`, *optional*):
            Waits; an interrupt in it ends the watch.

    Returns:
        `Path` or `None`: the page; None when the run never left anything.
    """
    path: Path | None = None
    seen: object = None
    count = 0
    has_waited = False
    try:
        while True:
            pause = seconds
            try:
                now = _signature(run_dir)
                if now != seen:
                    started = time.monotonic()
                    path = write_viewer(run_dir, output, reload_seconds=seconds)
                    seen, count = now, count + 1
                    on_write(path, count)
                    pause = max(seconds, _PATIENCE * (time.monotonic() - started))
            except (RecordError, FileNotFoundError) as error:  # nothing yet, or a file was moved while it was read
                if path is None and not has_waited:
                    has_waited = True
                    on_wait(str(error))
            sleep(pause)
    except KeyboardInterrupt:
        return None if path is None else write_viewer(run_dir, output)


def _signature(run_dir: str | os.PathLike) -> object:
    """What changes when the run leaves something."""
    run = find_run(run_dir)
    files = [one.path for one in run.records if not one.is_partial] + [*run.logs, *run.evaluations]
    return [(str(path), (stat := path.stat()).st_mtime_ns, stat.st_size) for path in files], run.notes
