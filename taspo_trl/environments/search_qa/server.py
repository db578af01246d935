"""A small server for an index of ours: both request formats, one endpoint, loopback by default.

```
POST /retrieve   see `retrievers.wire`
GET  /health     {"status": "ok"}
```
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...background import run
from ...errors import ConfigurationError
from .retrievers.base import Retriever, RetrieverError
from .retrievers.batching import BatchingRetriever
from .retrievers.http import DEFAULT_PATH, import_aiohttp
from .retrievers.open import open_retriever
from .retrievers.wire import WireError, decode_request, encode_result


if TYPE_CHECKING:
    from aiohttp import web

logger = logging.getLogger(__name__)

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000
MAX_REQUEST_BYTES = 16 * 2**20
NUM_THREADS = 32
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


class RetrieverServer:
    """Serves a retriever from the background of this process; use it with `with`.

    Args:
        retriever (`Retriever`, `str` or `Path`, *optional*, defaults to `"embedded"`):
            What to serve, as in [`~taspo_trl.environments.SearchQAEnvironment`].
        host (`str`, *optional*, defaults to `"127.0.0.1"`):
            Address to listen on. Anything but loopback is open to whoever can reach it: there is no password.
        port (`int`, *optional*, defaults to `8000`):
            Port to listen on; 0 takes a free one.
    """

    def __init__(
        self,
        retriever: Retriever | str | Path = "embedded",
        *,
        host: str = DEFAULT_HOST,
        port: int = DEFAULT_PORT,
    ):
        self._retriever = retriever
        self._host = host
        self._port = port
        self._runner: web.AppRunner | None = None
        self.url = ""
        """Address of the endpoint, once started."""

    def __enter__(self) -> RetrieverServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Listen; returns when requests are answered."""
        run(self._start())

    def close(self) -> None:
        """Stop listening. May be called twice."""
        runner, self._runner = self._runner, None
        if runner is not None:
            run(runner.cleanup())

    async def _start(self) -> None:
        self._runner, port = await _listen(self._retriever, self._host, self._port)
        self.url = _endpoint(self._host, port)


def serve(
    retriever: Retriever | str | Path = "embedded",
    *,
    host: str = DEFAULT_HOST,
    port: int = DEFAULT_PORT,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Serve a retriever until interrupted.

    Args:
        retriever (`Retriever`, `str` or `Path`, *optional*, defaults to `"embedded"`):
            What to serve.
        host (`str`, *optional*, defaults to `"127.0.0.1"`):
            Address to listen on.
        port (`int`, *optional*, defaults to `8000`):
            Port to listen on; 0 takes a free one.
        on_ready (`Callable[[str], None]`, *optional*):
            Called with the endpoint's address once requests are answered.
    """

    async def main() -> None:
        runner, bound_port = await _listen(retriever, host, port)
        try:
            if on_ready is not None:
                on_ready(_endpoint(host, bound_port))
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()

    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        logger.info("The retriever server was stopped.")


def _endpoint(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{DEFAULT_PATH}"


async def _listen(retriever: Retriever | str | Path, host: str, port: int) -> tuple[web.AppRunner, int]:
    """A running application and the port it listens on."""
    import_aiohttp()
    from aiohttp import web

    if host not in _LOOPBACK:
        logger.warning("The retriever server listens on %s and asks for no password: keep it behind a firewall.", host)
    opened = await asyncio.to_thread(open_retriever, retriever)
    runner = web.AppRunner(_application(opened), access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, host, port, backlog=1024)
    try:
        await site.start()
    except OSError as error:
        await runner.cleanup()
        raise ConfigurationError(
            f"Cannot listen on {host}:{port}: {error.strerror or error}. Choose another `port`, or 0 for a free one."
        ) from error
    return runner, runner.addresses[0][1]


def _application(retriever: Retriever) -> web.Application:
    from aiohttp import web

    # Requests that come in together are searched together, whatever number of queries each brings.
    batching = retriever if isinstance(retriever, BatchingRetriever) else BatchingRetriever(retriever)
    threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="taspo-retriever")

    async def retrieve(request: web.Request) -> web.Response:
        try:
            asked = decode_request(json.loads(await request.read()))
        except (WireError, ValueError, RecursionError) as error:
            return _error(422, str(error) if isinstance(error, WireError) else "the body is not JSON")
        if not asked.queries:
            return web.json_response({"result": []})
        try:
            hits = await asyncio.get_running_loop().run_in_executor(
                threads, batching.search, asked.queries, asked.topk
            )
        except RetrieverError as error:
            return _error(502, str(error))
        return web.json_response(encode_result(hits, asked.return_scores), dumps=_dumps)

    async def health(_: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def stop_threads(_: web.Application) -> None:
        threads.shutdown(wait=False, cancel_futures=True)

    application = web.Application(client_max_size=MAX_REQUEST_BYTES)
    application.router.add_post(DEFAULT_PATH, retrieve)
    application.router.add_get("/health", health)
    application.on_cleanup.append(stop_threads)
    return application


def _error(status: int, message: str) -> web.Response:
    from aiohttp import web

    return web.json_response({"error": message}, status=status)


def _dumps(body: Any) -> str:
    return json.dumps(body, ensure_ascii=False)
