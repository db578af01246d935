"""The settings of an analyzer behind LiteLLM, checked. A key is not among them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import ConfigurationError
from .providers import check_api_base


_SECRET_NAMES = ("key", "token", "secret", "password", "credential", "header")
_OWN_NAMES = ("model", "messages", "timeout", "num_retries", "max_retries", "stream", "api_base", "base_url")


@dataclass(frozen=True, slots=True)
class AnalyzerSettings:
    """As in [`~taspo_trl.analyzer.LiteLLMAnalyzer`], whose arguments they are."""

    model: str
    api_base: str | None = None
    timeout: float = 120.0
    attempts: int = 3
    max_output_tokens: int = 4096
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    budget_usd: float | None = None
    budget_tokens: int | None = None
    prices: tuple[float, float] | None = None
    cache: str | os.PathLike | None = "auto"
    run: str | None = None
    required: bool = True
    reasoning_off: Mapping[str, Any] | None = None
    temperature: float = 0.0
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in (
            "timeout",
            "attempts",
            "max_output_tokens",
            "requests_per_minute",
            "tokens_per_minute",
            "budget_usd",
            "budget_tokens",
        ):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigurationError(f"`{name}` must be positive, got {value!r}.")
        if self.prices is not None and not (len(self.prices) == 2 and all(price >= 0 for price in self.prices)):
            raise ConfigurationError(
                f"`prices` must be two numbers, USD for a million input and output tokens, got {self.prices!r}."
            )
        for name in self.options:
            # Not even the message shows the value.
            if any(part in name.lower() for part in _SECRET_NAMES):
                raise ConfigurationError(
                    f"`options` must hold no secrets, and `{name}` is named like one. Pass the key as `api_key` or in "
                    "the environment, where LiteLLM finds other credentials too."
                )
            if name in _OWN_NAMES:
                raise ConfigurationError(f"`options` must not set `{name}`: the analyzer does.")
        object.__setattr__(self, "api_base", check_api_base(self.api_base))

    @property
    def cache_path(self) -> Path | None:
        """The file of the cache; None without one."""
        if self.cache is None:
            return None
        if self.cache != "auto":
            return Path(self.cache).expanduser()
        return Path(os.environ.get("TASPO_CACHE") or Path.home() / ".cache" / "taspo_trl") / "analyzer.sqlite"
