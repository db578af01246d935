"""The seam to whoever writes guidance: a request in, a text out.

Everything an analyzer says is checked afterwards (`validation.py`); an analyzer only has to answer. Failures are
answers too: an [`AnalyzerReply`] with an `error`, never an exception that kills the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol


Stage = Literal["extraction", "alignment", "judgement", "play"]
"""`"play"` is no question about records: the payload's `messages` are the chat, and any text is an answer."""


@dataclass(frozen=True, slots=True)
class FailedAnswer:
    """An answer that could not be read, shown to the analyzer once."""

    text: str
    fault: str
    """What is wrong with it, in words."""


@dataclass(frozen=True, slots=True)
class AnalyzerRequest:
    """One question to the analyzer."""

    stage: Stage
    system: str
    """The instructions: a constant of the package or of the user, never made from environment text."""
    payload: Mapping[str, Any]
    """Plain JSON data: the only place where recorded text stands."""
    failed: FailedAnswer | None = None
    """Set when the same question is asked a second time, because the first answer could not be read."""


@dataclass(frozen=True, slots=True)
class AnalyzerReply:
    """One answer, or why there is none."""

    text: str = ""
    error: str = ""
    """Empty = answered; else for example rate_limit, timeout, budget, server_error."""
    finish_reason: str = "stop"
    """`length` when the answer was cut at the output limit."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost_usd: float | None = None
    """None when the price is unknown or the analyzer is free of charge."""
    seconds: float = 0.0
    is_cached: bool = False
    details: Mapping[str, float] = field(default_factory=dict)
    """Further counters for the metrics, for example retries."""


class Analyzer(Protocol):
    """What the guidance stage needs from an analyzer."""

    name: str
    """Shown in cards and records; never holds a key."""

    def complete(self, request: AnalyzerRequest) -> AnalyzerReply:
        """Answer one request. Called from several threads at once."""

    def close(self) -> None:
        """Free connections. May be called twice."""
