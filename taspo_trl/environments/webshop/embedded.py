"""The embedded catalogue: 240 self-made products, so that the shop opens without any download.

Everything is derived from the words in `embedded_words.json` by hashing, so that it is the same in every process and
under every version of Python; no text comes from a real shop.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any

from .products import Entry, Instruction, Product


_PRODUCTS_PER_KIND = 6
_NUM_SYNTHETIC = 5
"""How many products of each kind have a synthetic instruction; the others are only there to be found."""
_NUM_HUMAN = 3
"""How many of them have human-style instructions."""
_WISHES_PER_PRODUCT = 2
_RANGE_ONE_IN = 5

_PLACES = ("before", "with", "for")
"""Where a sentence puts an attribute, seen from the noun. Each product has two attributes of each place."""


@lru_cache(maxsize=1)
def _words() -> dict[str, Any]:
    return json.loads(files(__package__).joinpath("embedded_words.json").read_text(encoding="utf-8"))


def _hash(*key: object) -> int:
    return int.from_bytes(hashlib.sha256("|".join(map(str, key)).encode()).digest()[:8], "big")


def _pick(items: Sequence[str], *key: object) -> str:
    return items[_hash(*key) % len(items)]


def _choose(items: Sequence[str], count: int, *key: object) -> tuple[str, ...]:
    """`count` of the items, in their order."""
    chosen = set(sorted(items, key=lambda item: _hash(*key, item))[:count])
    return tuple(item for item in items if item in chosen)


def embedded_entries() -> Iterator[Entry]:
    """The catalogue's entries; those of one kind are spread over the whole, as in a shuffled file."""
    for position in range(_PRODUCTS_PER_KIND):
        for kind in _words()["kinds"]:
            yield _entry(kind, position)


def _entry(kind: Mapping[str, Any], position: int) -> Entry:
    key = (kind["query"], position)
    brand = _pick(_words()["categories"][kind["category"]]["brands"], *key, "brand")
    style = kind["styles"][position]
    groups = {place: _choose(kind["attributes"][place], 2, *key) for place in _PLACES}
    title_extras = ", ".join(groups[place][0].title() for place in ("before", "with"))
    product = Product(
        asin=f"T{_hash('id', *key) % 10**9:09d}",
        title=f"{brand} {style} {kind['noun']}, {title_extras}",
        description=_description(kind, brand, style, groups["for"], position),
        features=tuple(
            _feature(place, brand, attribute, *key) for place in ("before", "with") for attribute in groups[place]
        ),
        prices=_prices(kind["prices"], *key),
        options={
            name: _choose(option["values"], option["offered"], *key, name) for name, option in kind["options"].items()
        },
        attributes=tuple(attribute for group in groups.values() for attribute in group),
        category=kind["category"],
        query=kind["query"],
        product_category=" \N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK} ".join(kind["departments"]),
    )
    return Entry(
        product,
        _synthetic(product, groups, *key) if position < _NUM_SYNTHETIC else None,
        tuple(_human(product, groups, number) for number in range(_WISHES_PER_PRODUCT))
        if position < _NUM_HUMAN
        else (),
    )


def _description(kind: Mapping[str, Any], brand: str, style: str, purposes: Sequence[str], position: int) -> str:
    key = (kind["query"], position)
    occasion = _pick(_words()["categories"][kind["category"]]["occasions"], *key, "occasion")
    opening = _pick(_words()["openings"], *key).format(brand=brand, style=style, occasion=occasion)
    purpose = f"Of all our {kind['query']} it suits {' and '.join(purposes)} best."
    return f"{opening} {purpose} {_pick(_words()['closings'], *key)}"


def _feature(place: str, brand: str, attribute: str, *key: object) -> str:
    line = _pick(_words()["features"][place], attribute, *key).format(attribute=attribute, brand=brand)
    return line[0].upper() + line[1:]


def _prices(band: Sequence[int], *key: object) -> tuple[float, ...]:
    low, high = band
    price = low + _hash(*key, "price") % (high - low) + 0.99
    is_range = _hash(*key, "range") % _RANGE_ONE_IN == 0
    return (price, round(price * 1.4, 2)) if is_range else (price,)


def _synthetic(product: Product, groups: Mapping[str, Sequence[str]], *key: object) -> Instruction:
    """`Find me <before> <query> with <with> for <for>`, with two or three of the product's attributes."""
    wanted = _choose(product.attributes, 2 + _hash(*key, "wanted") % 2, *key, "wish")
    before, having, purpose = (", ".join(item for item in groups[place] if item in wanted) for place in _PLACES)
    words = ["Find me", before, product.query]
    words += [f"with {having}" if having else "", f"for {purpose}" if purpose else ""]
    return Instruction(" ".join(filter(None, words)), wanted)


def _human(product: Product, groups: Mapping[str, Sequence[str]], number: int) -> Instruction:
    """A wish as a customer might type it: one or two attributes, and perhaps some options."""
    key = (product.asin, number)
    phrases = _words()["wishes"]
    attributes = _choose(product.attributes, 1 + _hash(*key, "attributes") % 2, *key)
    names = _choose(list(product.options), _hash(*key, "options") % (len(product.options) + 1), *key)
    values = tuple(_pick(product.options[name], *key, name) for name in names)
    parts = [_pick(phrases["openings"], *key).format(query=product.query)]
    for place in _PLACES:
        wanted = [attribute for attribute in groups[place] if attribute in attributes]
        parts += [_pick(phrases[place], *key, attribute).format(attribute=attribute) for attribute in wanted]
    if values:
        parts.append(_pick(phrases["options"], *key, "values").format(values=" and ".join(values)))
    return Instruction(" ".join(parts), attributes, values)
