"""An analyzer behind any endpoint that LiteLLM reaches: cached, paced, bounded in time and money."""

from __future__ import annotations

import functools
import logging
import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any

from ...errors import AnalyzerError, ConfigurationError
from ...redaction import Secret
from ..base import AnalyzerReply, AnalyzerRequest, Stage
from ..prompts import chat_of
from .cache import AnswerCache, Claims, Question, question_of
from .calls import Caller, Outcome
from .database import Database
from .failures import UNUSABLE, Failure
from .ledger import Ledger, Totals
from .pacing import Health
from .providers import ModelFacts, key_variable, request_form
from .settings import AnalyzerSettings
from .transport import RawAnswer, model_facts


logger = logging.getLogger(__name__)

_NO_KEY = "no-key-needed"  # the OpenAI client wants a key even where the server wants none


class LiteLLMAnalyzer:
    """
    Analyzer that asks a large language model through LiteLLM.

    Example:

    ```python
    >>> from taspo_trl.analyzer import LiteLLMAnalyzer

    >>> analyzer = LiteLLMAnalyzer("deepseek/deepseek-chat", budget_usd=5.0)  # key in DEEPSEEK_API_KEY
    >>> local = LiteLLMAnalyzer("hosted_vllm/Qwen/Qwen3.5-35B-A3B", api_base="http://localhost:8000/v1")
    ```

    Args:
        model (`str`):
            LiteLLM's name of the model, provider first: `"deepseek/..."`, `"zai/..."`, `"dashscope/..."`,
            `"hosted_vllm/..."`, `"openai/..."` (with `api_base`: any OpenAI-compatible endpoint), and others.
        api_key (`str`, *optional*):
            The key. If `None`, LiteLLM takes it from the provider's environment variable, which is the better place.
            It is never shown, saved or pickled.
        api_base (`str`, *optional*):
            Root of the API, for example `"http://localhost:8000/v1"`.
        timeout (`float`, *optional*, defaults to `120.0`):
            Wall time of one attempt in seconds.
        attempts (`int`, *optional*, defaults to `3`):
            Requests for one question at most, when they fail in a way that another try may mend.
        max_output_tokens (`int`, *optional*, defaults to `4096`):
            Output limit of one answer.
        requests_per_minute (`int`, *optional*), tokens_per_minute (`int`, *optional*):
            Limits of this process. If `None`, unlimited.
        budget_usd (`float`, *optional*), budget_tokens (`int`, *optional*):
            Spending after which no new call is made; calls in flight may go beyond it. If `None`, unlimited.
        prices (`tuple[float, float]`, *optional*):
            USD for a million input tokens and a million output tokens, for models that LiteLLM has no price for.
        cache (`str` or `PathLike`, *optional*, defaults to `"auto"`):
            SQLite file of paid answers. `"auto"` is `$TASPO_CACHE/analyzer.sqlite`, else
            `~/.cache/taspo_trl/analyzer.sqlite`; `None` keeps none.
        run (`str`, *optional*):
            Name under which spending is added up over processes and restarts that share the cache. If `None`, a budget
            counts this object's calls only.
        required (`bool`, *optional*, defaults to `True`):
            Whether an analyzer that cannot be used at all (wrong key, unknown model, unreachable host at its first
            call) raises [`~taspo_trl.errors.AnalyzerError`]. If `False`, it is a failed call like any other.
        reasoning_off (`Mapping[str, Any]`, *optional*):
            Body fields that switch reasoning off, for endpoints whose switch is not in the provider table.
        temperature (`float`, *optional*, defaults to `0.0`):
            Sampling temperature.
        options (`Mapping[str, Any]`, *optional*):
            Further arguments for LiteLLM, for example `{"api_version": "..."}`. No secrets.
    """

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None = None,
        api_base: str | None = None,
        timeout: float = 120.0,
        attempts: int = 3,
        max_output_tokens: int = 4096,
        requests_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
        budget_usd: float | None = None,
        budget_tokens: int | None = None,
        prices: tuple[float, float] | None = None,
        cache: str | os.PathLike | None = "auto",
        run: str | None = None,
        required: bool = True,
        reasoning_off: Mapping[str, Any] | None = None,
        temperature: float = 0.0,
        options: Mapping[str, Any] | None = None,
    ):
        # Rebound before anything can raise: a traceback that prints local variables must not print the key.
        key, api_key = Secret(api_key or ""), None
        self.settings = settings = AnalyzerSettings(
            model=model,
            api_base=api_base,
            timeout=timeout,
            attempts=attempts,
            max_output_tokens=max_output_tokens,
            requests_per_minute=requests_per_minute,
            tokens_per_minute=tokens_per_minute,
            budget_usd=budget_usd,
            budget_tokens=budget_tokens,
            prices=prices,
            cache=cache,
            run=run,
            required=required,
            reasoning_off=reasoning_off,
            temperature=temperature,
            options=options or {},
        )
        facts = _facts(settings)
        form, notes = request_form(
            model,
            facts,
            max_tokens=max_output_tokens,
            has_api_base=settings.api_base is not None,
            reasoning_off=reasoning_off,
            options=settings.options,
        )
        form = replace(form, temperature=temperature)
        self.name = model
        # As asked for: what an endpoint refuses later does not make a new question. Another endpoint does, because two
        # servers may give different models one name.
        self._parameters = {**asdict(form), "api_base": settings.api_base}
        self._closed = threading.Event()
        self._caller = Caller(settings, form, key or _stand_in_key(settings, facts.provider), self._closed)
        self._health = Health(settings.timeout * settings.attempts)
        path = settings.cache_path
        self._database = Database(path)
        self._database.check()
        self._cache = AnswerCache(self._database, model) if path is not None else None
        self._claims = Claims(None if path is None else path.with_name(path.name + ".locks"))
        self._ledger = Ledger(self._database, model, run or uuid.uuid4().hex)
        self._lock = threading.Lock()
        self._said: set[str] = set()
        if notes:
            logger.warning("Analyzer %s: %s.", model, "; ".join(notes))

    _role, _a_call = "analyzer", "An analyzer call"
    _affected = "trajectories train with plain GRPO weights"
    _without_it = "trajectories without a cached answer train with plain GRPO weights"
    _instead = "To train on with plain GRPO weights, set `analyzer_required=False` (`required=False`). "

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def __reduce__(self):
        # Without the key, which the copy finds in its own environment.
        arguments = {
            one.name: getattr(self.settings, one.name) for one in fields(self.settings) if one.name != "model"
        }
        return functools.partial(type(self), self.name, **arguments), ()

    @property
    def totals(self) -> Totals:
        """Calls, tokens and cost so far."""
        return self._ledger.totals()

    @property
    def run_totals(self) -> Totals:
        """The same of the whole `run`, over its processes and restarts, without what the cache answered.

        Without a cache, or one that can be read, of this object.
        """
        totals = self._ledger.run_totals() if self._cache is not None else None
        if totals is not None:
            return totals
        totals = self.totals
        return replace(totals, calls=totals.calls - totals.cached, cached=0)

    def complete(self, request: AnalyzerRequest) -> AnalyzerReply:
        """Answer one request, from the cache if it was ever answered. Called from several threads at once.

        Raises:
            AnalyzerError: the analyzer cannot be used at all, and is `required`.
        """
        started = time.monotonic()
        question = question_of(self.name, self._parameters, request)
        try:
            reply = self._from_cache(question)
            if reply is None:
                with self._claims.claim(question.key, self._closed):
                    reply = self._from_cache(question) or self._ask(request, question)
        finally:
            if self._closed.is_set():  # an answer that came in while closing was still filed
                self._database.close()
        reply = replace(reply, seconds=time.monotonic() - started)
        self._ledger.count(reply)
        return reply

    def close(self) -> None:
        """Give up calls in flight and free threads, connections and files. May be called twice."""
        self._closed.set()
        self._caller.close()
        self._database.close()

    def _from_cache(self, question: Question) -> AnalyzerReply | None:
        if self._cache is None or self._closed.is_set():
            return None
        try:
            answer = self._cache.get(question)
        except (
            sqlite3.Error,
            OSError,
            ValueError,
            LookupError,
            TypeError,
            RecursionError,
        ) as error:  # a damaged file costs a call, not the run
            self._say("cache", f"The analyzer cache cannot be read: {error}.")
            return None
        return None if answer is None else AnalyzerReply(answer.text, "", answer.finish_reason, is_cached=True)

    def _ask(self, request: AnalyzerRequest, question: Question) -> AnalyzerReply:
        obstacle = self._obstacle()
        if obstacle:
            return AnalyzerReply(error=obstacle)
        started = time.monotonic()
        attempts = 1 if self._health.is_probing else self.settings.attempts
        outcome = self._caller.call(request.stage, chat_of(request), attempts)
        reply = _reply_of(outcome, time.monotonic() - started)
        if isinstance(outcome.result, Failure):
            self._book(request.stage, reply)
            self._on_failure(outcome.result)
        else:
            self._health.succeeded()
            self._book(request.stage, reply, question, outcome.result)
            self._comment(outcome.result)
        return reply

    def _obstacle(self) -> str:
        """Why no request may go out now; empty when one may."""
        if self._closed.is_set():
            return "closed"
        if self._is_budget_used_up():
            return "budget"
        if self._health.may_call():
            return ""
        if self.settings.required and self._health.is_refused and not self._health.has_answered:
            raise AnalyzerError(
                f"The {self._role} {self.name} could not be used at its first calls and is not asked again."
            )
        return "paused"

    def _is_budget_used_up(self) -> bool:
        usd_limit, token_limit = self.settings.budget_usd, self.settings.budget_tokens
        if usd_limit is None and token_limit is None:
            return False
        usd, tokens = self._ledger.spent()
        if (usd_limit is None or usd < usd_limit) and (token_limit is None or tokens < token_limit):
            return False
        self._say(
            "budget",
            f"The {self._role}'s budget is used up: {usd:.2f} USD and {tokens} tokens are spent (`budget_usd` "
            f"{usd_limit}, `budget_tokens` {token_limit}). No more calls are made; from here on {self._without_it}.",
        )
        return True

    def _book(
        self, stage: Stage, reply: AnalyzerReply, question: Question | None = None, answer: RawAnswer | None = None
    ) -> None:
        """The answer and its cost reach the disk together, before anything is done with them."""

        def work(connection: sqlite3.Connection) -> None:
            if question is not None and answer is not None and self._cache is not None:
                self._cache.put(connection, question, stage, answer)
            self._ledger.book(connection, stage, reply)

        try:
            self._database.transact(work)
        except (sqlite3.Error, OSError) as error:  # a full disk must not throw away an answer that is already here
            self._ledger.keep(reply)
            self._say("cache", f"The analyzer cache cannot be written: {error}. Answers are not kept.")

    def _on_failure(self, failure: Failure) -> None:
        if failure.kind == "closed":
            return
        is_unusable = not self._health.has_answered and failure.kind in UNUSABLE
        warning = self._health.failed(failure.kind)
        if is_unusable and self.settings.required:
            raise AnalyzerError(
                f"The {self._role} {self.name} cannot be used ({failure.kind}). {failure.remedy} {self._instead}"
                f"It said: {failure.text}"
            )
        self._say(
            failure.kind,
            f"{self._a_call} failed ({failure.kind}). {failure.remedy} The affected {self._affected}; further such "
            f"failures are only counted. It said: {failure.text}",
        )
        if warning:
            logger.warning("%s %s", warning, failure.remedy)

    def _comment(self, answer: RawAnswer) -> None:
        if answer.finish_reason == "length":
            self._say(
                "truncated",
                f"An analyzer answer was truncated at {self.settings.max_output_tokens} output tokens. Raise "
                "`analyzer_max_tokens` (`max_output_tokens`), or lower `max_evidence_items`.",
            )
        if answer.has_reasoning:
            self._say("reasoned", f"{self.name} reasons although it was asked not to, which costs time and tokens.")

    def _say(self, topic: str, message: str) -> None:
        """Warn once about each topic."""
        with self._lock:
            is_new = topic not in self._said
            self._said.add(topic)
        if is_new:
            logger.warning("%s", message)


def _facts(settings: AnalyzerSettings) -> ModelFacts:
    """What LiteLLM knows about the model; an error when that is too little."""
    facts = model_facts(settings.model, settings.api_base)
    if facts is None:
        raise ConfigurationError(
            f"`model` must begin with a provider that LiteLLM knows, got {settings.model!r}. Write for example "
            f'"deepseek/deepseek-chat", or "openai/{settings.model or "my-model"}" with `api_base` for an '
            "OpenAI-compatible endpoint."
        )
    if settings.budget_usd is not None and settings.prices is None and not facts.has_price:
        raise ConfigurationError(
            f"`budget_usd` needs a price, and LiteLLM has none for {settings.model!r}. Pass `prices=(input, output)` "
            "in USD for a million tokens, or use `budget_tokens`."
        )
    return facts


def _stand_in_key(settings: AnalyzerSettings, provider: str) -> Secret:
    """What to send when no key was passed: nothing where LiteLLM finds one, a placeholder to servers of the user's."""
    variable = key_variable(provider)
    if not variable or os.environ.get(variable):
        return Secret()
    if settings.api_base is None:
        raise ConfigurationError(
            f"There is no key for {provider}: set the environment variable {variable}, or pass `api_key` to "
            "LiteLLMAnalyzer. A configuration never holds keys."
        )
    return Secret(_NO_KEY)


def _reply_of(outcome: Outcome, seconds: float) -> AnalyzerReply:
    details = {
        "requests": float(outcome.num_requests),
        "retries": float(max(0, outcome.num_requests - 1)),
        "wait_seconds": outcome.wait_seconds,
    }
    result = outcome.result
    if isinstance(result, Failure):
        return AnalyzerReply(error=result.kind, seconds=seconds, details=details)
    return AnalyzerReply(
        text=result.text,
        finish_reason=result.finish_reason,
        prompt_tokens=result.prompt_tokens,
        completion_tokens=result.completion_tokens,
        cost_usd=result.cost_usd,
        seconds=seconds,
        details={**details, "reasoned": float(result.has_reasoning)},
    )
