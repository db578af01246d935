"""The two ways in which the doctor touches the network: a connection to a named address, a GET that ends in time.

Everything else is kept off it: [`offline`] makes Hugging Face's libraries use what is on the disk.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from .findings import TookTooLong, one_line, within


_MAX_BYTES = 2**20
_SWITCHES = {
    "huggingface_hub.constants": ("HF_HUB_OFFLINE",),
    "datasets.config": ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"),
}
"""Module -> flags that it read from the environment when it was imported."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a GET brought. Status 0: no answer at all, with the reason as text."""

    status: int
    text: str


def get(url: str, timeout: float) -> Answer:
    """The answer at `url`, of at most 1 MiB. Never raises for what a network or a server does."""
    import httpx

    def look() -> Answer:
        with httpx.stream("GET", url, timeout=timeout) as response:
            body = b""
            for chunk in response.iter_bytes():
                body += chunk
                if len(body) > _MAX_BYTES:
                    break
            return Answer(response.status_code, body.decode("utf-8", errors="replace"))

    try:
        # The client's limit is for each read; a server that trickles could hold it for ever.
        return within(timeout + 0.5, look)
    except TookTooLong:
        return Answer(0, f"no answer within {timeout:g} s")
    except httpx.TimeoutException:
        return Answer(0, f"no answer within {timeout:g} s")
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        return Answer(0, one_line(error))


def is_listening(url: str, timeout: float) -> bool:
    """Whether a TCP connection to the host and port of `url` can be opened in time. Nothing is sent."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        with socket.create_connection((parts.hostname or "", port), timeout):
            return True
    except OSError:
        return False


def uses_proxy(url: str) -> bool:
    """Whether requests to `url` go through a proxy, so that the host need not be reachable from here."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return bool(urllib.request.getproxies().get(parts.scheme)) and not urllib.request.proxy_bypass(host)


@contextlib.contextmanager
def offline() -> Iterator[None]:
    """Inside, Hugging Face's libraries read their cache and ask nobody, whether they are imported already or not."""
    names = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")
    before = {name: os.environ.get(name) for name in names}
    flags: list[tuple[Any, str, Any]] = []
    os.environ.update(dict.fromkeys(names, "1"))
    for module_name, switches in _SWITCHES.items():
        module = sys.modules.get(module_name)
        flags += [(module, switch, getattr(module, switch)) for switch in switches if hasattr(module, switch)]
    for module, switch, _ in flags:
        setattr(module, switch, True)
    try:
        yield
    finally:
        for module, switch, value in flags:
            setattr(module, switch, value)
        for name, old in before.items():
            if old is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = old
