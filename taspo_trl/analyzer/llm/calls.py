"""One question to the endpoint: paced, repeated as often as allowed, in a form that the endpoint takes."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...redaction import Secret
from ..prompts import Message
from .failures import TRANSIENT, Failure
from .pacing import Pace, backoff_seconds
from .providers import RequestForm
from .settings import AnalyzerSettings
from .transport import RawAnswer, Transport


logger = logging.getLogger(__name__)

_FIRST_CALL_SECONDS = 0.5
_CHARS_PER_TOKEN = 3.5
_MAX_ASKED_WAIT = 60.0  # seconds; the step's time is better spent on plain GRPO weights


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a question ended."""

    result: RawAnswer | Failure
    num_requests: int
    wait_seconds: float
    """Spent on limits, waits that the server asked for, and back-off."""


class Caller:
    """Sends questions to one endpoint and learns what it refuses.

    Args:
        settings (`AnalyzerSettings`), form (`RequestForm`), key (`Secret`):
            What is sent, and how often.
        closed (`threading.Event`):
            Ends every wait.
    """

    def __init__(self, settings: AnalyzerSettings, form: RequestForm, key: Secret, closed: threading.Event):
        self._settings = settings
        self._form = form
        self._key = key
        self._closed = closed
        self._pace = Pace(settings.requests_per_minute, settings.tokens_per_minute)
        self._transport = Transport()
        self._rng = random.Random()  # for jitter; the run's own random numbers stay untouched
        self._lock = threading.Lock()
        self._first_call = threading.Lock()
        self._has_learned = threading.Event()

    def call(self, stage: str, messages: Sequence[Message], attempts: int) -> Outcome:
        """Ask until there is an answer or `attempts` requests have failed in a way that another try may mend."""
        estimate = _estimated_tokens(*(message["content"] for message in messages))
        num_requests = num_attempts = 0
        waited = 0.0
        while True:
            since = time.monotonic()
            ticket = self._pace.wait_turn(estimate, self._closed)
            waited += time.monotonic() - since
            if ticket is None:
                return Outcome(Failure("closed"), num_requests, waited)
            result, is_adapted = self._send(stage, messages)
            num_requests += 1
            if isinstance(result, RawAnswer):
                answer = self._counted(result, estimate)
                ticket.used((answer.prompt_tokens or 0) + (answer.completion_tokens or 0))
                return Outcome(answer, num_requests, waited)
            if is_adapted:
                continue  # another form of the question, not another attempt at the same one
            num_attempts += 1
            wait = (result.retry_after or 0.0) * self._rng.uniform(1.0, 1.1)
            is_final = result.kind not in TRANSIENT or num_attempts >= attempts
            if is_final or wait > max(_MAX_ASKED_WAIT, self._settings.timeout):
                return Outcome(result, num_requests, waited)
            if result.retry_after is not None:
                self._pace.hold(wait)
            else:
                wait = backoff_seconds(num_attempts, self._rng)
                self._closed.wait(wait)
                waited += wait

    def close(self) -> None:
        self._transport.close()

    def _send(self, stage: str, messages: Sequence[Message]) -> tuple[RawAnswer | Failure, bool]:
        """(result, whether the endpoint refused the form and there is another one).

        The very first request goes alone for a moment: what it teaches, a refused parameter or a wrong key, would
        otherwise be learned by each worker for itself.
        """
        is_first = not self._has_learned.is_set() and self._first_call.acquire(blocking=False)
        if not is_first:
            self._has_learned.wait(_FIRST_CALL_SECONDS)
        form = self._form
        try:
            result = self._transport.send(self._arguments(form, stage, messages), self._settings.timeout, self._key)
            is_adapted = isinstance(result, Failure) and self._adapt(form, result)
        finally:
            if is_first:
                self._has_learned.set()
        return result, is_adapted

    def _arguments(self, form: RequestForm, stage: str, messages: Sequence[Message]) -> dict[str, Any]:
        arguments = {
            "model": self._settings.model,
            "messages": [dict(message) for message in messages],  # LiteLLM edits them
            **form.arguments(stage),
        }
        if self._settings.api_base is not None:
            arguments["api_base"] = self._settings.api_base
        return arguments

    def _adapt(self, form: RequestForm, failure: Failure) -> bool:
        """Leave out what the endpoint refused in `form`, for the rest of the run."""
        if failure.kind not in ("refused", "unknown_model"):
            return False
        with self._lock:
            if self._form is not form:
                return True  # another worker has learned it meanwhile
            changed = form.without_refused(failure.text)
            if changed is None:
                return False
            self._form, note = changed
        logger.warning(
            "%s refuses a parameter; %s, for the rest of the run. It said: %s",
            self._settings.model,
            note,
            failure.text,
        )
        return True

    def _counted(self, answer: RawAnswer, estimate: int) -> RawAnswer:
        """`answer` with estimates for counts that the server did not give, and at the user's prices."""
        prompt_tokens = estimate if answer.prompt_tokens is None else answer.prompt_tokens
        completion_tokens = answer.completion_tokens
        if completion_tokens is None:
            completion_tokens = _estimated_tokens(answer.text)
        cost = answer.cost_usd
        if self._settings.prices is not None:
            price_in, price_out = self._settings.prices
            cost = (prompt_tokens * price_in + completion_tokens * price_out) / 1e6
        return replace(answer, prompt_tokens=prompt_tokens, completion_tokens=completion_tokens, cost_usd=cost)


def _estimated_tokens(*texts: str) -> int:
    """A rough count for limits and budgets, where the server gives none."""
    return int(sum(map(len, texts)) / _CHARS_PER_TOKEN)
