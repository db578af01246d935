"""One request and one answer of `/v1/completions`, as `vllm serve` speaks it: token ids and numbers, never text.

Pure. The same endpoint and fields as TRL's `VLLMClient`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ServiceError
from ..types import FinishReason
from . import base
from .base import RESERVED as ANY_ENGINE
from .base import Generation, GenerationRequest, SamplingSettings


RESERVED: Mapping[str, str] = {
    **ANY_ENGINE,
    "seed": "every member of a group would sample the same reply; seeds derive from the trainer's `seed`",
    "n": "a request is one turn of one episode",
    "best_of": "a request is one turn of one episode",
    "max_tokens": "use `max_completion_length`",
    "logprobs": "the sampled token's is always asked for",
    "prompt_logprobs": "prompts are scored by the trainer's own model",
    "echo": "a reply holds no prompt",
    "stream": "a reply is taken whole",
    "model": "the server's model is used",
    "prompt": "prompts come from the environment",
    "stop_token_ids": "the end tokens are the tokenizer's and the model's",
    "ignore_eos": "a reply ends with the model's end token",
    "return_token_ids": "ids are always asked for",
    "return_tokens_as_token_ids": "ids are always asked for",
    "output_kind": "a reply is taken whole",
    "detokenize": "replies are decoded from their ids by the trainer",
}
"""Keys of `generation_kwargs` that would break the contract of a policy, and why."""

# vLLM writes this for a log-probability of minus infinity, which JSON cannot hold.
_CLAMPED_LOGP = -9999.0


def check_extra(extra: Mapping[str, Any]) -> None:
    """Refuse `generation_kwargs` that vLLM must not get; see [`~taspo_trl.generation.base.check_extra`]."""
    base.check_extra(extra, RESERVED, "vLLM")


def sampling_parameters(
    request: GenerationRequest,
    sampling: SamplingSettings,
    *,
    stop_token_ids: Sequence[int],
    seed: int,
) -> dict[str, Any]:
    """What the server and the engine in process are told alike.

    Every parameter is given, since vLLM fills the missing ones from the model's own generation settings.
    """
    return {
        "n": 1,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p or 0.0,
        "repetition_penalty": 1.0,
        "max_tokens": request.max_new_tokens,
        "stop_token_ids": list(stop_token_ids),
        "logprobs": 0,  # the sampled token's only
        "seed": seed,
        **sampling.extra,
    }


def completion_body(
    request: GenerationRequest,
    sampling: SamplingSettings,
    *,
    model: str,
    stop_token_ids: Sequence[int],
    seed: int,
    structured_outputs_regex: str | None = None,
) -> dict[str, Any]:
    """The JSON body of one request."""
    body: dict[str, Any] = {
        "model": model,
        "prompt": list(request.prompt_ids),
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        **sampling_parameters(request, sampling, stop_token_ids=stop_token_ids, seed=seed),
    }
    if structured_outputs_regex is not None:
        body["structured_outputs"] = {"regex": structured_outputs_regex}
    return body


def parse_completion(answer: Any, request: GenerationRequest) -> Generation:
    """The reply in an answer.

    Raises:
        ServiceError: the answer does not hold exactly one whole reply to this request.
    """
    choices = answer.get("choices") if isinstance(answer, Mapping) else None
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], Mapping):
        raise ServiceError(f"the answer does not hold one choice: {answer!r:.300}")
    choice = choices[0]
    ids = _token_ids(choice.get("token_ids"), request)
    echoed = choice.get("prompt_token_ids")
    if echoed is not None and tuple(echoed) != request.prompt_ids:
        raise ServiceError("the server generated from another prompt than it was sent; it may truncate prompts")
    return Generation(ids, finish_reason(choice.get("finish_reason")), _logps(choice.get("logprobs"), ids))


def finish_reason(reason: Any) -> FinishReason:
    """vLLM's reason as ours.

    Raises:
        ServiceError: the reply was cut off by the server (`"abort"`, `"error"`, None).
    """
    if reason == "stop":
        return FinishReason.STOP
    if reason == "length":
        return FinishReason.LENGTH
    raise ServiceError(f"the engine ended the reply with finish reason {reason!r:.80}")


def usable_logp(value: Any) -> float | None:
    """A log-probability; None for what the engine could not say (null, NaN, infinite, clamped)."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if math.isfinite(value) and value > _CLAMPED_LOGP else None


def _token_ids(ids: Any, request: GenerationRequest) -> tuple[int, ...]:
    if not isinstance(ids, list):
        raise ServiceError(
            "the answer holds no `token_ids`: the server does not know `return_token_ids`. vLLM 0.22 or later does."
        )
    if not all(isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in ids):
        raise ServiceError(f"`token_ids` holds something else than token ids: {ids!r:.300}")
    if len(ids) > request.max_new_tokens:
        raise ServiceError(f"the reply has {len(ids)} tokens, asked for were {request.max_new_tokens} at most")
    return tuple(ids)


def _logps(logprobs: Any, ids: tuple[int, ...]) -> tuple[float | None, ...] | None:
    """Log-probabilities aligned to `ids`; None where the answer has none at all."""
    if logprobs is None:
        return None
    values = logprobs.get("token_logprobs") if isinstance(logprobs, Mapping) else None
    if not isinstance(values, list) or len(values) != len(ids):
        shown = len(values) if isinstance(values, list) else type(values).__name__
        raise ServiceError(f"the reply has {len(ids)} token ids but log-probabilities of length {shown}")
    tokens = logprobs.get("tokens")
    if tokens is not None and tokens != [f"token_id:{one}" for one in ids]:
        raise ServiceError("the log-probabilities of the answer belong to other tokens than its `token_ids`")
    return tuple(usable_logp(value) for value in values)
