"""A catalogue in a folder: an SQLite file for the entries, memory-mapped arrays for the index.

A million products need a few hundred megabytes of page cache that all processes share, and little memory of their
own.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ConfigurationError
from .analysis import analyze
from .bm25 import Postings, Searcher, build_postings
from .catalogue import Field, Inventory, entry_text
from .files import find_files, read_annotations, read_entries
from .products import Entry, Instruction, Product, index_text


_FORMAT = 2  # 2: terms of other symbols
_META = "catalogue.json"
_ENTRIES = "entries.sqlite"
_CACHED_ENTRIES = 4096

_SCHEMA = """
CREATE TABLE entries (number INTEGER PRIMARY KEY, asin TEXT NOT NULL, category TEXT, query TEXT, entry TEXT NOT NULL);
CREATE TABLE attributes (attribute TEXT NOT NULL, number INTEGER NOT NULL);
CREATE TABLE terms (term TEXT PRIMARY KEY, number INTEGER NOT NULL) WITHOUT ROWID;
"""
_INDEXES = """
CREATE UNIQUE INDEX by_asin ON entries (asin);
CREATE INDEX by_category ON entries (category);
CREATE INDEX by_query ON entries (query);
CREATE INDEX by_attribute ON attributes (attribute);
"""
_LISTINGS: dict[Field, str] = {
    "attribute": "SELECT DISTINCT number FROM attributes WHERE attribute = ? ORDER BY number",
    "category": "SELECT number FROM entries WHERE category = ? ORDER BY number",
    "query": "SELECT number FROM entries WHERE query = ? ORDER BY number",
}


def is_built(folder: Path) -> bool:
    """Whether `folder` holds a finished catalogue."""
    return (folder / _META).is_file()


def build_catalogue(source: str | Path, folder: str | Path, num_products: int | None = None) -> str:
    """Build the on-disk catalogue of official files, streaming them.

    Args:
        source (`str` or `Path`):
            A products file or the folder that holds it, see [`~taspo_trl.environments.webshop.files.find_files`].
        folder (`str` or `Path`):
            Where the catalogue goes; made if it is not there.
        num_products (`int`, *optional*):
            Use only the first entries of the products file.

    Returns:
        `str`: the catalogue's identity.
    """
    files = find_files(source)
    folder = _fresh(Path(folder))
    staging = sqlite3.connect("")  # a temporary file: the annotations of a million products do not belong in memory
    try:
        synthetic = _stage(staging, "synthetic", read_annotations(files.synthetic))
        human = _stage(staging, "human", read_annotations(files.human))
        return write_catalogue(read_entries(files.products, synthetic, human, num_products), folder)
    finally:
        staging.close()


def _fresh(folder: Path) -> Path:
    if is_built(folder):
        raise ConfigurationError(f"{str(folder)!r} already holds a catalogue. Remove it or name another folder.")
    return folder


def _stage(connection: sqlite3.Connection, table: str, annotations: Iterable[tuple[str, Any]]):
    """Put annotations into a table; returns their look-up by product id."""
    connection.execute(f"CREATE TABLE {table} (asin TEXT PRIMARY KEY, annotation TEXT) WITHOUT ROWID")
    rows = ((asin, json.dumps(annotation)) for asin, annotation in annotations)
    connection.executemany(f"INSERT OR REPLACE INTO {table} VALUES (?, ?)", rows)

    def look_up(asin: str) -> Any:
        row = connection.execute(f"SELECT annotation FROM {table} WHERE asin = ?", (asin,)).fetchone()
        return None if row is None else json.loads(row[0])

    return look_up


def write_catalogue(entries: Iterable[Entry], folder: str | Path) -> str:
    """Write entries, in their order, as an on-disk catalogue; returns its identity."""
    folder = _fresh(Path(folder))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _ENTRIES).unlink(missing_ok=True)  # what an interrupted build left
    inventory = Inventory()
    connection = sqlite3.connect(folder / _ENTRIES)
    try:
        # Nothing is lost by a crash that another build would not make again.
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        connection.executescript(_SCHEMA)
        documents = _store(connection, entries, inventory)
        postings, vocabulary = build_postings(documents, inventory.asins)
        connection.executemany("INSERT INTO terms VALUES (?, ?)", sorted(vocabulary.items()))
        connection.executescript(_INDEXES)
        connection.commit()
    finally:
        connection.close()
    postings.save(folder)
    for name, values in inventory.arrays.items():
        np.save(folder / f"{name}.npy", values)
    meta = {"format": _FORMAT, "identity": inventory.identity, "num_products": len(inventory.asins)}
    # Written last: its existence says that the build came to its end.
    (folder / _META).write_text(json.dumps(meta, indent=2) + "\n")
    return inventory.identity


def _store(connection: sqlite3.Connection, entries: Iterable[Entry], inventory: Inventory) -> Iterator[list[str]]:
    """Write the entries; yields each one's search terms."""
    for number, entry in enumerate(entries):
        product = entry.product
        connection.execute(
            "INSERT INTO entries VALUES (?, ?, ?, ?, ?)",
            (number, product.asin, product.category, product.query, entry_text(entry)),
        )
        rows = ((attribute, number) for attribute in product.attributes)
        connection.executemany("INSERT INTO attributes VALUES (?, ?)", rows)
        inventory.add(entry)
        yield analyze(index_text(product))


class DiskCatalogue:
    """A catalogue opened from a folder that [`build_catalogue`] or [`write_catalogue`] made."""

    def __init__(self, folder: str | Path):
        self._folder = Path(folder)
        meta = json.loads((self._folder / _META).read_text())
        if meta["format"] != _FORMAT:
            raise ConfigurationError(
                f"The catalogue in {str(folder)!r} has format {meta['format']}, this version reads {_FORMAT}. "
                "Build it again."
            )
        self.identity: str = meta["identity"]
        self._num_products: int = meta["num_products"]
        self.price_ranges, self.synthetic, self.human = (
            np.load(self._folder / f"{name}.npy", mmap_mode="r") for name in ("price_ranges", "synthetic", "human")
        )
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._owner = 0
        self._searcher = Searcher(Postings.open(self._folder), self._term_number)
        self.entry = lru_cache(maxsize=_CACHED_ENTRIES)(self._entry)

    def __len__(self) -> int:
        return self._num_products

    def _rows(self, statement: str, value: Any) -> list[tuple]:
        with self._lock:
            # An SQLite connection must not be used across a fork: every process opens its own.
            if self._connection is None or self._owner != os.getpid():
                address = f"{(self._folder / _ENTRIES).resolve().as_uri()}?mode=ro&immutable=1"
                self._connection = sqlite3.connect(address, uri=True, check_same_thread=False)
                self._owner = os.getpid()
            return self._connection.execute(statement, (value,)).fetchall()

    def _entry(self, number: int) -> Entry:
        [(text,)] = self._rows("SELECT entry FROM entries WHERE number = ?", number)
        return _parse_entry(json.loads(text))

    def _term_number(self, term: str) -> int | None:
        rows = self._rows("SELECT number FROM terms WHERE term = ?", term)
        return rows[0][0] if rows else None

    def number_of(self, asin: str) -> int | None:
        rows = self._rows("SELECT number FROM entries WHERE asin = ?", asin)
        return rows[0][0] if rows else None

    def search(self, query: str, limit: int) -> Sequence[int]:
        return self._searcher.search(analyze(query), limit)

    def listed_by(self, field: Field, value: str) -> Sequence[int]:
        # Half the catalogue may be listed: 4 bytes a product.
        return array("i", (number for (number,) in self._rows(_LISTINGS[field], value)))


def _parse_entry(fields: dict[str, Any]) -> Entry:
    product = fields["product"]
    options = {name: tuple(values) for name, values in product.pop("options").items()}
    return Entry(
        Product(options=options, **{name: _frozen(value) for name, value in product.items()}),
        fields["synthetic"] and _parse_instruction(fields["synthetic"]),
        tuple(map(_parse_instruction, fields["human"])),
    )


def _parse_instruction(fields: dict[str, Any]) -> Instruction:
    return Instruction(**{name: _frozen(value) for name, value in fields.items()})


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
