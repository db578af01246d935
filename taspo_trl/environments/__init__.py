"""The built-in environments by name, each loaded on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from .base import DEFAULT_PROMPT, PromptTemplate, ResetResult, StepResult, TextEnvironment
from .examples import WorkedExample, WorkedTurn


if TYPE_CHECKING:
    from .alfworld import ALFWorldEnvironment
    from .household import HouseholdEnvironment
    from .search_qa import SearchQAEnvironment
    from .webshop import WebShopEnvironment

ENVIRONMENTS = {
    "household": "HouseholdEnvironment",
    "alfworld": "ALFWorldEnvironment",
    "webshop": "WebShopEnvironment",
    "search_qa": "SearchQAEnvironment",
}
"""Name on the command line -> class name; the module has the name's name."""

__all__ = [
    "DEFAULT_PROMPT",
    "ENVIRONMENTS",
    "ALFWorldEnvironment",
    "HouseholdEnvironment",
    "PromptTemplate",
    "ResetResult",
    "SearchQAEnvironment",
    "StepResult",
    "TextEnvironment",
    "WebShopEnvironment",
    "WorkedExample",
    "WorkedTurn",
]


def __getattr__(name: str):
    for module, class_name in ENVIRONMENTS.items():
        if name == class_name:
            return getattr(import_module(f".{module}", __name__), class_name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
