"""Who writes guidance, and everything that checks what was written.

Public names are loaded on first use: `import taspo_trl.analyzer` pulls in neither litellm nor torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from .base import Analyzer, AnalyzerReply, AnalyzerRequest
    from .extractive import ExtractiveAnalyzer
    from .llm.analyzer import LiteLLMAnalyzer

__all__ = ["Analyzer", "AnalyzerReply", "AnalyzerRequest", "ExtractiveAnalyzer", "LiteLLMAnalyzer"]

_HOMES = {
    "Analyzer": "base",
    "AnalyzerReply": "base",
    "AnalyzerRequest": "base",
    "ExtractiveAnalyzer": "extractive",
    "LiteLLMAnalyzer": "llm.analyzer",
}


def __getattr__(name: str):
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
