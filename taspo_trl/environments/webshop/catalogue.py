"""A catalogue: numbered entries, their search index and an identity; here the one that lives in memory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Literal, Protocol

import numpy as np

from .analysis import analyze
from .bm25 import Searcher, build_postings
from .products import Entry, index_text


Field = Literal["attribute", "category", "query"]
"""What products can be listed by, besides a search."""


class Catalogue(Protocol):
    """Entries numbered 0 to N - 1 in the order of their file. Shared by all episodes of a process; thread-safe."""

    identity: str
    """`webshop-<number of products>-<hash of all entries>`: equal exactly where the tasks are equal."""
    price_ranges: np.ndarray  # (N, 2) float64: a price and NaN, or the two ends of a range
    synthetic: np.ndarray  # (S, 2) int64: the product's number, how many combinations its options have
    human: np.ndarray  # (H, 2) int64: the product's number, which of its human instructions

    def __len__(self) -> int: ...

    def entry(self, number: int) -> Entry: ...

    def number_of(self, asin: str) -> int | None: ...

    def search(self, query: str, limit: int) -> Sequence[int]:
        """The numbers of the best products for a query, best first."""
        ...

    def listed_by(self, field: Field, value: str) -> Sequence[int]:
        """The numbers of all products with this attribute, category or query, in order."""
        ...


class Inventory:
    """Gathers, entry by entry, what a catalogue must know without looking at its entries again."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.asins: list[str] = []
        self._price_ranges: list[tuple[float, float]] = []
        self._synthetic: list[tuple[int, int]] = []
        self._human: list[tuple[int, int]] = []

    def add(self, entry: Entry) -> None:
        number = len(self.asins)
        prices = entry.product.prices
        self._hash.update(entry_text(entry).encode())
        self.asins.append(entry.product.asin)
        self._price_ranges.append((prices[0], prices[1] if len(prices) > 1 else np.nan))
        if entry.synthetic is not None:
            combinations = int(np.prod([len(values) for values in entry.product.options.values()], dtype=np.int64))
            self._synthetic.append((number, combinations))
        self._human.extend((number, position) for position in range(len(entry.human)))

    @property
    def identity(self) -> str:
        return f"webshop-{len(self.asins)}-{self._hash.hexdigest()[:16]}"

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        return {
            "price_ranges": np.array(self._price_ranges, np.float64).reshape(-1, 2),
            "synthetic": np.array(self._synthetic, np.int64).reshape(-1, 2),
            "human": np.array(self._human, np.int64).reshape(-1, 2),
        }


def entry_text(entry: Entry) -> str:
    """An entry as one line of canonical JSON."""
    return json.dumps(asdict(entry), ensure_ascii=False, separators=(",", ":"))


class MemoryCatalogue:
    """A catalogue whose entries and index are held in memory: right up to some ten thousand products."""

    def __init__(self, entries: Iterable[Entry]):
        self._entries = list(entries)
        inventory = Inventory()
        for entry in self._entries:
            inventory.add(entry)
        self.identity = inventory.identity
        self.price_ranges, self.synthetic, self.human = inventory.arrays.values()
        self._numbers = {asin: number for number, asin in enumerate(inventory.asins)}
        postings, vocabulary = build_postings(
            (analyze(index_text(entry.product)) for entry in self._entries), inventory.asins
        )
        self._searcher = Searcher(postings, vocabulary.get)

    def __len__(self) -> int:
        return len(self._entries)

    def entry(self, number: int) -> Entry:
        return self._entries[number]

    def number_of(self, asin: str) -> int | None:
        return self._numbers.get(asin)

    def search(self, query: str, limit: int) -> Sequence[int]:
        return self._searcher.search(analyze(query), limit)

    def listed_by(self, field: Field, value: str) -> Sequence[int]:
        products = (entry.product for entry in self._entries)
        if field == "attribute":
            return [number for number, product in enumerate(products) if value in product.attributes]
        return [number for number, product in enumerate(products) if getattr(product, field) == value]
