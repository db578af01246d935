"""Texts without secrets: what recipes, addresses and servers' answers may hold is taken out before it is shown."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from ...redaction import Secret, redacted
from ..sources import read_mapping


_NAME = re.compile(r"(^|[_-])(api_?key|key|token|secret|password|credentials?|authorization)($|[_-])", re.IGNORECASE)
_QUERY = re.compile(r"(://[^\s?'\"]+)\?[^\s'\"),;\]}>]+")


def masked(text: str, secrets: Sequence[Secret] = ()) -> str:
    """`text` without `secrets`, without values of environment variables that are named like secrets, and without user
    names, passwords and queries in addresses."""
    return _QUERY.sub(r"\1?***", redacted(text, *secrets))


def secrets_of(arguments: Sequence[str], recipe: Mapping[str, Any]) -> list[Secret]:
    """The values of options that are named like secrets, on a command line and at any depth of a recipe, as they are
    and as JSON writes them."""
    values = [*_in_arguments(arguments), *_in_value("", recipe)]
    return [Secret(text) for value in values for text in dict.fromkeys((value, json.dumps(value)[1:-1]))]


def _in_arguments(arguments: Sequence[str]) -> Iterator[str]:
    for one, after in pairwise([*arguments, ""]):
        if one.startswith("--"):
            name, has_value, value = one[2:].partition("=")
            yield from _in_value(name, value if has_value else after)


def _in_value(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _in_value(str(key), inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _in_value(name, inner)
    elif isinstance(value, str) and value.lstrip().startswith("{"):
        content = read_mapping(value)
        if content is None:  # the parser tells what is wrong with it; nothing of it is shown
            yield value
        else:
            yield from _in_value(name, content)
    elif isinstance(value, str) and _NAME.search(name):
        yield value
