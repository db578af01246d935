"""Generation with vLLM inside the training process: one engine, stepped by a thread as long as it has requests.

Requests join the running batch when they come and leave it when they end, so that no turn waits for another.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, Protocol

from ..errors import ServiceError
from ..seeds import derive_seed
from .base import Generation, GenerationRequest, SamplingSettings
from .completions import check_extra, finish_reason, sampling_parameters, usable_logp


class Engine(Protocol):
    """What is used of vLLM's `LLMEngine`."""

    def add_request(self, request_id: str, prompt: Any, params: Any) -> Any: ...

    def step(self) -> list[Any]: ...

    def has_unfinished_requests(self) -> bool: ...

    def abort_request(self, request_ids: list[str]) -> None: ...


class VLLMColocateEngine:
    """Samples with an engine of this process; `flush` has nothing to do.

    The seed of a request derives from the batch's seed, the episode and the turn. A request that the engine refuses
    raises from its future; an engine that fails takes all requests of the batch with it.

    Args:
        engine (`Engine`):
            vLLM's `LLMEngine`.
        make_parameters (`Callable`):
            Keywords of vLLM's `SamplingParams` -> an instance.
        stop_token_ids (`list[int]`):
            End tokens, as TRL resolves them.
        prepare_thread (`Callable`, *optional*):
            Called once in the thread that steps the engine; sets its CUDA device, which is a thread's own.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        make_parameters: Callable[..., Any],
        stop_token_ids: list[int],
        prepare_thread: Callable[[], None] = lambda: None,
    ):
        self._engine = engine
        self._make_parameters = make_parameters
        self._stop_token_ids = list(stop_token_ids)
        self._prepare_thread = prepare_thread
        self._sampling = SamplingSettings()
        self._seed = 0
        self._turns: Counter[str] = Counter()
        self._num_requests = 0
        self._news = threading.Condition()
        self._stepping = threading.Lock()
        """Held while the engine is touched."""
        self._inbox: deque[tuple[str, GenerationRequest, Any, Future[Generation]]] = deque()
        self._running: dict[str, tuple[GenerationRequest, Future[Generation]]] = {}
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._fault: BaseException | None = None
        """Why the thread ended, if it did so on its own."""

    def begin(self, sampling: SamplingSettings, seed: int) -> None:
        check_extra(sampling.extra)
        self.abandon()
        self._sampling, self._seed = sampling, seed
        self._turns.clear()

    def submit(self, request: GenerationRequest) -> Future[Generation]:
        turn = self._turns[request.episode_uid]
        self._turns[request.episode_uid] += 1
        self._num_requests += 1
        keywords = sampling_parameters(
            request,
            self._sampling,
            stop_token_ids=self._stop_token_ids,
            seed=derive_seed(self._seed, request.episode_uid, turn),
        )
        future: Future[Generation] = Future()
        with self._news:
            if self._is_closed:
                raise ServiceError("the engine is closed; nothing would answer the request")
            if self._fault is not None:
                raise ServiceError(f"the thread that steps vLLM ended: {self._fault!r}") from self._fault
            self._inbox.append((str(self._num_requests), request, self._make_parameters(**keywords), future))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="taspo-vllm-engine", daemon=True)
                self._thread.start()
            self._news.notify()
        return future

    def flush(self) -> None:
        """The engine takes requests as they come."""

    def abandon(self) -> None:
        """Give up all requests; the engine is idle afterwards."""
        with self._stepping:
            waiting = [future for *_, future in self._inbox]
            self._inbox.clear()
            if self._running:
                self._engine.abort_request(list(self._running))
            waiting += [future for _, future in self._running.values()]
            self._running.clear()
        for future in waiting:
            future.cancel()

    def close(self) -> None:
        """Give up all requests and end the thread."""
        self.abandon()
        with self._news:
            self._is_closed = True
            self._news.notify()
        if self._thread is not None:
            self._thread.join()

    # ---- the thread ------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            self._prepare_thread()
            while True:
                with self._news:
                    self._news.wait_for(lambda: self._inbox or self._running or self._is_closed)
                    if self._is_closed:
                        return
                with self._stepping:
                    answered = self._admit() + self._step()
                for future, answer in answered:  # outside: whoever waits may submit the next request at once
                    _resolve(future, answer)
        except BaseException as error:  # nobody else would answer those who wait
            with self._news:
                self._fault = error
                lost = [future for *_, future in self._inbox] + self._lose_running()
            for future in lost:
                _resolve(future, ServiceError(f"the thread that steps vLLM ended: {error!r}"))
            raise

    def _admit(self) -> list[tuple[Future[Generation], Generation | Exception]]:
        """Hand new requests to the engine; those that it refuses. Called with the engine held."""
        refused: list[tuple[Future[Generation], Generation | Exception]] = []
        while self._inbox:
            request_id, request, parameters, future = self._inbox.popleft()
            try:
                self._engine.add_request(request_id, {"prompt_token_ids": list(request.prompt_ids)}, parameters)
            except Exception as error:  # whatever vLLM raises for a prompt it cannot take
                refused.append((future, ServiceError(f"vLLM refused the request: {type(error).__name__}: {error}")))
            else:
                self._running[request_id] = (request, future)
        return refused

    def _step(self) -> list[tuple[Future[Generation], Generation | Exception]]:
        """One step of the engine; what it answered. Called with the engine held."""
        if not self._running:
            return []
        try:
            outputs = self._engine.step()
        except Exception as error:  # the batch is lost with the engine, the trainer is not
            failure = ServiceError(f"vLLM failed: {type(error).__name__}: {error}")
            return [(future, failure) for future in self._lose_running()]
        answered: list[tuple[Future[Generation], Generation | Exception]] = []
        for output in outputs:
            if not output.finished or output.request_id not in self._running:
                continue
            request, future = self._running.pop(output.request_id)
            try:
                answered.append((future, generation_of(output, request)))
            except ServiceError as error:
                answered.append((future, error))
        if self._running and not self._engine.has_unfinished_requests():
            failure = ServiceError("vLLM dropped the request without an answer")
            answered += [(future, failure) for future in self._lose_running()]
        return answered

    def _lose_running(self) -> list[Future[Generation]]:
        lost, self._running = [future for _, future in self._running.values()], {}
        return lost


def generation_of(output: Any, request: GenerationRequest) -> Generation:
    """The reply in one of vLLM's finished `RequestOutput`s."""
    (reply,) = output.outputs
    ids = tuple(int(one) for one in reply.token_ids)
    if len(ids) > request.max_new_tokens:
        raise ServiceError(f"the reply has {len(ids)} tokens, asked for were {request.max_new_tokens} at most")
    return Generation(ids, finish_reason(reply.finish_reason), _logps(ids, reply.logprobs))


def _logps(ids: tuple[int, ...], logprobs: Iterable[Any] | None) -> tuple[float | None, ...] | None:
    if logprobs is None:
        return None
    positions = list(logprobs)
    if len(positions) != len(ids):
        raise ServiceError(f"the reply has {len(ids)} token ids but log-probabilities of length {len(positions)}")
    return tuple(
        usable_logp(one[token].logprob) if token in one else None for token, one in zip(ids, positions, strict=True)
    )


def _resolve(future: Future[Generation], answer: Generation | Exception) -> None:
    if not future.set_running_or_notify_cancel():
        return
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)
