"""JSON over HTTP: reused connections, a time limit for every exchange, no answer without end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any
from urllib.parse import urlsplit

from ..background import BodyTooLargeError, Exchanges, read_body
from ..errors import ConfigurationError, MissingDependencyError, ServiceError
from ..redaction import shown_address


# Below the 5 s after which vLLM's server closes an idle connection: else a request may go out on a dying one.
_KEEP_ALIVE_SECONDS = 4.0
_CONNECT_SECONDS = 10.0
_TEMPORARY_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})


class HTTPFailure(ServiceError):
    """One exchange failed.

    Args:
        kind (`str`):
            `"connection"` (refused, reset, closed), `"timeout"`, `"status"` or `"body"` (not JSON, or too long).
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
            raise ConfigurationError("That is no address of a vLLM server. Write it as http://host:port.")
        self.base_url = base_url.rstrip("/")
        self.shown_url = shown_address(base_url).rstrip("/")
        self._import_aiohttp()
        self._exchanges = Exchanges(_open_session)

    def start(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Run a coroutine on the loop; cancelling the future cancels it."""
        return self._exchanges.start(work)

    async def get(self, path: str, timeout: float) -> Any:
        """The JSON that `path` answers; an empty answer is None."""
        return await self._exchange("GET", path, None, timeout)

    async def post(self, path: str, body: Any, timeout: float | None = None) -> Any:
        """The JSON that `path` answers to `body`; without a time limit, the caller has one."""
        return await self._exchange("POST", path, json.dumps(body).encode(), timeout)

    def close(self) -> None:
        """Cancel what runs, close the connections. The next exchange would open them again."""
        self._exchanges.close()

    async def _exchange(self, method: str, path: str, body: bytes | None, timeout: float | None) -> Any:
        import aiohttp

        url = f"{self.base_url}{path}"
        try:
            async with (
                asyncio.timeout(timeout),
                # A redirect would turn a POST into a GET without a body.
                self._exchanges.session().request(method, url, data=body, allow_redirects=False) as response,
            ):
                status, text = response.status, await read_body(response)
        except BodyTooLargeError as error:
            raise HTTPFailure("body", f"{path}: {error}") from None
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

    @staticmethod
    def _import_aiohttp() -> None:
        try:
            import aiohttp  # noqa: F401
        except ImportError as error:
            raise MissingDependencyError(
                'Generating through a vLLM server needs aiohttp: `pip install -e ".[vllm]"` in the clone.'
            ) from error


def _open_session() -> Any:
    import aiohttp

    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_SECONDS),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"Content-Type": "application/json"},
    )


def _excerpt(text: bytes) -> str:
    """The beginning of an unexpected answer, on one line."""
    shown = " ".join(text[:1000].decode("utf-8", errors="replace").split())
    return repr(shown if len(shown) <= 400 else f"{shown[:400]}...")
