"""What the rollout loop and the engines say to each other: prompt ids in, sampled ids out.

Pure. The rollout loop submits a request for each episode that is ready and gets a future back. An engine that batches
generates on `flush`; one that serves continuously starts at once and makes `flush` a no-op; one that decodes in the
loop's own thread is called for each token.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from ..errors import ConfigurationError
from ..types import FinishReason


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One reply to sample."""

    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    """At least 1."""
    episode_uid: str
    messages: tuple[Mapping[str, Any], ...] = field(default=(), compare=False, repr=False)
    """The chat that the prompt was rendered from, for players that are asked in messages."""
    view: Any = field(default=None, compare=False, repr=False)
    """The [`~taspo_trl.rollout.contexts.EpisodeView`] that it was made from, for players that are no models."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One sampled reply."""

    reply_ids: tuple[int, ...]
    """The end token included when the model ended the reply itself. May be empty."""
    finish_reason: FinishReason
    logps: tuple[float | None, ...] | None = None
    """Log-probabilities of `reply_ids` under the engine; None when it reports none."""


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """How replies are sampled.

    Args:
        temperature (`float`, *optional*, defaults to `1.0`):
            0 decodes greedily.
        top_p (`float`, *optional*, defaults to `1.0`):
            Nucleus; 1 keeps the whole distribution.
        top_k (`int`, *optional*, defaults to `0`):
            0 keeps the whole distribution.
        min_p (`float`, *optional*):
            Least probability relative to the most likely token.
        extra (`Mapping[str, Any]`, *optional*):
            TRL's `generation_kwargs`, passed on to the engine.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


RESERVED: Mapping[str, str] = {
    "max_new_tokens": "use `max_completion_length`",
    "temperature": "use `temperature`, which scoring applies too",
    "top_p": "use `top_p`",
    "top_k": "use `top_k`",
    "min_p": "use `min_p`",
    "repetition_penalty": "log-probabilities are scored without it",
}
"""Keys of `generation_kwargs` that no engine takes from there, and why."""


def check_extra(extra: Mapping[str, Any], reserved: Mapping[str, str], engine: str) -> None:
    """Refuse `generation_kwargs` that would change what a request means.

    Raises:
        ConfigurationError: a key is reserved; the message says what to use instead.
    """
    for name in extra:
        if name in reserved:
            raise ConfigurationError(
                f"`generation_kwargs` holds `{name}`, which {engine} must not get from there: {reserved[name]}."
            )


class Engine(Protocol):
    """What the rollout loop needs from an engine."""

    def begin(self, sampling: SamplingSettings, seed: int) -> None:
        """Start a rollout batch: sample as `sampling` says, reproducibly from `seed`."""

    def submit(self, request: GenerationRequest) -> Future[Generation]:
        """Queue a request. A failed one raises from its future, and costs its own episode only."""

    def flush(self) -> None:
        """Generate what was submitted; returns when all its futures are done. A no-op for continuous engines."""


@runtime_checkable
class SteppedEngine(Engine, Protocol):
    """An engine that decodes a token at a time in the thread of the rollout loop."""

    @property
    def is_stepped(self) -> bool:
        """Whether to call [`step`] at all, or [`flush`] as of other engines."""

    def step(self) -> bool:
        """One token of every reply that has begun, after new requests joined; False if there was nothing to do."""

    def forget(self, episode_uid: str) -> None:
        """The episode asks no more."""


class EngineAround:
    """An engine that passes everything on to another one, and is stepped where that is; for those that change a part.

    Args:
        engine (`Engine`):
            Samples.
    """

    def __init__(self, engine: Engine):
        self._engine = engine

    def begin(self, sampling: SamplingSettings, seed: int) -> None:
        self._engine.begin(sampling, seed)

    def submit(self, request: GenerationRequest) -> Future[Generation]:
        return self._engine.submit(request)

    def flush(self) -> None:
        self._engine.flush()

    @property
    def is_stepped(self) -> bool:
        return isinstance(self._engine, SteppedEngine) and self._engine.is_stepped

    def step(self) -> bool:
        return isinstance(self._engine, SteppedEngine) and self._engine.step()

    def forget(self, episode_uid: str) -> None:
        if isinstance(self._engine, SteppedEngine):
            self._engine.forget(episode_uid)
