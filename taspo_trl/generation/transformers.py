"""Generation with `transformers`: one batch for each flush, the model of the trainer itself."""

from __future__ import annotations

import contextlib
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


class TransformersEngine:
    """Samples with `model.generate`, one batch for each call of [`flush`].

    Args:
        model ([`~transformers.PreTrainedModel`]):
            The policy; sampled in eval mode (no dropout), its flags restored afterwards.
        pad_token_id (`int`), eos_token_ids (`list[int]`):
            As TRL resolves them.
        batch_tokens (`int`, *optional*, defaults to `262144`):
            Bound on rows x (longest prompt + new tokens) of one batch, which bounds its key-value cache.
        cache_implementation (`str`, *optional*):
            TRL's field.
        unwrap (`Callable`, *optional*):
            Gives a context manager that yields the model to generate with; TRL's `unwrap_model_for_generation`
            under DeepSpeed and FSDP.
        most (`Callable`, *optional*):
            For a model whose parameters lie in shards on several processes: the largest of the numbers that all
            processes call it with. Each forward then needs all of them, so they generate in step, and one without
            requests keeps the others company; see [`finish`]. If `None`, processes do not wait for each other.
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

    def begin(self, sampling: SamplingSettings, seed: int) -> None:
        check_generation_kwargs(sampling.extra)
        self._sampling, self._seed, self._num_batches = sampling, seed, 0
        self._queue.clear()

    def submit(self, request: GenerationRequest) -> Future[Generation]:
        future: Future[Generation] = Future()
        self._queue.append((request, future))
        return future

    def flush(self) -> None:
        if self._queue:
            self._generate_queue()

    def finish(self) -> None:
        """Keep the other processes company; returns when none of them has requests left. Called by each, once idle."""
        if self._most is not None:
            while self._generate_queue():
                pass

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
