"""Fixtures of the analyzer tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from taspo_trl.analyzer import LiteLLMAnalyzer

from .endpoint import Endpoint


@pytest.fixture(autouse=True)
def no_keys_and_no_user_cache(monkeypatch, tmp_path):
    """Tests neither see the keys of whoever runs them nor touch their cache."""
    for name in ("OPENAI", "DEEPSEEK", "ZAI", "DASHSCOPE", "HOSTED_VLLM", "OPENROUTER", "ANTHROPIC", "MISTRAL"):
        monkeypatch.delenv(f"{name}_API_KEY", raising=False)
        monkeypatch.delenv(f"{name}_API_BASE", raising=False)
    monkeypatch.setenv("TASPO_CACHE", str(tmp_path / "user-cache"))


@pytest.fixture
def serve() -> Iterator[Callable[..., Endpoint]]:
    """Makes endpoints and closes them."""
    made: list[Endpoint] = []

    def make(script: Any = None) -> Endpoint:
        made.append(Endpoint(script))
        return made[-1]

    yield make
    for endpoint in made:
        endpoint.close()
    assert not [error for endpoint in made for error in endpoint.errors]


@pytest.fixture
def make_analyzer() -> Iterator[Callable[..., LiteLLMAnalyzer]]:
    """Makes analyzers, without a cache unless asked for one, and closes them."""
    made: list[LiteLLMAnalyzer] = []

    def make(endpoint: Endpoint | str, model: str = "openai/fake", **values: Any) -> LiteLLMAnalyzer:
        url = endpoint if isinstance(endpoint, str) else endpoint.url
        made.append(LiteLLMAnalyzer(model, api_base=url, **{"cache": None, "timeout": 10.0, **values}))
        return made[-1]

    yield make
    for analyzer in made:
        analyzer.close()


@pytest.fixture
def make_trainer(tmp_path) -> Iterator[Callable[..., Any]]:
    """Makes trainers on the shop and closes them."""
    from .shop import shop_trainer  # loads torch and trl, which most analyzer tests do not need

    made = []

    def make(output_dir: Path = tmp_path / "out", **values: Any) -> Any:
        made.append(shop_trainer(output_dir, **values))
        return made[-1]

    yield make
    for trainer in made:
        trainer.close()
