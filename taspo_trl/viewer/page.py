"""Data and assets to one self-contained HTML page.

Everything that a run recorded is untrusted. It enters the page only as base64 of compressed JSON, whose alphabet
cannot end a script element, and the page's scripts show it only as text. The content security policy names the page's
own scripts and styles by their hashes and forbids everything else: other scripts, loads, forms.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.resources import files
from typing import Any

from ..redaction import without_secrets


STYLES = (
    "base.css",
    "reading.css",
    "overview.css",
    "evaluations.css",
    "charts.css",
    "list.css",
    "trajectory.css",
    "glance.css",
    "siblings.css",
    "guidance.css",
)
SCRIPTS = (
    "dom.js",
    "store.js",
    "router.js",
    "words.js",
    "quotes.js",
    "charts.js",
    "reading.js",
    "evaluations.js",
    "overview.js",
    "selection.js",
    "list.js",
    "turns.js",
    "guidance.js",
    "siblings.js",
    "trajectory.js",
    "main.js",
)
"""In the order in which they build on each other."""


def page(
    title: str,
    chunks: Iterable[tuple[str, Any]],
    *,
    is_embedded: bool = False,
    reload_seconds: float | None = None,
) -> Iterator[str]:
    """The page, part by part, so that a large run need not fit into memory.

    Args:
        title (`str`):
            The document's title.
        chunks (`Iterable[tuple[str, Any]]`):
            (element id, JSON data) of what the page embeds; each is unpacked when it is needed.
        is_embedded (`bool`, *optional*, defaults to `False`):
            A page inside another one: only a trajectory, and links that leave the address alone.
        reload_seconds (`float`, *optional*):
            How often the page loads itself again; None = never.
    """
    marks = " data-embedded" if is_embedded else ""
    marks += "" if reload_seconds is None else f' data-reload="{reload_seconds:g}"'
    styles = [asset(name) for name in STYLES]
    scripts = [asset(name) for name in SCRIPTS]
    yield "<!DOCTYPE html>\n"
    yield f'<html lang="en"{marks}>\n<head>\n<meta charset="utf-8">\n'
    yield f'<meta http-equiv="Content-Security-Policy" content="{_policy(styles, scripts)}">\n'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    yield '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
    yield f"<title>{html.escape(title)}</title>\n"
    yield from (f"<style>{style}</style>\n" for style in styles)
    yield f"</head>\n<body>\n{asset('body.html')}\n"
    for name, value in chunks:
        yield f'<script type="text/plain" id="{html.escape(name)}">{packed(value)}</script>\n'
    yield from (f"<script>{script}</script>\n" for script in scripts)
    yield "</body>\n</html>\n"


def packed(value: Any) -> str:
    """JSON data as base64 of its gzip, without secrets; the same data gives the same text."""
    # ASCII, so that half of a surrogate pair in an observation stays the escape that it is.
    data = json.dumps(without_secrets(value), ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode(
        "ascii"
    )
    return base64.b64encode(gzip.compress(data, compresslevel=6, mtime=0)).decode("ascii")


@cache
def asset(name: str) -> str:
    """A file of the `static` folder."""
    return (files(__package__) / "static" / name).read_text(encoding="utf-8").replace("\r\n", "\n")


def _policy(styles: list[str], scripts: list[str]) -> str:
    return "; ".join(
        [
            "default-src 'none'",
            f"script-src {' '.join(map(_source, scripts))}",
            f"style-src {' '.join(map(_source, styles))}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "require-trusted-types-for 'script'",
        ]
    )


def _source(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
    return f"'sha256-{digest}'"
