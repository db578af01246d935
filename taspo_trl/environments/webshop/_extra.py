"""Imports the packages of the `webshop` extra, on first use."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from ...errors import MissingDependencyError


def require(module: str) -> ModuleType:
    """Module `module`, or a [`~taspo_trl.errors.MissingDependencyError`] that names the extra."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        raise MissingDependencyError(
            f"WebShop needs the package `{package}`, which is not installed. Install it with "
            '`pip install -e ".[webshop]"` in the clone.'
        ) from error
