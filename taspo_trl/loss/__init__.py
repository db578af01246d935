"""Rows, micro-batches and the objective (E8), which is loaded on first use: the terms' settings need no torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from .objective import LossTerms, taspo_loss, token_sums

__all__ = ["LossTerms", "taspo_loss", "token_sums"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(".objective", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
