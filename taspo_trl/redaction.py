"""A key that nothing shows, and texts with keys taken out.

Pure, apart from reading the environment's variables.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator


_MASK = "***"
_MIN_LENGTH = 8  # shorter values are no keys, and replacing them would garble texts
_SECRET_NAME = re.compile(r"(?:^|_)(?:API)?(?:KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS?)(?:_|$)", re.IGNORECASE)


class Secret:
    """A string that `repr`, `vars`, pickling and tracebacks with local variables do not show.

    A pickled secret comes back empty; copies are the same object.
    """

    __slots__ = ("reveal",)

    reveal: Callable[[], str]
    """Gives the string."""

    def __init__(self, value: str = ""):
        self.reveal = lambda: value  # in a closure: no attribute of any object is the string

    def __bool__(self) -> bool:
        return bool(self.reveal())

    def __repr__(self) -> str:
        return f"Secret({_MASK if self else ''})"

    def __reduce__(self):
        return Secret, ()

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: dict) -> Secret:
        return self


def redacted(text: str, *secrets: Secret) -> str:
    """`text` without `secrets` and without the values of environment variables that are named like secrets.

    Servers quote the key that they refuse.
    """
    return redactor(*secrets)(text)


def redactor(*secrets: Secret) -> Callable[[str], str]:
    """[`redacted`] for many texts: secrets and environment are looked at once."""
    found = {*(secret.reveal() for secret in secrets), *_from_environment()}
    values = sorted((value for value in found if len(value) >= _MIN_LENGTH), key=len, reverse=True)

    def redact(text: str) -> str:
        for value in values:
            text = text.replace(value, _MASK)
        return text

    return redact


def _from_environment() -> Iterator[str]:
    return (value for name, value in os.environ.items() if _SECRET_NAME.search(name))
