"""JSON over HTTP from an event loop of its own: reused connections, a time limit for every exchange, a clean end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from ..errors import ConfigurationError, MissingDependencyError, ServiceError


# Below the 5 s after which vLLM's server closes an idle connection: else a request may go out on a dying one.
_KEEP_ALIVE_SECONDS = 4.0
_CONNECT_SECONDS = 10.0
_END_SECONDS = 5.0
_TEMPORARY_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})


class HTTPFailure(ServiceError):
    """One exchange failed.

    Args:
        kind (`str`):
            `"connection"` (refused, reset, closed), `"timeout"`, `"status"` or `"body"` (not JSON).
        detail (`str`):
            What happened, with the beginning of the answer.
        status (`int`, *optional*):
            HTTP status, when there was one.
    """

    def __init__(self, kind: str, detail: str, status: int | None = None):
        super().__init__(detail)
        self.kind = kind
        self.status = status

    @property
    def is_temporary(self) -> bool:
        """Whether the same request may succeed later."""
        return self.kind == "connection" or self.status in _TEMPORARY_STATUSES


class HTTPClient:
    """Exchanges JSON with one server. Nothing is opened before the first exchange.

    Args:
        base_url (`str`):
            Root of the server, for example `http://localhost:8000`.
    """

    def __init__(self, base_url: str):
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigurationError(f"{base_url!r} is no address of a server. Write it as http://host:port.")
        self.base_url = base_url.rstrip("/")
        self.shown_url = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", "")).rstrip("/")
        self._import_aiohttp()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sessions: list[Any] = []
        self._close: Callable[[], object] = lambda: None

    def start(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Run a coroutine on the client's loop; cancelling the future cancels it."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                thread = threading.Thread(target=_run, args=(self._loop,), name="taspo-vllm-http", daemon=True)
                thread.start()
                # Also at garbage collection and at the end of the process.
                self._close = weakref.finalize(self, _shut_down, self._loop, thread, self._sessions)
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def get(self, path: str, timeout: float) -> Any:
        """The JSON that `path` answers; an empty answer is None."""
        return await self._exchange("GET", path, None, timeout)

    async def post(self, path: str, body: Any, timeout: float | None = None) -> Any:
        """The JSON that `path` answers to `body`; without a time limit, the caller has one."""
        return await self._exchange("POST", path, json.dumps(body).encode(), timeout)

    def close(self) -> None:
        """Cancel what runs, close the connections, end the thread. The next exchange would open them again."""
        with self._lock:
            close, self._close = self._close, lambda: None
            self._loop, self._sessions = None, []
        close()

    async def _exchange(self, method: str, path: str, body: bytes | None, timeout: float | None) -> Any:
        import aiohttp

        url = f"{self.base_url}{path}"
        try:
            async with (
                asyncio.timeout(timeout),
                # A redirect would turn a POST into a GET without a body.
                self._open().request(method, url, data=body, allow_redirects=False) as response,
            ):
                status, text = response.status, await response.read()
        except aiohttp.ClientError as error:  # before TimeoutError: a host that takes no connection is both
            raise HTTPFailure("connection", f"{type(error).__name__}: {error}") from error
        except TimeoutError:
            raise HTTPFailure("timeout", f"no answer from {path} within {timeout} s") from None
        except OSError as error:
            raise HTTPFailure("connection", f"{type(error).__name__}: {error}") from error
        if status != 200:
            raise HTTPFailure("status", f"{path} answered {status}: {_excerpt(text)}", status)
        try:
            return json.loads(text) if text.strip() else None
        except (ValueError, RecursionError):
            raise HTTPFailure("body", f"{path} answered something that is not JSON: {_excerpt(text)}") from None

    def _open(self) -> Any:
        """The session of the loop, on which this runs."""
        if not self._sessions:
            import aiohttp

            self._sessions.append(
                aiohttp.ClientSession(
                    connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_SECONDS),
                    timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS),
                    cookie_jar=aiohttp.DummyCookieJar(),
                    headers={"Content-Type": "application/json"},
                )
            )
        return self._sessions[0]

    @staticmethod
    def _import_aiohttp() -> None:
        try:
            import aiohttp  # noqa: F401
        except ImportError as error:
            raise MissingDependencyError(
                'Generating through a vLLM server needs aiohttp: `pip install "taspo_trl[vllm]"`.'
            ) from error


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()


def _shut_down(loop: asyncio.AbstractEventLoop, thread: threading.Thread, sessions: list[Any]) -> None:
    if thread is threading.current_thread():  # collected by the last coroutine: the loop cannot wait for itself
        loop.create_task(_wind_up(sessions)).add_done_callback(lambda _: loop.stop())
        return
    if thread.is_alive():  # a forked child has a copy of the loop but not the thread
        with contextlib.suppress(TimeoutError, RuntimeError):
            asyncio.run_coroutine_threadsafe(_wind_up(sessions), loop).result(_END_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_END_SECONDS)
    if not loop.is_running():
        loop.close()


async def _wind_up(sessions: list[Any]) -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    for session in sessions:
        await session.close()
    await asyncio.sleep(0)  # transports close on the next turn of the loop


def _excerpt(text: bytes) -> str:
    """The beginning of an unexpected answer, on one line."""
    shown = " ".join(text[:1000].decode("utf-8", errors="replace").split())
    return repr(shown if len(shown) <= 400 else f"{shown[:400]}...")
