"""What a command line names: environments, data sets, reward functions, each by a short name or an import path."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from ..environments import ENVIRONMENTS
from ..errors import ConfigurationError


def environment_class(name: str) -> Any:
    """The environment class called `name`: a built-in one, or `package.module:Class`.

    Raises:
        ConfigurationError: there is no such environment; the message lists what there is.
    """
    if name in ENVIRONMENTS:
        return getattr(import_module("taspo_trl.environments"), ENVIRONMENTS[name])
    if ":" in name:
        return imported(name)
    raise ConfigurationError(
        f"There is no environment {name!r}. Built in: {', '.join(ENVIRONMENTS)}. Your own: `package.module:Class`."
    )


def environment_factory(name: str, arguments: Mapping[str, Any] | None = None) -> Callable[[], Any]:
    """A callable that makes an instance, importable by worker processes."""
    cls = environment_class(name)
    return functools.partial(cls, **arguments) if arguments else cls


def environment_data(name: str, split: str, arguments: Mapping[str, Any] | None = None) -> Any:
    """The tasks of a split, as the environment's `dataset` makes them."""
    cls = environment_class(name)
    if not hasattr(cls, "dataset"):
        raise ConfigurationError(
            f"{name} has no `dataset(split)`. Give the class one, or train from a script with your own dataset."
        )
    if hasattr(cls, "require_packages"):
        cls.require_packages()  # the missing package is told before the missing data
    return cls.dataset(split, **(arguments or {}))


def imported(path: str) -> Any:
    """The object that `package.module:name` (or `package.module.name`) names; the working directory is searched, too.

    Raises:
        ConfigurationError: it is no such path, or cannot be imported.
    """
    module_name, _, attribute = path.partition(":") if ":" in path else path.rpartition(".")
    if not module_name or not attribute:
        raise ConfigurationError(f"{path!r} is no import path; write `package.module:name`.")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        target = import_module(module_name)
        for part in attribute.split("."):
            target = getattr(target, part)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"{path!r} cannot be imported: {error}") from error
    return target


def json_arguments(text: str | Mapping[str, Any] | None, option: str) -> dict[str, Any]:
    """Keyword arguments: a mapping, or its text as a JSON object or a YAML mapping in braces (`{data: embedded}`)."""
    if text is None:
        return {}
    if isinstance(text, Mapping):
        return dict(text)
    value = read_mapping(text)
    if value is None:
        raise ConfigurationError(
            f"`{option}` must be a mapping such as '{{\"key\": 1}}' (JSON) or '{{key: 1}}' (YAML), got {text!r}."
        )
    return value


def read_mapping(text: str) -> dict[str, Any] | None:
    """The JSON object or YAML mapping in braces that `text` is; None where it is neither."""
    if not text.lstrip().startswith("{"):
        return None
    import yaml

    try:
        value = json.loads(text)
    except ValueError:
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            return None
    return value if isinstance(value, dict) else None
