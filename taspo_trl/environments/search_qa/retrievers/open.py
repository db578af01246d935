"""From what a user writes to a retriever: an address, a folder, a corpus file, or nothing for the embedded corpus.

Opened once in a process and shared by all its episodes.
"""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

from ....errors import ConfigurationError
from ....redaction import redacted
from ..jsonl import is_jsonl
from ..world import build_passages, build_world
from . import bm25, dense
from .base import Retriever
from .batching import BatchingRetriever
from .bm25 import BM25Retriever, import_bm25s
from .dense import DenseRetriever
from .folder import is_index, read_manifest
from .http import HTTPRetriever, import_aiohttp
from .store import read_corpus


EMBEDDED = "embedded"
SINGLE_PREFIX = "single+"
MAX_BATCHES_UNDER_WAY = 8

_opened: dict[str, Retriever] = {}
_lock = threading.RLock()


def open_retriever(spec: Retriever | str | Path = EMBEDDED) -> Retriever:
    """The retriever that `spec` describes; the same object for the same description.

    Args:
        spec (`Retriever`, `str` or `Path`, *optional*, defaults to `"embedded"`):
            - `"embedded"`: BM25 over the embedded corpus.
            - `"http://host:port/path"`: a served index that takes batches; `"single+http://..."`: one that takes a
              single query.
            - a folder made by [`BM25Retriever.build`] or [`DenseRetriever.build`].
            - a corpus in JSON lines: its BM25 index is built at first use and kept in the cache folder.
            - a retriever, which is used as it is.
    """
    check_spec(spec)
    if not isinstance(spec, str | Path):
        return spec
    key = str(spec) if _is_address(str(spec)) or spec == EMBEDDED else str(Path(spec).expanduser().resolve())
    with _lock:  # one thread builds, the others wait for its result
        if key not in _opened:
            _opened[key] = _open(key)
        return _opened[key]


def check_spec(spec: Retriever | str | Path) -> None:
    """Raise [`~taspo_trl.errors.ConfigurationError`] for what cannot be a retriever, without opening anything; a
    missing package is an error as well, here and not in the middle of an episode."""
    if not isinstance(spec, str | Path):
        if not isinstance(spec, Retriever):
            raise ConfigurationError(
                f"A {type(spec).__name__} is no retriever: it needs the methods `search(queries, topk)` and `close()`."
            )
        return
    if _is_address(str(spec)):
        import_aiohttp()
        return
    path = Path(spec).expanduser()
    if path.is_dir() and is_index(path):
        return  # what the index needs is known when its manifest is read
    if spec == EMBEDDED or (path.is_file() and is_jsonl(path)):
        import_bm25s()
    else:
        raise ConfigurationError(
            f"`retriever` is {redacted(str(spec))!r}. Give {EMBEDDED!r}, an address that begins with http:// or "
            f"{SINGLE_PREFIX}http://, an index folder, or a corpus in JSON lines (.jsonl, .jsonl.gz, .jsonl.xz)."
        )


def cache_folder() -> Path:
    """Where indexes of corpus files are kept: `$TASPO_CACHE`, else the user's cache folder."""
    if chosen := os.environ.get("TASPO_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "taspo_trl"


def _is_address(spec: str) -> bool:
    return spec.removeprefix(SINGLE_PREFIX).startswith(("http://", "https://"))


def _open(key: str) -> Retriever:
    if _is_address(key):
        return _connect(key)
    return BatchingRetriever(_open_local(key))


def _connect(address: str) -> Retriever:
    url = address.removeprefix(SINGLE_PREFIX)
    if url != address:
        # One query a request: nothing to merge, and no query can spoil another's.
        return HTTPRetriever(url, wire_format="single")
    client = HTTPRetriever(url)
    return BatchingRetriever(
        client, max_batch=client.max_queries, max_concurrency=MAX_BATCHES_UNDER_WAY, patience=client.deadline
    )


def _open_local(key: str) -> Retriever:
    if key == EMBEDDED:
        return BM25Retriever.build(build_passages(build_world()))
    path = Path(key)
    if path.is_dir():
        kind = read_manifest(path)["kind"]
        return DenseRetriever.load(path) if kind == dense.KIND else BM25Retriever.load(path)
    folder = cache_folder() / "search_qa" / _fingerprint(path)
    if is_index(folder):
        return BM25Retriever.load(folder)
    return BM25Retriever.build(list(read_corpus(path)), folder)


def _fingerprint(corpus: Path) -> str:
    """Name of a corpus's index: another one as soon as the file or the way of indexing changes."""
    status = corpus.stat()
    parts = (str(corpus), status.st_size, status.st_mtime_ns, bm25.K1, bm25.B, bm25.NUM_TITLES)
    return f"{corpus.name.split('.')[0]}-{hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}"


def _forget_all() -> None:
    """In a forked child: locks may be held by threads that are not there any more."""
    global _lock
    _lock = threading.RLock()
    _opened.clear()


os.register_at_fork(after_in_child=_forget_all)
