"""How an outcome is dealt to turns and tokens: the seam, and one file for each rule.

`METHODS`, the table of all methods, stands above the loss, in `taspo_trl.methods`; it is found here too.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .taspo import TurnWeights, action_support, credit_weights
from .token_level import TokenWeights, token_weights


METHODS: Any

__all__ = ["METHODS", "TokenWeights", "TurnWeights", "action_support", "credit_weights", "token_weights"]


def __getattr__(name: str) -> Any:
    if name == "METHODS":
        return import_module("taspo_trl.methods").METHODS
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
