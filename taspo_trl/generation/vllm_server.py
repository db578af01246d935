"""Generation through a running `vllm serve`: each request goes out at once, from every process, without collectives.

The HTTP path imports no vllm. What one request suffers costs its own episode; a server that is gone, hangs or was
restarted is given up for the whole batch, so that nothing waits for it twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from ..errors import ServiceError
from ..seeds import derive_seed
from .base import Generation, GenerationRequest, SamplingSettings
from .completions import check_extra, completion_body, parse_completion
from .http import HTTPClient, HTTPFailure


START_COMMAND = (
    'VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --weight-transfer-config \'{"backend": "nccl"}\' '
    "--logprobs-mode processed_logprobs"
)
_ATTEMPTS = 5
_BACKOFF_SECONDS = 0.5
_WAIT_SECONDS = 0.5
_PROBE_SECONDS = 10.0
_INFO_SECONDS = 60.0
"""The server collects facts about its machine at the first `/server_info`."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server says about itself."""

    model: str
    """The id that requests name."""
    root: str
    """What the model was loaded from."""
    max_model_length: int
    """Tokens of prompt and reply together."""
    instance: str | None = None
    """Differs after a restart; None without the server's development endpoints, as are the next two."""
    logprobs_mode: str | None = None
    has_weight_transfer: bool | None = None


class VLLMServer:
    """One running server: whether it is up, what it is, whether it is still the same.

    Args:
        base_url (`str`):
            Root of the server.
        timeout (`float`, *optional*, defaults to `240.0`):
            Seconds to wait for it to be up (TRL's `vllm_server_timeout`).
    """

    def __init__(self, base_url: str, timeout: float = 240.0):
        self.client = HTTPClient(base_url)
        self.timeout = timeout
        self.facts: ServerFacts | None = None
        """What the server was when it was first reached."""

    @property
    def url(self) -> str:
        """The address, without what may be secret in it."""
        return self.client.shown_url

    def check(self) -> ServerFacts:
        """Wait until the server is up, and make sure that it is the one of before.

        Raises:
            ServiceError: not up within the time-out, or another one than before; with the address and the next step.
        """
        answer = self.client.start(self._reach())
        try:
            found = answer.result()
        except BaseException:  # Ctrl-C: else it would go on asking
            answer.cancel()
            raise
        if self.facts is None:
            self.facts = found
        self.refuse_another(found)
        return found

    def check_unchanged(self) -> None:
        """Raise [`~taspo_trl.errors.ServiceError`] if another server answers now; one that is gone is no news."""
        with contextlib.suppress(HTTPFailure):
            self.refuse_another(self.client.start(self.read_facts(_PROBE_SECONDS)).result())

    def refuse_another(self, found: ServerFacts) -> None:
        """Raise [`~taspo_trl.errors.ServiceError`] for a server that is not the one of before."""
        known = self.facts
        if known is None or found == known:
            return
        if (found.model, found.root, found.max_model_length) != (known.model, known.root, known.max_model_length):
            change = (
                f"serves {found.model!r} from {found.root!r} with {found.max_model_length} tokens now; it served "
                f"{known.model!r} from {known.root!r} with {known.max_model_length}"
            )
        else:
            change = "was restarted, or its settings changed: it does not hold the weights that were sent to it"
        raise ServiceError(
            f"The vLLM server at {self.url} {change}. Nothing is generated with it. Start it as before and resume "
            "from the last checkpoint."
        )

    def close(self) -> None:
        """Close connections and thread."""
        self.client.close()

    async def read_facts(self, timeout: float = _INFO_SECONDS) -> ServerFacts:
        """Ask the server what it is."""
        card = _first_model(await self.client.get("/v1/models", min(timeout, _PROBE_SECONDS)))
        facts = ServerFacts(card["id"], card.get("root") or card["id"], card["max_model_len"])
        try:
            info = (await self.client.get("/server_info?config_format=json", timeout))["vllm_config"]
            return ServerFacts(
                facts.model,
                facts.root,
                facts.max_model_length,
                instance=str(info["instance_id"]) if info.get("instance_id") else None,
                logprobs_mode=info["model_config"]["logprobs_mode"],
                has_weight_transfer=info["weight_transfer_config"] is not None,
            )
        except HTTPFailure as failure:
            if failure.status != 404:
                raise
        except (KeyError, TypeError, AttributeError):
            pass
        return facts  # a server without development endpoints can generate, though it takes no weights

    async def _reach(self) -> ServerFacts:
        failure: ServiceError = ServiceError("no answer")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.timeout):
                while True:
                    try:
                        await self.client.get("/health", _PROBE_SECONDS)
                        return await self.read_facts()
                    except HTTPFailure as error:
                        failure = error
                    await asyncio.sleep(_WAIT_SECONDS)
        raise ServiceError(
            f"The vLLM server at {self.url} could not be used within `vllm_server_timeout` ({self.timeout:g} s): "
            f"{failure}. Start it with `{START_COMMAND}`, or correct `vllm_server_base_url` (or `vllm_server_host` "
            "and `vllm_server_port`)."
        )


class VLLMServerEngine:
    """Samples through `/v1/completions`; `flush` has nothing to do.

    A request that no attempt could get answered raises from its future: refused by the server (a prompt that is too
    long), answered with nonsense, or not within `timeout` seconds of being sent. When the server answered nothing at
    all during that time, when it cannot be reached, or when it is another one than before, all further requests of
    the batch fail at once.

    The seed of a request derives from the batch's seed, the episode and the turn, so that the order in which episodes
    get ready decides nothing.

    Args:
        server (`VLLMServer`):
            Where to generate; its facts are known.
        stop_token_ids (`list[int]`):
            End tokens, as TRL resolves them.
        structured_outputs_regex (`str`, *optional*):
            TRL's `vllm_structured_outputs_regex`.
        max_concurrency (`int`, *optional*, defaults to `512`):
            Requests of this process in flight; the others wait here. The server has a queue of its own.
    """

    def __init__(
        self,
        server: VLLMServer,
        *,
        stop_token_ids: list[int],
        structured_outputs_regex: str | None = None,
        max_concurrency: int = 512,
    ):
        self._server = server
        self._stop_token_ids = list(stop_token_ids)
        self._regex = structured_outputs_regex
        self._places = asyncio.Semaphore(max_concurrency)
        self._sampling = SamplingSettings()
        self._seed = 0
        self._turns: Counter[str] = Counter()
        self._in_flight: set[Future] = set()
        self._batch = _Batch()
        self._jitter = random.Random()  # of its own: retries must not move the random numbers of the training run

    def begin(self, sampling: SamplingSettings, seed: int) -> None:
        check_extra(sampling.extra)
        self.abandon()  # what a batch that was given up left over
        self._sampling, self._seed = sampling, seed
        self._turns.clear()
        self._batch = _Batch()

    def submit(self, request: GenerationRequest) -> Future[Generation]:
        turn = self._turns[request.episode_uid]
        self._turns[request.episode_uid] += 1
        facts = self._server.facts or self._server.check()
        body = completion_body(
            request,
            self._sampling,
            model=facts.model,
            stop_token_ids=self._stop_token_ids,
            seed=derive_seed(self._seed, request.episode_uid, turn),
            structured_outputs_regex=self._regex,
        )
        future = self._server.client.start(self._generate(request, body, self._batch))
        self._in_flight.add(future)
        future.add_done_callback(self._in_flight.discard)
        return future

    def flush(self) -> None:
        """Requests are generated as they come."""

    def abandon(self) -> None:
        """Give up what is in flight."""
        for future in list(self._in_flight):
            future.cancel()

    async def _generate(self, request: GenerationRequest, body: dict[str, Any], batch: _Batch) -> Generation:
        loop = asyncio.get_running_loop()
        async with self._places:
            batch.raise_fault()
            sent = loop.time()
            try:
                async with asyncio.timeout(self._server.timeout):
                    answer = await self._answer(body, batch)
            except TimeoutError:
                what = f"gave no reply within `vllm_server_timeout` ({self._server.timeout:g} s)"
                if batch.last_answer < sent:
                    batch.give_up(f"The vLLM server at {self._server.url} {what}, to this or any other request.")
                raise ServiceError(f"The vLLM server at {self._server.url} {what}.") from None
            except HTTPFailure as failure:
                raise ServiceError(f"The vLLM server at {self._server.url}: {failure}") from failure
            batch.last_answer = loop.time()
        return parse_completion(answer, request)

    async def _answer(self, body: dict[str, Any], batch: _Batch) -> Any:
        """Send the request, again after a failure that may pass. Seeds make a repeat the same reply."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                if batch.is_suspect:
                    await self._look_again(batch)
                return await self._server.client.post("/v1/completions", body)
            except HTTPFailure as failure:
                if not failure.is_temporary:
                    raise
                batch.is_suspect |= failure.kind == "connection"
                if attempt == _ATTEMPTS:
                    await self._judge(batch, failure)
                    raise
            await asyncio.sleep(_BACKOFF_SECONDS * 2 ** (attempt - 1) * self._jitter.uniform(0.75, 1.25))
            batch.raise_fault()
        raise AssertionError("unreachable")

    async def _look_again(self, batch: _Batch) -> None:
        """After a lost connection: nothing more is sent until the server of before has answered.

        Raises:
            HTTPFailure: nobody answers, for now.
            ServiceError: another server answers.
        """
        if batch.look is None or batch.look.done():  # one look for all that lost their connections
            batch.look = asyncio.ensure_future(self._server.read_facts(_PROBE_SECONDS))
        found = await asyncio.shield(batch.look)
        try:
            self._server.refuse_another(found)
        except ServiceError as error:
            batch.give_up(str(error))
            raise
        batch.is_suspect = False

    async def _judge(self, batch: _Batch, failure: HTTPFailure) -> None:
        """After the last attempt: was it this request, or is the server gone for all?"""
        if failure.kind != "connection":
            return
        try:
            await self._look_again(batch)
        except HTTPFailure as error:
            batch.give_up(
                f"The vLLM server at {self._server.url} is gone: {error}. See its log; start it again and resume "
                "from the last checkpoint."
            )
            batch.raise_fault()


class _Batch:
    """What the requests of one batch share."""

    def __init__(self) -> None:
        self.last_answer = float("-inf")
        """When the server last answered a request (loop time)."""
        self.is_suspect = False
        """Whether a connection was lost and the server has not been seen since."""
        self.look: asyncio.Future[ServerFacts] | None = None
        self._fault = ""

    def give_up(self, reason: str) -> None:
        self._fault = self._fault or reason

    def raise_fault(self) -> None:
        if self._fault:
            raise ServiceError(self._fault)


def _first_model(answer: Any) -> dict[str, Any]:
    """The card of the served model, as `/v1/models` gives it."""
    try:
        card = answer["data"][0]
        if isinstance(card["id"], str) and isinstance(card["max_model_len"], int):
            return card
    except (KeyError, IndexError, TypeError):
        pass
    raise HTTPFailure("body", f"/v1/models does not describe a model as vLLM does: {answer!r:.300}")
