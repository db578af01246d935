"""A client for a served index: every search ends within its deadline, with passages or with a named failure."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import random
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import CancelledError
from typing import Any, get_args
from urllib.parse import urlsplit, urlunsplit

from ....background import BodyTooLargeError, Exchanges, read_body
from ....errors import ConfigurationError, MissingDependencyError
from ....redaction import shown_address
from ..passages import Passage
from .base import RetrieverError, check_topk
from .wire import WireError, WireFormat, decode_result, encode_request


DEFAULT_PATH = "/retrieve"
MAX_BACKOFF_SECONDS = 8.0
# Answers that a repeat may turn into better ones; every other status below 500 will be given again.
_TEMPORARY_STATUSES = frozenset({408, 425, 429})
_REMEDIES = {
    "connection": " Is it up?",
    "http_400": " Does it speak the other format? See `wire_format`.",
    "http_422": " Does it speak the other format? See `wire_format`.",
    "http_404": " Is the path of the URL right?",
}


class _Failure(Exception):
    """Why one attempt gave no passages.

    Args:
        cause (`str`):
            Short name for counting.
        detail (`str`):
            What happened, for people.
        is_permanent (`bool`, *optional*, defaults to `False`):
            Whether a repeat would end the same way.
        retry_after (`float`, *optional*):
            Seconds that the server asked to wait.
    """

    def __init__(self, cause: str, detail: str, is_permanent: bool = False, retry_after: float | None = None):
        super().__init__(cause, detail)
        self.cause = cause
        self.detail = detail
        self.is_permanent = is_permanent
        self.retry_after = retry_after


class HTTPRetriever:
    """Searches through HTTP, over kept-open connections. One object serves all episodes of a process.

    A search that fails is repeated after a growing pause, unless the server calls the request itself wrong. What does
    not succeed within the attempts and the deadline raises [`RetrieverError`] with the URL and the cause.

    Args:
        url (`str`):
            Address of the index; without a path, `/retrieve` is added.
        wire_format (`"batch"` or `"single"`, *optional*, defaults to `"batch"`):
            Whether a request holds a list `queries` (Search-R1's server and `taspo serve-retriever`) or one `query`.
        timeout (`float`, *optional*, defaults to `15.0`):
            Seconds for one attempt, from connecting to the last byte.
        max_attempts (`int`, *optional*, defaults to `5`):
            How often one request is sent at most.
        deadline (`float`, *optional*, defaults to `28.0`):
            Seconds for a search with all its repeats and pauses. Keep twice as much below the trainer's
            `environment_timeout`, 60 s by default: a search may first wait for others.
        backoff (`float`, *optional*, defaults to `0.5`):
            Seconds of the first pause; each later one is twice as long, at most 8 s, give or take a half.
        max_queries (`int`, *optional*, defaults to `64`):
            Queries in one request of the batch format; longer searches are sent in parts.
        max_connections (`int`, *optional*, defaults to `16`):
            Requests under way at the same time.
    """

    def __init__(
        self,
        url: str,
        *,
        wire_format: WireFormat = "batch",
        timeout: float = 15.0,
        max_attempts: int = 5,
        deadline: float = 28.0,
        backoff: float = 0.5,
        max_queries: int = 64,
        max_connections: int = 16,
    ):
        self.url = _complete_url(url)
        if wire_format not in get_args(WireFormat):
            raise ConfigurationError(f"`wire_format` is {wire_format!r}, it must be 'batch' or 'single'.")
        for name, value in (("timeout", timeout), ("max_attempts", max_attempts), ("deadline", deadline)):
            if not value > 0:
                raise ConfigurationError(f"`{name}` ({value}) must be greater than 0.")
        import_aiohttp()
        self.wire_format: WireFormat = wire_format
        self.timeout = timeout
        self.max_attempts = max_attempts
        self.deadline = deadline
        self.backoff = backoff
        self.max_queries = max_queries if wire_format == "batch" else 1
        self.max_connections = max_connections
        self.failures: Counter[str] = Counter()
        """Failed attempts by cause, those that a repeat made good included."""
        self._jitter = random.Random()  # of its own: retries must not move the random numbers of the training run
        self._exchanges = Exchanges(functools.partial(_Connections, max_connections))

    def __repr__(self) -> str:
        return f"HTTPRetriever({shown_address(self.url)!r}, wire_format={self.wire_format!r})"

    def __reduce__(self):
        settings = {
            "wire_format": self.wire_format,
            "timeout": self.timeout,
            "max_attempts": self.max_attempts,
            "deadline": self.deadline,
            "backoff": self.backoff,
            "max_queries": self.max_queries,
            "max_connections": self.max_connections,
        }
        return _rebuild, (self.url, settings)

    def search(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        check_topk(topk)
        if not queries:
            return []
        try:
            return self._exchanges.run(self._search(list(queries), topk))
        except CancelledError:
            raise RetrieverError.of(
                "closed", f"The retriever at {shown_address(self.url)} was closed meanwhile."
            ) from None

    def close(self) -> None:
        self._exchanges.close()

    async def _search(self, queries: list[str], topk: int) -> list[list[Passage]]:
        parts = [queries[start : start + self.max_queries] for start in range(0, len(queries), self.max_queries)]
        tasks = [asyncio.ensure_future(self._fetch(part, topk)) for part in parts]
        try:
            return [hits for part in await asyncio.gather(*tasks) for hits in part]
        finally:
            for task in tasks:  # where one part failed, the others are of no use
                task.cancel()

    async def _fetch(self, queries: list[str], topk: int) -> list[list[Passage]]:
        """One request, repeated until it succeeds or no more may be tried."""
        body = json.dumps(encode_request(queries, topk, self.wire_format)).encode()
        failures: list[_Failure] = []
        started = asyncio.get_running_loop().time()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.deadline), self._exchanges.session().places:
                while len(failures) < self.max_attempts:
                    try:
                        answer = await self._attempt(body)
                        return decode_result(answer, len(queries), topk)
                    except WireError as error:
                        failure = _Failure(error.cause, str(error))
                    except _Failure as error:
                        failure = error
                    self.failures[failure.cause] += 1
                    failures.append(failure)
                    if failure.is_permanent or len(failures) == self.max_attempts:
                        break
                    await asyncio.sleep(self._pause(len(failures), failure.retry_after))
        raise self._error(failures, asyncio.get_running_loop().time() - started)

    async def _attempt(self, body: bytes) -> Any:
        """Send the request once; the decoded JSON of its answer, or [`_Failure`]."""
        import aiohttp

        try:
            async with (
                asyncio.timeout(self.timeout),
                # A redirect would turn the request into a GET without a body.
                self._exchanges.session().session.post(self.url, data=body, allow_redirects=False) as response,
            ):
                text = (await read_body(response)).decode("utf-8", errors="replace")
        except BodyTooLargeError as error:
            raise _Failure("bad_body", str(error)) from None
        except TimeoutError:
            raise _Failure("timeout", f"no complete answer within {self.timeout:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise _Failure("connection", f"{type(error).__name__}: {error}") from error
        if response.status != 200:
            raise _status_failure(response.status, response.headers.get("Retry-After"), text)
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise _Failure("bad_body", f"the answer is not JSON: {_excerpt(text)}") from None

    def _pause(self, num_failures: int, retry_after: float | None) -> float:
        """Seconds before the next attempt; scattered, so that many clients do not come back all at once."""
        doubled = min(self.backoff * 2 ** (num_failures - 1), MAX_BACKOFF_SECONDS)
        return max(doubled * self._jitter.uniform(0.5, 1.5), retry_after or 0.0)

    def _error(self, failures: list[_Failure], seconds: float) -> RetrieverError:
        where = f"The retriever at {shown_address(self.url)}"
        if not failures:
            self.failures["deadline"] += 1
            return RetrieverError.of(
                "deadline", f"{where} gave no answer within the deadline of {self.deadline:g} s. Is it fast enough?"
            )
        last = failures[-1]
        attempts = "1 attempt" if len(failures) == 1 else f"{len(failures)} attempts"
        return RetrieverError.of(
            last.cause,
            f"{where} failed after {attempts} in {seconds:.1f} s: {last.cause}, {last.detail}."
            + _REMEDIES.get(last.cause, ""),
        )


class _Connections:
    """An open HTTP session and the places for requests on it."""

    def __init__(self, max_connections: int):
        aiohttp = import_aiohttp()
        self.places = asyncio.Semaphore(max_connections)
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=max_connections),
            timeout=aiohttp.ClientTimeout(total=None),  # attempts have a time limit of their own
            headers={"Content-Type": "application/json"},
        )

    async def close(self) -> None:
        await self.session.close()


def _status_failure(status: int, retry_after: str | None, text: str) -> _Failure:
    return _Failure(
        cause=f"http_{status}",
        detail=_excerpt(text),
        is_permanent=status < 500 and status not in _TEMPORARY_STATUSES,
        retry_after=float(retry_after) if retry_after and retry_after.isdecimal() else None,
    )


def _excerpt(text: str) -> str:
    """The beginning of an unexpected answer, on one line."""
    shown = " ".join(text[:400].split())
    return repr(shown if len(shown) <= 160 else f"{shown[:160]}...")


def _complete_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError("That is no address of a retriever. Write it as http://host:port/path.")
    return urlunsplit(parts._replace(path=DEFAULT_PATH)) if parts.path in ("", "/") else url


def _rebuild(url: str, settings: dict[str, Any]) -> HTTPRetriever:
    return HTTPRetriever(url, **settings)


def import_aiohttp() -> Any:
    """The library, or [`~taspo_trl.errors.MissingDependencyError`] that says how to install it."""
    try:
        import aiohttp
    except ImportError as error:
        raise MissingDependencyError(
            'Searching through HTTP needs aiohttp: `pip install -e ".[search]"` in the clone.'
        ) from error
    return aiohttp
