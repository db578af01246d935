"""TASPO for TRL: outcome-anchored turn credit for language agents in multi-turn text environments.

Public names are loaded on first use, so that `import taspo_trl` pulls in neither torch nor trl.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .redaction import redact_log
from .version import __version__


if TYPE_CHECKING:
    from .config import TASPOConfig
    from .reporting.progress import StepBar
    from .trainer import TASPOTrainer

__all__ = ["StepBar", "TASPOConfig", "TASPOTrainer", "__version__"]

redact_log(__name__)

_HOMES = {"StepBar": "reporting.progress", "TASPOConfig": "config", "TASPOTrainer": "trainer"}


def __getattr__(name: str):
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
