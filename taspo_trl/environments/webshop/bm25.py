"""A BM25 index over term lists: built once, searched by many threads, in memory or memory-mapped from a folder.

Scores are those of Lucene's `BM25Similarity` as Anserini sets it up (k1 = 0.9, b = 0.4), in single precision and with
document lengths rounded as Lucene stores them, so that ties fall where they fall there. bm25s knows the formula but
not the rounded lengths nor the order of ties, which together change one list of results in five.

Legend: N documents, V distinct terms, P postings (pairs of a term and a document that holds it).
"""

from __future__ import annotations

import threading
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np


K1 = np.float32(0.9)
B = np.float32(0.4)

_ARRAYS = ("starts", "documents", "impacts", "ranks")
_CHUNK = 1 << 22
_SEARCH_CHUNK = 1 << 16
_LEAST_SCORE = np.finfo(np.float32).tiny
"""Less than any document scores that holds a term of the query."""


@dataclass(frozen=True, slots=True)
class Postings:
    """The searchable arrays. Term t's postings are `documents[starts[t]:starts[t + 1]]`."""

    starts: np.ndarray  # (V + 1,) int64
    documents: np.ndarray  # (P,) int32, ascending within a term
    impacts: np.ndarray  # (P,) float32: what one occurrence of the term in the query adds to the document's score
    ranks: np.ndarray  # (N,) int32: the document's place when document ids are sorted; breaks ties

    def save(self, folder: Path) -> None:
        for name in _ARRAYS:
            np.save(folder / f"{name}.npy", getattr(self, name))

    @classmethod
    def open(cls, folder: Path) -> Postings:
        """Map the arrays of a folder into memory: pages are read on demand and shared by all processes."""
        return cls(*(np.load(folder / f"{name}.npy", mmap_mode="r") for name in _ARRAYS))


def round_lengths(lengths: np.ndarray) -> np.ndarray:
    """Document lengths as Lucene's one-byte norms give them back: exact below 40, then four significant bits of
    what exceeds 24, rounded down."""
    excess = np.maximum(lengths.astype(np.int64) - 24, 0)
    num_bits = np.frexp(excess.astype(np.float64))[1]
    shift = np.maximum(num_bits - 4, 0)
    return np.where(lengths < 24, lengths, 24 + ((excess >> shift) << shift))


def build_postings(documents: Iterable[Sequence[str]], ids: Sequence[str]) -> tuple[Postings, dict[str, int]]:
    """Index documents that are given as their terms.

    Args:
        documents (`Iterable[Sequence[str]]`):
            The terms of each document; consumed once.
        ids (`Sequence[str]`):
            The documents' ids, read after `documents` is exhausted. Equal scores are ordered by id.

    Returns:
        `tuple[Postings, dict[str, int]]`: the arrays, and each term's number.
    """
    from scipy.sparse import csr_matrix

    vocabulary: dict[str, int] = {}
    terms, frequencies, lengths, row_ends = array("i"), array("f"), array("q"), array("q", [0])
    for document in documents:
        counts = Counter(document)
        terms.extend(vocabulary.setdefault(term, len(vocabulary)) for term in counts)
        frequencies.extend(counts.values())
        lengths.append(len(document))
        row_ends.append(len(terms))
    by_document = csr_matrix(
        (np.frombuffer(frequencies, np.float32), np.frombuffer(terms, np.int32), np.frombuffer(row_ends, np.int64)),
        shape=(len(lengths), len(vocabulary)),
        copy=False,
    )
    by_term = by_document.tocsc()
    starts = by_term.indptr.astype(np.int64)
    ranks = np.empty(len(lengths), np.int32)
    ranks[sorted(range(len(ids)), key=ids.__getitem__)] = np.arange(len(ids), dtype=np.int32)
    impacts = _impacts(starts, by_term.indices, by_term.data, np.frombuffer(lengths, np.int64))
    return Postings(starts, by_term.indices.astype(np.int32, copy=False), impacts, ranks), vocabulary


def _impacts(starts: np.ndarray, documents: np.ndarray, frequencies: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Each posting's contribution, in the order of operations of Lucene 9 (single precision throughout)."""
    one = np.float32(1)
    num_documents = int((lengths > 0).sum())  # Lucene counts only documents that have the field
    mean_length = np.float32(lengths.sum() / num_documents) if num_documents else one
    inverse_norms = one / (K1 * ((one - B) + B * round_lengths(lengths).astype(np.float32) / mean_length))  # (N,)
    in_documents = np.diff(starts)
    idf = np.log1p((num_documents - in_documents + 0.5) / (in_documents + 0.5)).astype(np.float32)  # (V,)
    impacts = np.empty(len(documents), np.float32)
    # In chunks of terms: the temporary arrays of 10^8 postings would not be small.
    edges = np.searchsorted(starts, np.arange(0, len(documents) + _CHUNK, _CHUNK))
    for first, last in pairwise(edges):
        chunk = slice(starts[first], starts[min(last, len(idf))])
        weights = np.repeat(idf[first:last], in_documents[first:last])
        scaled = frequencies[chunk] * inverse_norms[documents[chunk]]
        impacts[chunk] = weights - weights / (one + scaled)
    return impacts


class Searcher:
    """Ranks documents for a query.

    Args:
        postings (`Postings`):
            The index.
        term_number (`Callable[[str], int | None]`):
            A term's number, None for a term that no document holds.
    """

    def __init__(self, postings: Postings, term_number: Callable[[str], int | None]):
        self._postings = postings
        self._term_number = term_number
        # One set of buffers for all threads: at a million documents, arrays for each of many threads are not flat
        # memory, even when they are freed, because every thread's allocator keeps its own.
        num_documents = len(postings.ranks)
        self._sums = np.zeros(num_documents, np.float64)
        self._scores = np.zeros(num_documents, np.float32)
        self._partitioned = np.zeros(num_documents, np.float32)
        self._is_kept = np.zeros(num_documents, np.bool_)
        self._lock = threading.Lock()

    def search(self, terms: Sequence[str], limit: int) -> list[int]:
        """The numbers of the at most `limit` best documents, best first.

        Only documents that hold a term of the query are found. A term that the query repeats counts as often.
        """
        weighted = [(self._term_number(term), count) for term, count in Counter(terms).items()]
        with self._lock:
            for number, count in weighted:
                if number is not None:
                    self._add(number, np.float32(count))
            found = self._best(limit)
            scores = self._scores[found]
        order = np.lexsort((self._postings.ranks[found], -scores))[:limit]
        return found[order].tolist()

    def _add(self, term: int, count: np.float32) -> None:
        documents, impacts = self._postings.documents, self._postings.impacts
        first, last = self._postings.starts[term : term + 2].tolist()
        for start in range(first, last, _SEARCH_CHUNK):
            span = slice(start, min(start + _SEARCH_CHUNK, last))
            self._sums[documents[span]] += impacts[span] * count

    def _best(self, limit: int) -> np.ndarray:
        """The documents that score at least as much as the `limit`-th best; leaves their scores in `_scores`."""
        np.copyto(self._scores, self._sums)  # Lucene rounds the sum to single precision before it compares
        self._sums.fill(0.0)
        least = _LEAST_SCORE
        if len(self._scores) > limit:
            place = len(self._scores) - limit
            np.copyto(self._partitioned, self._scores)
            self._partitioned.partition(place)
            least = max(least, self._partitioned[place])
        np.greater_equal(self._scores, least, out=self._is_kept)
        return np.flatnonzero(self._is_kept)
