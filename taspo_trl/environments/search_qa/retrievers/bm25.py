"""Keyword search in this process: BM25 over a corpus, in memory or mapped from an index folder."""

from __future__ import annotations

import threading
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import ConfigurationError, MissingDependencyError
from ..passages import Passage
from .base import check_topk
from .folder import PASSAGES, open_passages, read_manifest, write_folder
from .store import write_corpus


KIND = "bm25"
# The usual setting for encyclopedia passages (Anserini's), with the title counted twice: a question names titles.
K1 = 0.9
B = 0.4
NUM_TITLES = 2

_BM25_FOLDER = "bm25"


class BM25Retriever:
    """BM25 with English stop words and stemming. Hits without a single word in common with the query are left out.

    Made by [`~BM25Retriever.build`] or [`~BM25Retriever.load`].
    """

    def __init__(self, index: Any, passages: Sequence[Passage], folder: Path | None = None):
        self._index = index
        self._passages = passages
        self._folder = folder
        self._tokenize = _Tokenizer()

    def __repr__(self) -> str:
        return f"BM25Retriever({len(self._passages)} passages{f', {self._folder}' if self._folder else ''})"

    def __reduce__(self):
        if self._folder is None:
            raise ConfigurationError(
                "A BM25 index in memory cannot be sent to another process. Build it with a folder, which processes "
                "then share."
            )
        return BM25Retriever.load, (self._folder,)

    def __len__(self) -> int:
        return len(self._passages)

    @classmethod
    def build(cls, passages: Sequence[Passage], folder: str | Path | None = None) -> BM25Retriever:
        """Index passages.

        Args:
            passages (`Sequence[Passage]`):
                The corpus. Some millions are fine, for more use a served index.
            folder (`str` or `Path`, *optional*):
                Where to keep the index; it is then mapped from there. None keeps it in memory.
        """
        bm25s = import_bm25s()
        if not passages:
            raise ConfigurationError("There is no passage to index. Give a corpus with at least one.")
        index = bm25s.BM25(method="lucene", k1=K1, b=B, backend="numpy")
        index.index(_Tokenizer()(map(_indexed_text, passages)), show_progress=False)
        if folder is None:
            return cls(index, passages)

        def fill(draft: Path) -> None:
            write_corpus(passages, draft / PASSAGES)
            index.save(draft / _BM25_FOLDER)

        write_folder(Path(folder), KIND, {"k1": K1, "b": B, "num_titles": NUM_TITLES}, fill)
        return cls.load(folder)

    @classmethod
    def load(cls, folder: str | Path) -> BM25Retriever:
        """Open an index folder; scores and passages stay on disk, shared by all processes that open it."""
        bm25s = import_bm25s()
        folder = Path(folder)
        manifest = read_manifest(folder)
        if manifest["kind"] != KIND:
            raise ConfigurationError(f"{folder} is an index of kind {manifest['kind']!r}, not {KIND!r}.")
        index = bm25s.BM25.load(folder / _BM25_FOLDER, mmap=True)
        return cls(index, open_passages(folder), folder)

    def search(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        check_topk(topk)
        return [self._search_one(words, topk) for words in self._tokenize(queries)]

    def close(self) -> None:
        """Nothing to do: mapped files are freed with the object."""

    def _search_one(self, words: list[str], topk: int) -> list[Passage]:
        if not words:  # nothing but stop words
            return []
        scores = self._index.get_scores(words)  # (number of passages,)
        return [
            replace(self._passages[position], score=float(scores[position]))
            for position in best_positions(scores, topk).tolist()
        ]


def best_positions(scores: np.ndarray, topk: int) -> np.ndarray:
    """Where the `topk` highest positive scores stand, highest first, equal ones in the order of the corpus.

    The zeros, nearly all of a large corpus, are put aside first: selecting among so many equal values takes most of a
    search's time otherwise.

    Args:
        scores (`np.ndarray`):
            Scores of shape (N,).
        topk (`int`):
            How many positions at most; fewer where fewer scores are positive.
    """
    positions = np.flatnonzero(scores > 0)
    if len(positions) > topk:
        values = scores[positions]
        least = np.partition(values, len(values) - topk)[len(values) - topk]
        positions = positions[values >= least]
    # Positions ascend already, so a stable sort leaves ties in their order.
    return positions[np.argsort(-scores[positions], kind="stable")][:topk]


class _Tokenizer:
    """Text to stemmed words without accents, case and stop words."""

    def __init__(self) -> None:
        self._bm25s = import_bm25s()
        import Stemmer

        self._stemmer = Stemmer.Stemmer("english")
        self._lock = threading.Lock()  # a stemmer holds state of its own and must not be shared by threads

    def __call__(self, texts: Iterable[str]) -> list[list[str]]:
        with self._lock:
            return self._bm25s.tokenize(
                [_fold(text) for text in texts],
                stopwords="en",
                stemmer=self._stemmer,
                return_ids=False,
                show_progress=False,
            )


def _fold(text: str) -> str:
    """`text` without accents, so that "Rodriguez" finds "Rodríguez", however either was typed."""
    decomposed = unicodedata.normalize("NFKD", text)
    return "".join(character for character in decomposed if not unicodedata.combining(character))


def _indexed_text(passage: Passage) -> str:
    return "\n".join([*[passage.title] * NUM_TITLES, passage.text])


def import_bm25s() -> Any:
    """The library, or [`~taspo_trl.errors.MissingDependencyError`] that says how to install it and its stemmer."""
    try:
        import bm25s
        import Stemmer  # noqa: F401 - bm25s stems with it
    except ImportError as error:
        raise MissingDependencyError(
            f'Searching without a server needs {error.name or "bm25s"}: `pip install -e ".[search]"` in the clone.'
        ) from error
    return bm25s
