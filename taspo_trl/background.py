"""What runs beside the caller and never keeps a process alive: calls in daemon threads, exchanges on one event loop.

`concurrent.futures.ThreadPoolExecutor` joins its threads at the end of the process: after Ctrl-C the terminal would
wait for every request in flight. What runs here is given up with the process. Every HTTP client of the package shares
the loop: only a loop can give up an exchange at a point in time whatever the server does, and a private one works
inside Jupyter's running loop, in threads and in scripts alike.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import contextvars
import os
import queue
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any, TypeVar


T = TypeVar("T")

MAX_BODY_BYTES = 64 * 2**20
"""Of one answer to a request. No service that is asked here has so much to say."""
_GRACE_SECONDS = 2.0
_THREAD = "taspo-http"

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


class _LoopHolder:
    """The event loop of this process, in a daemon thread that starts on first use."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything: in a forked child, which has neither the thread nor the sockets."""
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def get(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._loop.set_task_factory(_kept_task)
                # For names to look up, and what libraries do in a thread.
                self._loop.set_default_executor(ThreadPoolExecutor(4, thread_name_prefix=_THREAD))
                threading.Thread(target=self._loop.run_forever, name=_THREAD, daemon=True).start()
            return self._loop

    def stop(self) -> None:
        """Close all sessions, cancel the rest, stop."""
        loop = self._loop
        if loop is None:
            return

        async def finish() -> None:
            endings = [asyncio.create_task(session.end()) for session in list(_sessions)]
            if endings:
                await asyncio.wait(endings, timeout=_GRACE_SECONDS)
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            if others:
                await asyncio.wait(others, timeout=_GRACE_SECONDS)
            loop.call_soon(loop.stop)

        with contextlib.suppress(TimeoutError, CancelledError, RuntimeError):
            asyncio.run_coroutine_threadsafe(finish(), loop).result(3 * _GRACE_SECONDS)


class _Session:
    """What one client has on the loop: its session and the tasks that came of its exchanges, a library's own included.

    Made in any thread, used and ended on the loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, make: Callable[[], Any]):
        self.loop = loop
        self.tasks: set[asyncio.Task] = set()
        self._make = make
        self._made: Any = None

    def get(self) -> Any:
        if self._made is None:
            self._made = self._make()
        return self._made

    async def end(self) -> None:
        tasks = self.tasks - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        made, self._made = self._made, None
        if made is not None:
            await made.close()
            await asyncio.sleep(0)  # transports close on the next turn of the loop

    def close(self) -> Future | None:
        """End it from any thread; nothing to do in a forked child, whose loop is another one."""
        if self.loop is not _holder.get() or self.loop.is_closed():
            return None
        return asyncio.run_coroutine_threadsafe(self.end(), self.loop)


_owner: contextvars.ContextVar[_Session | None] = contextvars.ContextVar("_owner", default=None)
_ownerless: set[asyncio.Task] = set()


def _kept_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task:
    """A task that is held on to, by its session if it has one: a loop forgets its tasks, and LiteLLM does too."""
    owner = _owner.get()
    kept = _ownerless if owner is None else owner.tasks
    task = asyncio.Task(coroutine, loop=loop, **options)
    kept.add(task)
    task.add_done_callback(kept.discard)
    return task


class Exchanges:
    """One client's work on the shared loop. Nothing is opened before the first exchange.

    Args:
        make_session (`Callable`):
            Makes the client's session, on the loop; an object with a coroutine function `close`. It must not refer to
            the client, which could then never be collected.
    """

    def __init__(self, make_session: Callable[[], Any]):
        self._make_session = make_session
        self._lock = threading.Lock()
        self._session: _Session | None = None

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the loop; cancelling the future cancels it."""
        session = self._current()
        context = contextvars.copy_context()
        context.run(_owner.set, session)  # every task that comes of it belongs to the session
        return context.run(asyncio.run_coroutine_threadsafe, work, session.loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for it; an interrupt while waiting cancels it."""
        return _result(self.start(work))

    def session(self) -> Any:
        """What `make_session` made; on the loop."""
        return self._current().get()

    def close(self) -> None:
        """Cancel what runs and close the session. May be called twice; the next exchange opens another one."""
        with self._lock:
            session, self._session = self._session, None
        ending = None if session is None else session.close()
        if ending is not None and threading.current_thread().name != _THREAD:
            with contextlib.suppress(TimeoutError, CancelledError):
                ending.result(_GRACE_SECONDS)

    def _current(self) -> _Session:
        loop = _holder.get()
        with self._lock:
            if self._session is None or self._session.loop is not loop:  # after a fork the loop is another one
                self._session = _Session(loop, self._make_session)
                _sessions.add(self._session)
                weakref.finalize(self, self._session.close).atexit = False
            return self._session


def background_loop() -> asyncio.AbstractEventLoop:
    """The loop. The same object as long as the process lives."""
    return _holder.get()


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the loop that belongs to no client, and wait for it."""
    return _result(asyncio.run_coroutine_threadsafe(work, background_loop()))


def _result(future: Future[T]) -> T:
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


class BodyTooLargeError(ValueError):
    """An answer that goes on beyond what it may hold."""


async def read_body(response: Any) -> bytes:
    """The body of an aiohttp response; no more than `MAX_BODY_BYTES` are ever held.

    Raises:
        BodyTooLargeError: it is longer.
    """
    chunks: list[bytes] = []
    size = 0
    async for chunk in response.content.iter_chunked(2**16):
        size += len(chunk)
        if size > MAX_BODY_BYTES:
            raise BodyTooLargeError(f"the answer is longer than {MAX_BODY_BYTES} bytes")
        chunks.append(chunk)
    return b"".join(chunks)


_holder = _LoopHolder()
_sessions: weakref.WeakSet[_Session] = weakref.WeakSet()
_inherited: list[_Session] = []


def _after_fork() -> None:
    # Freed in the child, the sessions would take themselves off the poll list that it shares with its parent, and the
    # parent would not hear of its answers any more.
    _inherited.extend(_sessions)
    _sessions.clear()
    _holder.reset()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_holder.stop)
