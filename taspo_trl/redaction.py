"""The one place that takes secrets out of texts. Whatever the package writes, shows or logs goes through it.

What counts as a secret: every live [`Secret`], the values of environment variables that are named like secrets, user
names and passwords in addresses, and query fields, `Bearer` headers and tokens that look like keys. Pure, apart from
reading the environment's variables. Takes time in proportion to the text.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit


_MASK = "***"
_MIN_LENGTH = 8  # shorter values are no keys, and replacing them would garble texts
_SECRET_NAME = re.compile(r"(?:^|_)(?:API)?(?:KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS?)(?:_|$)", re.IGNORECASE)
_CREDENTIAL_NAME = re.compile(
    r"(?:^|[_\-. ])(?:(?:api|access|secret|private)?key|token|secret|password|passwd|pwd|credentials?|auth"
    r"|authorization|cookie|bearer)$",
    re.IGNORECASE,
)
_TOKEN_OF_A_VOCABULARY = re.compile(
    r"(?:^|_)(?:pad|eos|bos|unk|sep|cls|mask|image|audio|video|boi|eoi|start|end|stop|special|decoder_start)_token$"
)
_VALUE = r"""[^\s&#;,"'<>\\)\]}]+"""
_PATTERNS: tuple[tuple[str, re.Pattern[str], str], ...] = (
    # Searched for only where the first text stands, which costs next to nothing where it does not.
    ("://", re.compile(r"""(?<=://)[^\s/?#"'<>\\@]+@(?:[^\s/?#"'<>\\@]*@)*"""), f"{_MASK}@"),
    (
        "=",
        re.compile(
            r"([?&;](?:[a-z]{1,20}[_-]){0,3}(?:key|apikey|token|secret|password|passwd|pwd|signature|sig|auth)=)"
            + _VALUE,
            re.IGNORECASE,
        ),
        rf"\1{_MASK}",
    ),
    ("earer", re.compile(r"(\b[Bb]earer[ \t]{1,4})[A-Za-z0-9._~+/=-]{8,}"), rf"\1{_MASK}"),
    ("sk-", re.compile(r"(?<![\w-])sk-(?=[\w-]{0,40}\d)[\w-]{16,}"), _MASK),
    ("hf_", re.compile(r"(?<!\w)hf_[A-Za-z0-9]{30,}"), _MASK),
    ("gh", re.compile(r"(?<!\w)(?:gh[pousr]_|github_pat_)\w{30,}"), _MASK),
    ("AKIA", re.compile(r"(?<!\w)AKIA[A-Z0-9]{16}(?!\w)"), _MASK),
)

_secrets: weakref.WeakSet[Secret] = weakref.WeakSet()


class Secret:
    """A string that `repr`, `vars`, pickling and tracebacks with local variables do not show.

    As long as it lives, no text that the package writes holds the string. A pickled secret comes back empty; copies
    are the same object.
    """

    __slots__ = ("__weakref__", "reveal")

    reveal: Callable[[], str]
    """Gives the string."""

    def __init__(self, value: str = ""):
        self.reveal = lambda: value  # in a closure: no attribute of any object is the string
        _secrets.add(self)

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
    """`text` without anything that counts as a secret. Servers quote the key that they refuse."""
    return redactor(*secrets)(text)


def redactor(*secrets: Secret) -> Callable[[str], str]:
    """[`redacted`] for many texts: secrets and environment are looked at once."""
    found = {*(secret.reveal() for secret in (*secrets, *_secrets)), *_from_environment()}
    values = {form for value in found if len(value) >= _MIN_LENGTH for form in _forms(value)}
    longest_first = sorted(values, key=len, reverse=True)

    def redact(text: str) -> str:
        for value in longest_first:
            if value in text:
                text = text.replace(value, _MASK)
        for beginning, pattern, mask in _PATTERNS:
            if beginning in text:
                text = pattern.sub(mask, text)
        return text

    return redact


def without_secrets(data: Any, redact: Callable[[str], str] | None = None) -> Any:
    """JSON data with every text in it redacted. Numbers and the keys of objects stay, so that it can be read again."""
    redact = redact or redactor()
    if isinstance(data, str):
        return redact(data)
    if isinstance(data, Mapping):
        return {key: without_secrets(inner, redact) for key, inner in data.items()}
    if isinstance(data, list | tuple):
        return [without_secrets(inner, redact) for inner in data]
    return data


def is_credential_name(name: object) -> bool:
    """Whether an option of this name proves who one is: `token`, `api_key`, `Authorization`; not `pad_token`."""
    return (
        isinstance(name, str)
        and _CREDENTIAL_NAME.search(name) is not None
        and _TOKEN_OF_A_VOCABULARY.search(name) is None
    )


def credentials_of(options: Any) -> Iterator[str]:
    """Every text in nested options that stands under the name of a credential."""
    if isinstance(options, Mapping):
        for name, inner in options.items():
            if is_credential_name(name) and isinstance(inner, str) and inner:
                yield inner
            else:
                yield from credentials_of(inner)
    elif isinstance(options, list | tuple):
        for inner in options:
            yield from credentials_of(inner)


def without_credentials(options: Any) -> Any:
    """Nested options as they may be saved: a text under the name of a credential is masked, all else is the same.

    `True`, `None` and numbers say nothing and stay. For options, not for records: there a `key` may be an object.
    """
    if isinstance(options, Mapping):
        return {
            name: _MASK
            if is_credential_name(name) and isinstance(inner, str) and inner
            else without_credentials(inner)
            for name, inner in options.items()
        }
    if isinstance(options, list | tuple):
        return type(options)(map(without_credentials, options)) if type(options) in (list, tuple) else options
    return options


def shown_address(url: str) -> str:
    """`url` without what may be secret in it: user name, password, parameters of the path, query."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.partition(";")[0], "", ""))


def holds_secret(url: str) -> bool:
    """Whether something in an address may be secret; such an address must not be saved with a configuration."""
    parts = urlsplit(url)
    return "@" in parts.netloc or bool(parts.query or parts.fragment) or ";" in parts.path or redacted(url) != url


def redact_log(name: str) -> None:
    """Take secrets out of every message and traceback that the loggers below `name` make, from now on."""
    make = logging.getLogRecordFactory()

    def make_redacted(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        if record.name == name or record.name.startswith(f"{name}."):
            redact = redactor()
            record.msg, record.args = redact(record.getMessage()), None
            if record.exc_info and record.exc_info[0] is not None:
                record.exc_text = redact("".join(traceback.format_exception(*record.exc_info)).rstrip("\n"))
        return record

    logging.setLogRecordFactory(make_redacted)


def redact_tracebacks() -> None:
    """Take secrets out of every traceback that ends the process or a thread, from now on. For commands only."""
    show, show_of_thread = sys.excepthook, threading.excepthook

    def redacting(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None or issubclass(kind, KeyboardInterrupt):
            show(kind, error, trace)  # type: ignore[arg-type]
        else:
            _write_redacted(error)

    def redacting_of_thread(given: threading.ExceptHookArgs) -> None:
        if given.exc_value is None or given.exc_type is SystemExit:
            show_of_thread(given)
        else:
            _write_redacted(given.exc_value)

    sys.excepthook, threading.excepthook = redacting, redacting_of_thread


def _write_redacted(error: BaseException) -> None:
    if sys.stderr is not None:
        sys.stderr.write(redacted("".join(traceback.format_exception(error))))


def _forms(value: str) -> Iterator[str]:
    """A secret as it is, and as JSON and addresses write it."""
    yield value
    yield json.dumps(value)[1:-1]
    yield quote(value, safe="")


def _from_environment() -> Iterator[str]:
    return (value for name, value in os.environ.items() if _SECRET_NAME.search(name))
