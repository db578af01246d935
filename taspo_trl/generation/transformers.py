"""Generation with `transformers` by the model of the trainer itself: token by token, or one batch for each flush."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from ..seeds import derive_seed
from ..types import FinishReason
from .base import RESERVED as ANY_ENGINE
from .base import Generation, GenerationRequest, SamplingSettings, check_extra
from .frozen import frozen_mode


if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from .continuous import ContinuousDecoding


logger = logging.getLogger(__name__)


class TransformersEngine:
    """Samples with the model itself.

    Decodes token by token, so that no reply waits for another and keys are kept between the turns of an episode
    ([`~taspo_trl.generation.continuous.ContinuousDecoding`]), wherever model and settings allow it; else with
    `model.generate`, one batch for each call of [`flush`]. [`why_generate`] tells the reason, which is logged.

    Args:
        model ([`~transformers.PreTrainedModel`]):
            The policy; sampled in eval mode (no dropout), its flags restored afterwards.
        pad_token_id (`int`), eos_token_ids (`list[int]`):
            As TRL resolves them.
        batch_tokens (`int`, *optional*, defaults to `262144`):
            Bound on rows x (longest prompt + new tokens) of one batch, which bounds its key-value cache; what is kept
            between turns is counted in.
        cache_implementation (`str`, *optional*):
            TRL's field.
        unwrap (`Callable`, *optional*):
            Gives a context manager that yields the model to generate with; TRL's `unwrap_model_for_generation`
            under DeepSpeed and FSDP.
        most (`Callable`, *optional*):
            For a model whose parameters lie in shards on several processes: the largest of the numbers that all
            processes call it with. Each forward then needs all of them, so they generate in step, and one without
            requests keeps the others company; see [`finish`]. If `None`, processes do not wait for each other.
        is_sharded (`bool`, *optional*, defaults to `False`):
            Whether the parameters lie in shards, on however many processes: `model.generate` then.
        in_step (`bool`, *optional*, defaults to `False`):
            Join requests in [`flush`] only. What is batched with what then never depends on how fast environments
            answer, and a seed repeats a rollout to the last bit; the others wait for the slowest environment.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        pad_token_id: int,
        eos_token_ids: list[int],
        batch_tokens: int = 262144,
        cache_implementation: str | None = None,
        unwrap: Callable[[], contextlib.AbstractContextManager[Any]] | None = None,
        most: Callable[[int], int] | None = None,
        is_sharded: bool = False,
        in_step: bool = False,
    ):
        self._model = model
        self._pad_token_id = pad_token_id
        self._eos_token_ids = list(eos_token_ids)
        self._batch_tokens = batch_tokens
        self._cache_implementation = cache_implementation
        self._unwrap = unwrap or (lambda: contextlib.nullcontext(model))
        self._most = most
        self._queue: list[tuple[GenerationRequest, Future[Generation]]] = []
        self._sampling = SamplingSettings()
        self._seed = 0
        self._num_batches = 0
        self._in_step = in_step
        self._is_sharded = is_sharded or most is not None
        self._why_model: str | None = None
        self._is_proven = False
        self._decoding: ContinuousDecoding | None = None
        self._entered = contextlib.ExitStack()
        self._is_entered = False
        self._told: set[str] = set()
        self.counts: Counter[str] = Counter()
        """What was computed token by token; see [`~taspo_trl.generation.continuous.ContinuousDecoding`]."""

    def begin(self, sampling: SamplingSettings, seed: int) -> None:
        check_generation_kwargs(sampling.extra)
        self.drop()
        self._sampling, self._seed, self._num_batches = sampling, seed, 0
        reason = self.why_generate
        if reason and reason not in self._told:
            self._told.add(reason)
            logger.info("Replies come from `model.generate`, a batch for each turn: %s.", reason)

    @property
    def why_generate(self) -> str:
        """Why replies come from `model.generate`; empty when they are decoded token by token."""
        from .eligible import why_model_generates, why_settings_generate

        if self._why_model is None:
            sharded = "the model's parameters lie in shards"
            self._why_model = sharded if self._is_sharded else why_model_generates(self._model)
        return self._why_model or why_settings_generate(self._sampling.extra, self._cache_implementation)

    @property
    def is_stepped(self) -> bool:
        """Whether [`step`] is to be called while environments work."""
        return not self._in_step and not self.why_generate

    def submit(self, request: GenerationRequest) -> Future[Generation]:
        future: Future[Generation] = Future()
        self._queue.append((request, future))
        return future

    def flush(self) -> None:
        while self.step():
            pass

    def step(self) -> bool:
        """One token of every reply that has begun, after new requests joined; False if there was nothing to do."""
        if self._queue and self._decoding is None and not self.why_generate:
            self._start()
        if self._decoding is None:
            return bool(self._queue) and self._generate_queue()
        if not self._queue and self._decoding.is_idle:
            return False
        try:
            self._enter()
            while self._queue:
                self._decoding.submit(*self._queue.pop(0))
            self._decoding.step()
        except BaseException:
            self.drop()
            raise
        if self._decoding.is_idle:
            self._leave()
        return True

    def forget(self, episode_uid: str) -> None:
        """The episode asks no more: what was kept of it may go."""
        if self._decoding is not None:
            self._decoding.forget(episode_uid)

    def drop(self) -> None:
        """Give up requests and everything that was kept; the model is as it was before."""
        self._queue.clear()
        self._decoding = None
        self._leave()

    def finish(self) -> None:
        """Keep the other processes company; returns when none of them has requests left. Called by each, once idle."""
        if self._most is not None:
            while self._generate_queue():
                pass

    def _enter(self) -> Any:
        """The model made ready, and left so until no reply is under way."""
        if not self._is_entered:
            self._is_entered = True
            self._unwrapped = self._entered.enter_context(self._unwrap())
            self._entered.enter_context(frozen_mode(self._unwrapped))
        return self._unwrapped

    def _leave(self) -> None:
        self._is_entered = False
        self._unwrapped = None
        self._entered.close()

    def _start(self) -> None:
        """Begin to decode token by token, unless a first prompt shows that the model does not go on from its keys."""
        from .continuous import ContinuousDecoding
        from .decoder import disagreement

        try:
            model = self._enter()
            if not self._is_proven:
                reason = disagreement(model, self._queue[0][0].prompt_ids, self._pad_token_id)
                self._is_proven = True
                if reason:
                    self._why_model = f"{type(model).__name__} does not go on from kept keys ({reason})"
                    self._leave()
                    logger.warning("Replies come from `model.generate`, a batch for each turn: %s.", self._why_model)
                    return
            self._decoding = ContinuousDecoding(
                model,
                pad_token_id=self._pad_token_id,
                eos_token_ids=self._eos_token_ids,
                batch_tokens=self._batch_tokens,
                sampling=self._sampling,
                seed=self._seed,
                counts=self.counts,
            )
        except BaseException:
            self._leave()
            raise

    def _generate_queue(self) -> bool:
        """Answer what was submitted; whether any process had something to answer."""
        queue, self._queue = self._queue, []
        # By length, so that a batch is padded little; the uid makes the order independent of arrival.
        queue.sort(key=lambda item: (len(item[0].prompt_ids), item[0].episode_uid))
        batches = list(self._batches(queue))
        num_batches = len(batches) if self._most is None else self._most(len(batches))
        if not num_batches:
            return False
        with self._unwrap() as model, frozen_mode(model), _without_defaults(model):
            for batch in batches:
                requests = [request for request, _ in batch]
                with _seeded(derive_seed(self._seed, self._num_batches), model.device):
                    generations = self._generate(model, requests)
                self._num_batches += 1
                for (_, future), generation in zip(batch, generations, strict=True):
                    future.set_result(generation)
            for _ in range(num_batches - len(batches)):
                with _seeded(0, model.device):
                    self._generate(model, [_COMPANY])
        return True

    def _batches(self, queue: list) -> Iterator[list]:
        batch: list = []
        prompt, new = 0, 0  # the longest prompt and the most new tokens, which need not be the same request's
        for item in queue:
            request = item[0]
            prompt, new = max(prompt, len(request.prompt_ids)), max(new, request.max_new_tokens)
            if batch and (prompt + new) * (len(batch) + 1) > self._batch_tokens:
                yield batch
                batch, prompt, new = [], len(request.prompt_ids), request.max_new_tokens
            batch.append(item)
        if batch:
            yield batch

    def _generate(self, model: Any, requests: list[GenerationRequest]) -> list[Generation]:
        import torch

        width = max(len(request.prompt_ids) for request in requests)
        input_ids = torch.full((len(requests), width), self._pad_token_id, dtype=torch.long)  # (B, P), left-padded
        attention_mask = torch.zeros_like(input_ids)
        for row, request in enumerate(requests):
            start = width - len(request.prompt_ids)
            input_ids[row, start:] = torch.tensor(request.prompt_ids, dtype=torch.long)
            attention_mask[row, start:] = 1
        with torch.no_grad():
            output = model.generate(
                input_ids=input_ids.to(model.device),
                attention_mask=attention_mask.to(model.device),
                generation_config=self._generation_config(max(request.max_new_tokens for request in requests)),
                synced_gpus=self._most is not None,
            )
        replies = output[:, width:].tolist()
        return [self._finished(reply, request) for reply, request in zip(replies, requests, strict=True)]

    def _finished(self, reply: list[int], request: GenerationRequest) -> Generation:
        reply = reply[: request.max_new_tokens]
        end = next((k for k, token in enumerate(reply) if token in self._eos_token_ids), None)
        if end is None:
            return Generation(tuple(reply), FinishReason.LENGTH)
        return Generation(tuple(reply[: end + 1]), FinishReason.STOP)

    def _generation_config(self, max_new_tokens: int):
        from transformers import GenerationConfig

        sampling = self._sampling
        settings: dict[str, Any] = {
            "max_new_tokens": max_new_tokens,
            "pad_token_id": self._pad_token_id,
            "eos_token_id": self._eos_token_ids,
            "cache_implementation": self._cache_implementation,
            "disable_compile": True,
            "do_sample": sampling.temperature > 0,
        }
        if sampling.temperature > 0:
            settings |= {
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": sampling.top_k,
                "min_p": sampling.min_p,
            }
        return GenerationConfig(**{**settings, **sampling.extra})


_COMPANY = GenerationRequest(prompt_ids=(0,), max_new_tokens=1, episode_uid="")


RESERVED: Mapping[str, str] = {
    **ANY_ENGINE,
    "max_length": "use `max_completion_length`",
    "do_sample": "replies are sampled unless the temperature is 0",
    "num_beams": "a reply is sampled, token by token",
    "num_return_sequences": "a request is one turn of one episode",
    "no_repeat_ngram_size": "log-probabilities are scored without it",
    "encoder_repetition_penalty": "log-probabilities are scored without it",
    "eos_token_id": "the end tokens are the tokenizer's and the model's",
    "pad_token_id": "replies end with the model's end token",
    "stop_strings": "a reply ends with the model's end token",
}
"""Keys of `generation_kwargs` that would break the contract of a policy, and why."""


def check_generation_kwargs(extra: Mapping[str, Any]) -> None:
    """Refuse `generation_kwargs` that this engine must not get; see [`~taspo_trl.generation.base.check_extra`]."""
    check_extra(extra, RESERVED, "transformers")


@contextlib.contextmanager
def _without_defaults(model: torch.nn.Module) -> Iterator[None]:
    """The model's own generation settings set aside inside.

    `generate` takes from them whatever its configuration leaves open: a repetition penalty or a `min_p` that a hub
    model ships with would make the policy that samples another one than the policy that is scored.
    """
    from transformers import GenerationConfig

    owners: list[Any] = [module for module in model.modules() if "generation_config" in vars(module)]
    kept = [module.generation_config for module in owners]
    for module in owners:
        module.generation_config = GenerationConfig()
    try:
        yield
    finally:
        for module, settings in zip(owners, kept, strict=True):
            module.generation_config = settings


@contextlib.contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Sampling draws from `seed` inside; the global generators go on as if nothing was drawn."""
    import torch

    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
