"""One event loop in a thread of its own, shared by all HTTP retrievers and background servers of a process.

A loop of our own makes deadlines exact, whatever a server does or leaves undone, and works where the caller's thread
already runs a loop, as in notebooks.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar


T = TypeVar("T")

_GRACE_SECONDS = 1.0


class _LoopHolder:
    """The loop of this process, started on first use."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def get(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="taspo-http", daemon=True).start()
            return self._loop

    def stop(self) -> None:
        """Give closing connections a moment, cancel the rest, stop."""
        loop = self._loop
        if loop is None:
            return

        async def finish() -> None:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            if others:
                _, pending = await asyncio.wait(others, timeout=_GRACE_SECONDS)
                for task in pending:
                    task.cancel()
            loop.call_soon(loop.stop)

        asyncio.run_coroutine_threadsafe(finish(), loop)


_holder = _LoopHolder()
# Threads do not survive a fork: a child starts a loop of its own.
os.register_at_fork(after_in_child=_holder.reset)
atexit.register(_holder.stop)


def background_loop() -> asyncio.AbstractEventLoop:
    """The loop. The same object as long as the process lives."""
    return _holder.get()


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the loop and wait for it; an interrupt while waiting cancels it."""
    future = asyncio.run_coroutine_threadsafe(coroutine, background_loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise
