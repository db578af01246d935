"""Finds and streams the official WebShop files: products and instructions, as `.json` or `.json.xz`."""

from __future__ import annotations

import lzma
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

from ...errors import ConfigurationError
from .json_stream import stream_items, stream_pairs
from .products import Entry, is_listed, parse_human, parse_product, parse_synthetic


_PRODUCTS = "items_shuffle"
_SYNTHETIC = "items_ins_v2"
_HUMAN = "items_human_ins"
_SUFFIXES = (".json", ".json.xz")

Lookup = Callable[[str], Any]
"""A product id -> its annotation, or None."""


@dataclass(frozen=True, slots=True)
class SourceFiles:
    """The official files of one catalogue."""

    products: Path
    synthetic: Path
    human: Path | None
    """None where the human instructions are not there; the catalogue then has no human goals."""


def find_files(path: str | Path) -> SourceFiles:
    """The official files that belong to `path`: a products file, or a folder that holds exactly one.

    `items_shuffle_1000.json` goes with `items_ins_v2_1000.json` and `items_human_ins_1000.json`, the latter also
    without its number, since the original ships one file of human instructions for both catalogues.
    """
    path = Path(path)
    if path.is_dir():
        found = sorted(file for suffix in _SUFFIXES for file in path.glob(f"{_PRODUCTS}*{suffix}"))
        if len(found) != 1:
            names = ", ".join(file.name for file in found) or "none"
            raise ConfigurationError(
                f"The folder {str(path)!r} must hold exactly one products file `{_PRODUCTS}*.json` or `.json.xz`, "
                f"found {names}. Pass the path of the products file itself."
            )
        path = found[0]
    if not path.is_file():
        raise ConfigurationError(
            f"There is no WebShop catalogue at {str(path)!r}: pass a products file (`{_PRODUCTS}_1000.json`), the "
            "folder that holds it, or a folder built by `python -m taspo_trl.environments.webshop`."
        )
    tag = _bare_name(path).removeprefix(_PRODUCTS)
    synthetic = _sibling(path, f"{_SYNTHETIC}{tag}")
    if synthetic is None:
        raise ConfigurationError(
            f"{path.name!r} needs its attributes and instructions beside it: `{_SYNTHETIC}{tag}.json` or `.json.xz`."
        )
    return SourceFiles(path, synthetic, _sibling(path, f"{_HUMAN}{tag}") or _sibling(path, _HUMAN))


def _bare_name(path: Path) -> str:
    return path.name.removesuffix(".xz").removesuffix(".json")


def _sibling(path: Path, name: str) -> Path | None:
    return next((file for suffix in _SUFFIXES if (file := path.with_name(name + suffix)).is_file()), None)


def _open(path: Path) -> IO[str]:
    return lzma.open(path, "rt", encoding="utf-8") if path.suffix == ".xz" else path.open(encoding="utf-8")


def read_annotations(path: Path | None) -> Iterator[tuple[str, Any]]:
    """Product ids and their entries in a file of instructions, one at a time. No file, no entries."""
    if path is not None:
        with _open(path) as stream:
            yield from stream_pairs(stream, path.name)


def read_entries(products: Path, synthetic: Lookup, human: Lookup, num_products: int | None = None) -> Iterator[Entry]:
    """The catalogue's entries in the order of the products file, one at a time.

    Args:
        products (`Path`):
            The products file.
        synthetic (`Callable[[str], Any]`):
            Product id -> its entry in the file of synthetic instructions, None for none.
        human (`Callable[[str], Any]`):
            The same for the human instructions.
        num_products (`int`, *optional*):
            How many entries of the file to read, as the original's setting of that name.
    """
    seen: set[str] = set()
    with _open(products) as stream:
        for raw in islice(stream_items(stream, products.name), num_products):
            asin = raw["asin"]
            if is_listed(asin) and asin not in seen:
                seen.add(asin)
                yield _entry(raw, synthetic(asin) or {}, human(asin) or ())


def _entry(raw: Mapping[str, Any], annotation: Mapping[str, Any], wishes: Any) -> Entry:
    return Entry(parse_product(raw, annotation.get("attributes")), parse_synthetic(annotation), parse_human(wishes))
