"""Catalogue and goals together, opened once per process and shared by every episode in it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import ConfigurationError
from .catalogue import Catalogue, MemoryCatalogue
from .disk import DiskCatalogue, is_built
from .embedded import embedded_entries
from .files import SourceFiles, find_files, read_annotations, read_entries
from .goals import GOAL_SEED, PRICE_SEED, GoalBook, GoalKind
from .products import Product


DATA_VARIABLE = "TASPO_WEBSHOP_DATA"
"""The environment variable that names the catalogue where no argument does."""
EMBEDDED = "embedded"
"""The name of the self-made catalogue that comes with the package."""

# Above these sizes (about 40,000 products) a catalogue is opened from an on-disk index only: it would take minutes to
# read and gigabytes to hold, in every process.
_MAX_FILE_BYTES = {".json": 200_000_000, ".xz": 35_000_000}


@dataclass(frozen=True, slots=True)
class Shop:
    """A catalogue with numbered goals and drawn prices."""

    catalogue: Catalogue
    goals: GoalBook

    def product(self, asin: str) -> Product:
        return self.catalogue.entry(self._number(asin)).product

    def price(self, asin: str) -> float:
        return float(self.goals.prices[self._number(asin)])

    def _number(self, asin: str) -> int:
        number = self.catalogue.number_of(asin)
        if number is None:
            raise KeyError(f"The catalogue {self.catalogue.identity} has no product {asin!r}.")
        return number


_opened: dict[Hashable, Any] = {}
_opening = threading.RLock()


def _once(key: Hashable, make: Callable[[], Any]) -> Any:
    """What `make` made the first time; threads that come meanwhile wait for it."""
    with _opening:
        if key not in _opened:
            _opened[key] = make()
        return _opened[key]


def catalogue_source(catalogue: str | Path | None) -> str:
    """The argument, else the environment variable, else the embedded catalogue; paths made absolute."""
    chosen = str(catalogue or os.environ.get(DATA_VARIABLE) or EMBEDDED)
    return chosen if chosen == EMBEDDED else str(Path(chosen).expanduser().resolve())


def open_catalogue(catalogue: str | Path | None = None) -> Catalogue:
    """The process's copy of a catalogue.

    Args:
        catalogue (`str` or `Path`, *optional*):
            A products file, the folder that holds it, a folder built by `python -m taspo_trl.environments.webshop`,
            or `"embedded"`. Defaults to the environment variable `TASPO_WEBSHOP_DATA`, else `"embedded"`.
    """
    source = catalogue_source(catalogue)
    return _once(("catalogue", source), lambda: _load(source))


def open_shop(
    catalogue: str | Path | None = None,
    goals: GoalKind = "synthetic",
    price_seed: int = PRICE_SEED,
    goal_seed: int = GOAL_SEED,
) -> Shop:
    """The process's copy of a shop. See [`open_catalogue`] and [`~taspo_trl.environments.webshop.goals.GoalBook`]."""

    def make() -> Shop:
        opened = open_catalogue(catalogue)
        return Shop(opened, GoalBook(opened, goals, price_seed, goal_seed))

    return _once(("shop", catalogue_source(catalogue), goals, price_seed, goal_seed), make)


def _load(source: str) -> Catalogue:
    if source == EMBEDDED:
        return MemoryCatalogue(embedded_entries())
    if is_built(Path(source)):
        return DiskCatalogue(source)
    files = find_files(source)
    _check_size(files)
    synthetic, human = dict(read_annotations(files.synthetic)), dict(read_annotations(files.human))
    return MemoryCatalogue(read_entries(files.products, synthetic.get, human.get))


def _check_size(files: SourceFiles) -> None:
    size = files.products.stat().st_size
    if size > _MAX_FILE_BYTES[files.products.suffix]:
        raise ConfigurationError(
            f"{str(files.products)!r} ({size / 1e6:.0f} MB) is too big to be held in memory. Build its index once "
            f"with `python -m taspo_trl.environments.webshop {files.products} FOLDER` and pass FOLDER instead."
        )
