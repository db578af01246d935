"""The one place that calls LiteLLM: arguments in, a plain answer or a plain failure out."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...background import Exchanges
from ...redaction import Secret, redacted
from .failures import Failure, failure_of
from .providers import ModelFacts


_GRACE_SECONDS = 10.0
_CONNECT_SECONDS = 10.0
MAX_BODY_BYTES = 8 * 2**20
"""Of one response: 4,096 tokens, and thoughts of a hundred times as many, have room in it."""
_MAX_COUNT = 10**9  # tokens of one call; more than that is a server's mistake, and too much for a database


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
    """Sends requests through LiteLLM. The connections begin with the first request."""

    def __init__(self) -> None:
        self._exchanges = Exchanges(_Connections)
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
        if self._is_closed:
            return Failure("closed", "the analyzer is closed")
        future = self._exchanges.start(_complete(self._exchanges, arguments, timeout, key))
        try:
            return future.result(timeout + _GRACE_SECONDS)
        except concurrent.futures.CancelledError:
            return Failure("closed", "the analyzer was closed")
        except TimeoutError:  # the loop itself is stuck
            future.cancel()
            return Failure("timeout", f"no answer within {timeout:g} s")

    def close(self) -> None:
        """Give up what is in flight, close the connections. May be called twice."""
        self._is_closed = True
        self._exchanges.close()


class _Connections:
    """The session that all calls share, so that closing it closes every connection of ours and no one else's."""

    def __init__(self) -> None:
        self.session = _capped_session()

    async def close(self) -> None:
        # LiteLLM keeps clients by provider and loop: the next analyzer's calls would come to one without a session.
        cache: Any = getattr(litellm_module(), "in_memory_llm_clients_cache", None)
        for name, client in list(getattr(cache, "cache_dict", {}).items()):
            http_client = getattr(client, "client", None) or getattr(client, "_client", None)
            if getattr(getattr(http_client, "_transport", None), "client", None) is self.session:
                cache.delete_cache(name)
        await self.session.close()


def _capped_session() -> Any:
    """An aiohttp session whose responses end at `MAX_BODY_BYTES`."""
    import aiohttp

    class TooLargeError(aiohttp.ClientPayloadError):
        pass

    class Capped:
        """The body of a response, up to its cap: whoever reads it holds no more."""

        def __init__(self, content: Any):
            self._content = content

        def __getattr__(self, name: str) -> Any:
            return getattr(self._content, name)

        async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
            async for chunk in self._content.iter_chunked(size):
                if self._content.total_bytes > MAX_BODY_BYTES:
                    raise TooLargeError(f"the response is longer than {MAX_BODY_BYTES} bytes")
                yield chunk

        async def read(self, size: int = -1) -> bytes:
            if size >= 0:
                return await self._content.read(size)
            return b"".join([chunk async for chunk in self.iter_chunked(2**16)])

    class Response(aiohttp.ClientResponse):
        async def start(self, connection: Any) -> Any:
            await super().start(connection)
            if self.headers.get("Content-Encoding", "identity").lower() != "identity":
                raise TooLargeError("the response is packed, although it was asked not to be: its length is not known")
            self.content = Capped(self.content)  # type: ignore[assignment]
            return self

    return aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), response_class=Response)


async def _complete(
    exchanges: Exchanges, arguments: Mapping[str, Any], timeout: float, key: Secret
) -> RawAnswer | Failure:
    try:
        # The client's own limits come first, so that it can tell a host that does not answer from a slow answer.
        inner = timeout - min(0.5, 0.1 * timeout)
        async with asyncio.timeout(timeout):
            response = await litellm_completion(arguments, inner, key, exchanges.session().session)
        return _answer_of(response, key)
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
        extra_headers={"Accept-Encoding": "identity"},  # a packed response may be a thousand times as long
        shared_session=session,
    )


def _answer_of(response: Any, key: Secret) -> RawAnswer | Failure:
    """The plain parts of LiteLLM's response, without the key: a server may say it back in a good answer too."""
    if not getattr(response, "choices", None):
        return Failure("bad_response", "the response holds no choices")
    choice = response.choices[0]
    message = choice.message
    hidden = getattr(response, "_hidden_params", None) or {}
    prompt_tokens, completion_tokens = _counts_of(getattr(response, "usage", None))
    return RawAnswer(
        text=redacted(_text_of(getattr(message, "content", None)), key),
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
    """(prompt tokens, completion tokens); None where the server counted nothing (LiteLLM shows 0) or nonsense."""
    counts = [getattr(usage, name, None) for name in ("prompt_tokens", "completion_tokens")]
    prompt, completion = (value if isinstance(value, int) and 0 <= value <= _MAX_COUNT else None for value in counts)
    return (prompt, completion) if prompt else (None, None)


def _cost(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and 0 < value <= _MAX_COUNT else None
