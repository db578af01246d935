"""Bounds a weight update in time: a process that waits inside NCCL can be ended, but not woken up."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


logger = logging.getLogger(__name__)


def end_process(reason: str) -> None:
    """Log the reason and leave at once, as PyTorch's own watchdog does; a launcher then ends the other processes."""
    logger.critical(reason)
    for handler in logging.getLogger().handlers:
        handler.flush()
    os._exit(1)


@contextmanager
def watched(seconds: float, reason: str, end: Callable[[str], object] = end_process) -> Iterator[Callable[[], None]]:
    """End the process when the body makes no progress.

    Args:
        seconds (`float`):
            Longest time without progress, and from the last progress to the end of the body.
        reason (`str`):
            What is logged.
        end (`Callable`, *optional*):
            Called with the reason, from another thread, when the time is up.

    Yields:
        `Callable`: to be called at every progress.
    """
    signs: queue.SimpleQueue[bool] = queue.SimpleQueue()  # True: progress; False: the body has ended

    def watch() -> None:
        try:
            while signs.get(timeout=seconds):
                pass
        except queue.Empty:
            end(reason)

    thread = threading.Thread(target=watch, name="taspo-vllm-watch", daemon=True)
    thread.start()
    try:
        yield lambda: signs.put(True)
    finally:
        signs.put(False)
        thread.join()
