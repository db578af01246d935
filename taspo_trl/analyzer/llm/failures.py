"""Why a request to the analyzer failed, from whatever exception LiteLLM raised.

Pure. LiteLLM's exception types come first, then status codes, and words only where both say no more than "bad
request". Types are known by their names, which change less than the modules they lie in.
"""

from __future__ import annotations

import email.utils
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


TRANSIENT = frozenset({"rate_limit", "timeout", "server_error", "connection", "unreachable", "bad_response"})
"""Worth another attempt."""
UNUSABLE = frozenset({"auth", "unknown_model", "no_credit", "unreachable", "refused"})
"""As the first thing that ever comes back they mean that the analyzer cannot be used."""
CONTENT = frozenset({"context_too_long", "content_filter"})
"""About one request, not about the endpoint."""

REMEDIES: Mapping[str, str] = {
    "auth": "Check the key: the provider's environment variable, or `api_key`.",
    "unknown_model": "Check the model's name at the provider, and that `api_base` is the API's root (often `/v1`).",
    "no_credit": "The account has no credit left; top it up or use another analyzer.",
    "unreachable": "Check `api_base`, the network and proxy settings, and that the server runs.",
    "refused": "The endpoint takes no such request; see `docs/analyzer.md` for what is sent.",
    "rate_limit": "Lower `analyzer_workers`, or set `analyzer_requests_per_minute` or `analyzer_tokens_per_minute`.",
    "timeout": "Raise `analyzer_timeout`, or use a faster endpoint.",
    "context_too_long": "Lower `analyzer_context_chars`, the characters of recorded text in one request.",
    "content_filter": "The provider's content filter refused the request.",
    "server_error": "The endpoint has trouble.",
    "connection": "The connection broke.",
    "bad_response": "The endpoint's response is no chat completion.",
    "too_large": "The endpoint's response is longer than 8 MB, which no answer is.",
}

_TYPED: Mapping[str, str] = {
    "ContextWindowExceededError": "context_too_long",
    "ContentPolicyViolationError": "content_filter",
    "RateLimitError": "rate_limit",
    "AuthenticationError": "auth",
    "PermissionDeniedError": "auth",
    "NotFoundError": "unknown_model",
    "Timeout": "timeout",
}
"""LiteLLM's exceptions that say what happened; its others stand for several things."""
_BY_STATUS: Mapping[int, str] = {
    401: "auth",
    402: "no_credit",
    403: "auth",
    404: "unknown_model",
    408: "timeout",
    413: "context_too_long",
    429: "rate_limit",
    504: "timeout",
}

_CREDIT = re.compile(
    r"insufficient[ _](?:balance|quota|credit|fund)|exceeded your current quota|arrears?\b|余额不足|欠费", re.I
)
_MODEL = re.compile(
    r"model.{0,60}(?:not[ _]exist|not[ _]found|does not exist|no access)|(?:no such|unknown) model|模型不存在",
    re.I | re.S,
)
_CONTEXT = re.compile(
    r"context[ _](?:length|window|size)|maximum context|(?:input|prompt|message)s?.{0,40}too (?:long|large)"
    r"|too many (?:input )?tokens|range of input length|exceeds?.{0,40}(?:token limit|max.{0,20}(?:length|tokens))",
    re.I | re.S,
)
_CONTENT = re.compile(r"content[ _](?:policy|filter|management)|data[ _]inspection|sensitive|safety", re.I)
_MAX_TEXT = 400


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed request."""

    kind: str
    """A member of `REMEDIES`, or closed."""
    text: str = ""
    """What the server or the library said; keys taken out."""
    retry_after: float | None = None
    """Seconds that the server asked to wait."""

    @property
    def remedy(self) -> str:
        return REMEDIES.get(self.kind, "")


def failure_of(error: BaseException) -> Failure:
    """Classify an exception of LiteLLM, of an HTTP client below it, or a time-out of ours."""
    causes = list(_causes(error))
    names = {type(cause).__name__ for cause in causes}
    text = _short(str(error))
    return Failure(_kind(error, names, text), text, _retry_after(causes))


def _kind(error: BaseException, names: set[str], text: str) -> str:
    if "TooLargeError" in names:
        return "too_large"
    if names & {"ConnectionRefusedError", "gaierror", "ConnectTimeout", "ConnectionTimeoutError", "ConnectError"}:
        return "unreachable"
    typed = next((_TYPED[one.__name__] for one in type(error).__mro__ if one.__name__ in _TYPED), "")
    status = _status(error)
    kind = typed or _BY_STATUS.get(status or 0, "")
    if kind == "rate_limit" and _CREDIT.search(text):
        return "no_credit"
    if kind == "auth" and status == 403 and _MODEL.search(text):
        return "unknown_model"
    if kind:
        return kind
    if status is not None and 400 <= status < 500:  # a bad request, and only its words say why
        if _CREDIT.search(text):
            return "no_credit"
        if _CONTEXT.search(text):
            return "context_too_long"
        if _MODEL.search(text):
            return "unknown_model"
        return "content_filter" if _CONTENT.search(text) else "refused"
    if names & {"Timeout", "TimeoutError", "ReadTimeout", "APITimeoutError"}:
        return "timeout"
    if names & {"ReadError", "WriteError", "RemoteProtocolError", "ConnectionResetError", "ServerDisconnectedError"}:
        return "connection"
    if names & {"JSONDecodeError", "APIResponseValidationError", "ValidationError"}:
        return "bad_response"
    return "server_error"


def _causes(error: BaseException) -> Iterator[BaseException]:
    """`error` and what it was raised from, nearest first: LiteLLM wraps a refused connection in a status of 500."""
    queue, seen = [error], set()
    while queue:
        cause = queue.pop(0)
        if id(cause) in seen:
            continue
        seen.add(id(cause))
        yield cause
        queue.extend(one for one in (cause.__cause__, cause.__context__) if one is not None)


def _status(error: BaseException) -> int | None:
    status = getattr(error, "status_code", None)
    try:
        return int(status) if status is not None else None
    except (TypeError, ValueError):
        return None


def _retry_after(causes: list[BaseException]) -> float | None:
    """The first usable Retry-After among the headers that the exceptions carry."""
    for cause in causes:
        holders = (getattr(cause, "litellm_response_headers", None), getattr(cause, "headers", None))
        for headers in (*holders, getattr(getattr(cause, "response", None), "headers", None)):
            if isinstance(headers, Mapping) or hasattr(headers, "get"):
                seconds = parse_retry_after(headers)
                if seconds is not None:
                    return seconds
    return None


def parse_retry_after(headers: Any) -> float | None:
    """Seconds to wait, from `retry-after-ms` or `retry-after` (a number or an HTTP date); None when not given."""
    values = {str(name).lower(): str(value).strip() for name, value in dict(headers).items()}
    try:
        if "retry-after-ms" in values:
            return max(0.0, float(values["retry-after-ms"]) / 1000)
        given = values.get("retry-after")
        if given is None:
            return None
        if re.fullmatch(r"\d+(\.\d+)?", given):
            return float(given)
        return max(0.0, email.utils.parsedate_to_datetime(given).timestamp() - time.time())
    except (TypeError, ValueError):
        return None


def _short(text: str) -> str:
    text = " ".join(text.split("Traceback (most recent call last)")[0].split())  # LiteLLM packs some into its messages
    return text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + " ..."
