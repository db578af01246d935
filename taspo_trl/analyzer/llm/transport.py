"""The one place that calls LiteLLM: arguments in, a plain answer or a plain failure out.

Calls run on an event loop of its own in a thread of its own. Only an event loop can give up a call at a point in time
whatever the server does, and close its socket; and the loop being private, it works inside Jupyter's running loop, in
threads and in scripts alike.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...redaction import Secret, redacted
from .failures import Failure, failure_of
from .providers import ModelFacts


_GRACE_SECONDS = 10.0
_CONNECT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class RawAnswer:
    """What came back for one request."""

    text: str
    """The content; empty when there is none. Reasoning is never part of it."""
    finish_reason: str = "stop"
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost_usd: float | None = None
    """None when LiteLLM has no price for the model."""
    has_reasoning: bool = False


def litellm_module() -> Any:
    """LiteLLM, imported without network access and kept from printing."""
    # At import LiteLLM fetches its price list from the internet, which hangs where there is none.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    import litellm

    litellm.suppress_debug_info = True  # it prints advertisements to stdout with each error
    return litellm


def model_facts(model: str, api_base: str | None = None) -> ModelFacts | None:
    """What LiteLLM knows about `model`; None when its name holds no provider."""
    litellm = litellm_module()
    try:
        name, provider, _, _ = litellm.get_llm_provider(model, api_base=api_base)
    except litellm.exceptions.BadRequestError:
        return None
    parameters = litellm.get_supported_openai_params(model=name, custom_llm_provider=provider) or ()
    try:
        info = litellm.get_model_info(name, custom_llm_provider=provider)
    except Exception:  # a plain Exception in some versions: the model is not in the list
        info = None
    return ModelFacts(
        provider=provider,
        is_listed=info is not None,
        has_price=bool(info and info.get("input_cost_per_token")),
        reasons=info is not None and bool(litellm.supports_reasoning(model=name, custom_llm_provider=provider)),
        parameters=frozenset(parameters),
    )


class Transport:
    """Sends requests through LiteLLM. The thread and the connections begin with the first request."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runner: _Runner | None = None
        self._pid = os.getpid()
        self._is_closed = False

    def send(self, arguments: Mapping[str, Any], timeout: float, key: Secret) -> RawAnswer | Failure:
        """One request, one attempt. Never raises for what the network or the server does.

        Args:
            arguments (`Mapping[str, Any]`):
                Keywords of `litellm.acompletion`, without the key.
            timeout (`float`):
                Wall time in seconds, whatever trickles in meanwhile.
            key (`Secret`):
                Empty = LiteLLM takes it from the environment.
        """
        runner = self._open()
        if runner is None:
            return Failure("closed", "the analyzer is closed")
        future = asyncio.run_coroutine_threadsafe(_complete(runner, arguments, timeout, key), runner.loop)
        try:
            return future.result(timeout + _GRACE_SECONDS)
        except concurrent.futures.CancelledError:
            return Failure("closed", "the analyzer was closed")
        except TimeoutError:  # the loop itself is stuck
            future.cancel()
            return Failure("timeout", f"no answer within {timeout:g} s")

    def close(self) -> None:
        """Give up what is in flight, close the connections, end the thread. May be called twice."""
        with self._lock:
            runner, self._runner, self._is_closed = self._runner, None, True
        if runner is not None:
            runner.finalizer()

    def _open(self) -> _Runner | None:
        with self._lock:
            if self._pid != os.getpid():  # a forked child has neither the thread nor the sockets
                self._runner, self._pid = None, os.getpid()
            if self._runner is None and not self._is_closed:
                self._runner = _Runner()
            return self._runner


class _Runner:
    """An event loop in a daemon thread, with the HTTP session of its calls."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_task_factory(_keeping_tasks())
        thread = threading.Thread(target=_run, args=(self.loop,), name="taspo-analyzer", daemon=True)
        thread.start()
        self._sessions: list[Any] = []
        # Also at garbage collection and at the end of the process: an open session complains on stderr.
        self.finalizer = weakref.finalize(self, _shut_down, self.loop, thread, self._sessions)

    def http_session(self) -> Any:
        """The session that all calls share, so that closing it closes every connection of ours and no one else's."""
        if not self._sessions:
            import aiohttp

            self._sessions.append(aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()))
        return self._sessions[0]


def _keeping_tasks() -> Callable[..., asyncio.Task]:
    """A task factory that holds on to its tasks: LiteLLM forgets one when it is used from another loop too."""
    kept: set[asyncio.Task] = set()

    def make(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task:
        task = asyncio.Task(coroutine, loop=loop, **options)
        kept.add(task)
        task.add_done_callback(kept.discard)
        return task

    return make


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()


def _shut_down(loop: asyncio.AbstractEventLoop, thread: threading.Thread, sessions: list[Any]) -> None:
    if thread.is_alive() and not loop.is_closed():  # a forked child has a copy of the loop but not the thread
        try:
            asyncio.run_coroutine_threadsafe(_wind_up(loop, sessions), loop).result(_GRACE_SECONDS)
        except (TimeoutError, concurrent.futures.CancelledError, RuntimeError):
            logging.getLogger(__name__).debug("the analyzer's connections could not be closed in time")
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_GRACE_SECONDS)
    if not loop.is_running() and not loop.is_closed():
        loop.close()


async def _wind_up(loop: asyncio.AbstractEventLoop, sessions: list[Any]) -> None:
    for session in sessions:
        await session.close()
    # LiteLLM keeps a task for logging on the loop.
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()


async def _complete(runner: _Runner, arguments: Mapping[str, Any], timeout: float, key: Secret) -> RawAnswer | Failure:
    try:
        # The client's own limits come first, so that it can tell a host that does not answer from a slow answer.
        inner = timeout - min(0.5, 0.1 * timeout)
        async with asyncio.timeout(timeout):
            response = await litellm_completion(arguments, inner, key, runner.http_session())
        return _answer_of(response)
    except Exception as error:  # LiteLLM raises anything, plain Exception included; a failed call is data
        failure = failure_of(error)
        text = failure.text or f"no answer within {timeout:g} s"
        return Failure(failure.kind, redacted(text, key), failure.retry_after)


async def litellm_completion(arguments: Mapping[str, Any], timeout: float, key: Secret, session: Any) -> Any:
    """`litellm.acompletion` without retries of its own."""
    import httpx

    extra = {"api_key": key.reveal()} if key else {}
    return await litellm_module().acompletion(
        **arguments,
        **extra,
        timeout=httpx.Timeout(timeout, connect=min(_CONNECT_SECONDS, timeout)),
        # Of LiteLLM (whose retries need a package that it does not require) and of the OpenAI client below it.
        num_retries=0,
        max_retries=0,
        shared_session=session,
    )


def _answer_of(response: Any) -> RawAnswer | Failure:
    """The plain parts of LiteLLM's response."""
    if not getattr(response, "choices", None):
        return Failure("bad_response", "the response holds no choices")
    choice = response.choices[0]
    message = choice.message
    hidden = getattr(response, "_hidden_params", None) or {}
    prompt_tokens, completion_tokens = _counts_of(getattr(response, "usage", None))
    return RawAnswer(
        text=_text_of(getattr(message, "content", None)),
        finish_reason=str(choice.finish_reason or "stop"),
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        cost_usd=_cost(hidden.get("response_cost")),
        has_reasoning=bool(getattr(message, "reasoning_content", None)),
    )


def _text_of(content: Any) -> str:
    """The content as text; some servers send a list of parts."""
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content if isinstance(part, Mapping))
    return content if isinstance(content, str) else ""


def _counts_of(usage: Any) -> tuple[int | None, int | None]:
    """(prompt tokens, completion tokens); None for both when the server counted nothing, which LiteLLM shows as 0."""
    counts = [getattr(usage, name, None) for name in ("prompt_tokens", "completion_tokens")]
    prompt, completion = (value if isinstance(value, int) and value >= 0 else None for value in counts)
    return (prompt, completion) if prompt else (None, None)


def _cost(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and value > 0 else None
