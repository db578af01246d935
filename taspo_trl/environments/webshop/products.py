"""What the shop sells: one frozen record per product, and how it is read from an official catalogue entry.

Pure: plain values in, records out. The rules for names, options and prices are those of the original WebShop loader.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any


DEFAULT_PRICE = 100.0
"""What a product without a price costs."""

_MAX_ID_LENGTH = 10
_NO_ATTRIBUTES = ("DUMMY_ATTR",)
_NOT_A_NUMBER = re.compile(r"[^\d.]")


@dataclass(frozen=True, slots=True)
class Product:
    """One product as its pages, the search index and the reward see it."""

    asin: str
    title: str
    description: str
    features: tuple[str, ...]
    prices: tuple[float, ...]
    """One price, or the lower and upper end of a range. Never empty."""
    options: Mapping[str, tuple[str, ...]]
    """Option name -> values, both lower case, in the order of the page."""
    attributes: tuple[str, ...]
    category: str
    query: str
    """The search phrase under which the product was collected: its finest type."""
    product_category: str
    """The path of departments, joined by a single right-pointing angle quotation mark."""

    @property
    def price_tag(self) -> str:
        return f"${self.prices[0]}" if len(self.prices) == 1 else f"${self.prices[0]} to ${self.prices[1]}"


@dataclass(frozen=True, slots=True)
class Instruction:
    """A wish for one product, in words."""

    text: str
    attributes: tuple[str, ...]
    options: tuple[str, ...] | None = None
    """Human wishes: the option values that were asked for. None (synthetic): every combination of the product's
    options is a goal of its own."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A product with the wishes that were written for it."""

    product: Product
    synthetic: Instruction | None = None
    human: tuple[Instruction, ...] = ()


def is_listed(asin: str) -> bool:
    """Whether the loader keeps a product with this id; the official files hold a few broken ones."""
    return asin != "nan" and len(asin) <= _MAX_ID_LENGTH


def parse_prices(pricing: str | None) -> tuple[float, ...]:
    """The prices in a text like `"$19.99$27.99"`: one, or the two ends of a range.

    A text without a readable price costs [`DEFAULT_PRICE`], like no text at all.
    """
    try:
        prices = [float(Decimal(_NOT_A_NUMBER.sub("", part))) for part in (pricing or "").split("$")[1:]]
    except InvalidOperation:
        prices = []
    return tuple(prices[:2]) or (DEFAULT_PRICE,)


def parse_options(customization: Mapping[str, Any] | None) -> dict[str, tuple[str, ...]]:
    """Option names and values as the pages show them: lower case, a slash set off as `" | "`."""
    return {
        name.lower(): tuple(choice["value"].strip().replace("/", " | ").lower() for choice in choices)
        for name, choices in (customization or {}).items()
        if choices is not None
    }


def parse_product(raw: Mapping[str, Any], attributes: Sequence[str] | None) -> Product:
    """The product of one entry of `items_shuffle*.json`.

    Args:
        raw (`Mapping[str, Any]`):
            The entry.
        attributes (`Sequence[str]`, *optional*):
            The product's attributes from `items_ins_v2*.json`. None for a product that has no entry there.
    """
    features = raw["small_description"]
    return Product(
        asin=raw["asin"],
        title=raw["name"],
        description=raw["full_description"],
        features=(features,) if isinstance(features, str) else tuple(features or ()),
        prices=parse_prices(raw.get("pricing")),
        options=parse_options(raw["customization_options"] or None),
        attributes=_NO_ATTRIBUTES if attributes is None else tuple(attributes),
        category=raw["category"],
        query=raw["query"].lower().strip(),
        product_category=raw["product_category"],
    )


def parse_synthetic(annotation: Mapping[str, Any]) -> Instruction | None:
    """The synthetic wish in one entry of `items_ins_v2*.json`, if it holds one."""
    text, attributes = annotation.get("instruction"), annotation.get("instruction_attributes")
    return Instruction(text, tuple(attributes)) if text is not None and attributes else None


def parse_human(annotations: Sequence[Mapping[str, Any]]) -> tuple[Instruction, ...]:
    """The human wishes in one entry of `items_human_ins*.json`; those without an attribute are left out."""
    return tuple(
        Instruction(
            wish["instruction"].strip("."), tuple(wish["instruction_attributes"]), tuple(wish["instruction_options"])
        )
        for wish in annotations
        if wish["instruction_attributes"]
    )


def index_text(product: Product) -> str:
    """What the search engine indexes: title, description, first feature and all options."""
    options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in product.options.items())
    return " ".join([product.title, product.description, *product.features[:1], options]).lower()
