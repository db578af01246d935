"""Worker threads that never keep a process alive.

`concurrent.futures.ThreadPoolExecutor` joins its threads at the end of the process: after Ctrl-C the terminal would
wait for every request in flight. What runs here is given up with the process.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


_Call = tuple[Future, Callable[..., Any], tuple]


class DaemonPool:
    """Runs calls in a few daemon threads: urgent ones first, else in the order of submission.

    Args:
        max_workers (`int`):
            Threads; they are started as work comes in.
        name (`str`):
            Beginning of the threads' names.
    """

    def __init__(self, max_workers: int, name: str):
        self._max_workers = max_workers
        self._name = name
        self._lock = threading.Lock()
        self._calls: queue.PriorityQueue[tuple[int, int, _Call | None]] = queue.PriorityQueue()
        self._num_submitted = 0
        self._num_threads = 0
        self._num_unfinished = 0
        self._is_retired = False

    def submit(self, function: Callable[..., Any], *arguments: Any, is_urgent: bool = False) -> Future:
        """Queue a call; an urgent one overtakes those that are not."""
        future: Future = Future()
        with self._lock:
            if self._is_retired:
                raise RuntimeError("The pool takes no more work.")
            self._num_submitted += 1
            self._calls.put((0 if is_urgent else 1, self._num_submitted, (future, function, arguments)))
            self._num_unfinished += 1
            if self._num_threads < min(self._max_workers, self._num_unfinished):
                name = f"{self._name}-{self._num_threads}"
                threading.Thread(target=self._work, name=name, daemon=True).start()
                self._num_threads += 1
        return future

    def retire(self) -> None:
        """Start nothing more. Calls that run end in their own time, and their threads with them."""
        with self._lock:
            is_first, self._is_retired = not self._is_retired, True
        if not is_first:
            return
        while True:
            try:
                _, _, call = self._calls.get_nowait()
            except queue.Empty:
                break
            if call is not None:
                call[0].cancel()
        for k in range(self._num_threads):
            self._calls.put((0, -k, None))

    def _work(self) -> None:
        while (call := self._calls.get()[2]) is not None:
            future, function, arguments = call
            if future.set_running_or_notify_cancel():
                try:
                    result = function(*arguments)
                except BaseException as error:  # whatever it is, it belongs to whoever waits for the future
                    future.set_exception(error)
                else:
                    future.set_result(result)
                    del result
            del call, future, function, arguments  # an idle thread holds no trajectories
            with self._lock:
                self._num_unfinished -= 1
