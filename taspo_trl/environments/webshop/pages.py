"""What the shop's pages say and what can be clicked on them; pure.

The original renders HTML and parses it back into text nodes. Here a page is its text nodes from the start; both kinds
of observation and the clickables are read off them, character for character as the original gives them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Literal

from .products import Product


ObservationMode = Literal["text", "text_rich"]

NUM_PER_PAGE = 10

BACK_TO_SEARCH = "Back to Search"
PREVIOUS = "< Prev"
NEXT = "Next >"
BUY_NOW = "Buy Now"
SEARCH = "Search"
SUB_PAGES = ("Description", "Features", "Reviews")

_SPACES = " \n\t\f\r"


class Kind(Enum):
    TEXT = auto()
    BUTTON = auto()
    OPTION = auto()
    PRODUCT = auto()


@dataclass(frozen=True, slots=True)
class Node:
    """One text node of a page."""

    text: str
    kind: Kind = Kind.TEXT
    option: str = ""
    """For an option's value: the option's name."""


@dataclass(frozen=True, slots=True)
class Page:
    """One page as its nodes, in the order of the screen."""

    nodes: tuple[Node, ...]
    has_search_bar: bool = False

    def clickables(self) -> dict[str, Node]:
        """What may be clicked -> its node: buttons and products first, then option values.

        A value that two options share, or that names a button, is listed once and belongs to its last owner.
        """
        links = [node for node in self.nodes if node.kind in (Kind.BUTTON, Kind.PRODUCT)]
        values = [node for node in self.nodes if node.kind is Kind.OPTION]
        return {node.text.lower(): node for node in links} | {node.text: node for node in values}

    def text(self) -> str:
        """The observation of mode `text`."""
        return " [SEP] ".join(node.text.strip() for node in self._visible())

    def text_rich(self, visited: Collection[str] = (), address: str = "") -> str:
        """The observation of mode `text_rich`, with buttons and what was clicked before marked.

        Args:
            visited (`Collection[str]`, *optional*):
                Ids of the products whose pages were opened since the last visit of the search page.
            address (`str`, *optional*):
                The page's address: an option value counts as clicked when it stands in it in double quotes.
        """
        lines: list[str] = []
        clicked: list[str] = []
        for node in self._visible():
            text = node.text if node.text.strip(_SPACES) else " "
            if node.kind is Kind.BUTTON:
                lines.append(_button(text))
            elif node.kind is Kind.PRODUCT:
                lines.append("\n" + _button(text, text in visited))
            elif node.kind is Kind.OPTION:
                is_clicked = f'"{text}"' in address
                lines.append("  " + _button(text, is_clicked))
                if is_clicked:
                    clicked.insert(0, f"You have clicked {text}.")
            else:
                lines.append(text)
        return "".join(line + "\n" for line in clicked + lines)

    def _visible(self) -> list[Node]:
        """The nodes without those that the original's parser drops: empty ones and blank ones with a line break."""
        return [node for node in self.nodes if node.text.strip(_SPACES) or (node.text and "\n" not in node.text)]


def _button(text: str, clicked: bool = False) -> str:
    return f"[clicked button] {text} [clicked button_]" if clicked else f"[button] {text} [button_]"


def _buttons(*names: str) -> list[Node]:
    return [Node(name, Kind.BUTTON) for name in names]


def _texts(*texts: str) -> list[Node]:
    return [Node(text) for text in texts]


def search_page(instruction: str) -> Page:
    nodes = [*_texts("WebShop", "Instruction: ", instruction), *_buttons(SEARCH)]
    return Page(tuple(nodes), has_search_bar=True)


def results_page(instruction: str, products: Sequence[Product], page: int, total: int) -> Page:
    """Page `page` (from 1) of `total` results; `products` are those on it. "Next >" is offered even on the last."""
    nodes = [
        *_texts("Instruction:", instruction),
        *_buttons(BACK_TO_SEARCH),
        *_texts(f"Page {page} (Total results: {total})"),
        *_buttons(*([PREVIOUS, NEXT] if page > 1 else [NEXT])),
    ]
    for product in products:
        nodes += [Node(product.asin, Kind.PRODUCT), *_texts(product.title, product.price_tag)]
    return Page(tuple(nodes))


def item_page(instruction: str, product: Product) -> Page:
    nodes = [*_texts("Instruction:", instruction), *_buttons(BACK_TO_SEARCH, PREVIOUS)]
    for name, values in product.options.items():
        nodes += [Node(name), *(Node(value, Kind.OPTION, name) for value in values)]
    nodes += _texts(product.title, f"Price: {product.price_tag}", "Rating: N.A.")
    return Page((*nodes, *_buttons(*SUB_PAGES, BUY_NOW)))


def sub_page(instruction: str, product: Product, name: str) -> Page:
    """The page `name` of a product. The official catalogue holds no reviews, so that page is always empty."""
    contents = {
        "Description": [product.description],
        "Features": [f" {feature}" for feature in product.features],
        "Reviews": [],
    }
    nodes = [*_texts("Instruction:", instruction), *_buttons(BACK_TO_SEARCH, PREVIOUS), *_texts(*contents[name])]
    return Page(tuple(nodes))


def done_page(asin: str, chosen: Mapping[str, str], score: float) -> Page:
    """The page after a purchase. Most of its fields were meant for crowd workers and stay empty."""
    options = json.dumps(dict(chosen), sort_keys=True)
    for character in "<>&'":  # the original's template engine writes JSON that is safe inside HTML
        options = options.replace(character, f"\\u{ord(character):04x}")
    lines = [
        *("Thank you for shopping with us!", "Your code: ", "None", " (Paste it in your MTurk interface.)"),
        *("Purchased", "asin", asin, "options", options, "attrs", "None", "category", "None", "query", "None"),
        *("product category", "None"),
        *("Target", "asin", "options", "attrs", "price upper", "instuction text", "category", "product category"),
        *("query", "Goal ", "None"),
        *("Reward", "Your score (min 0.0, max 1.0)", str(score), "Reward Details ", "None"),
    ]
    return Page(tuple(_texts(*lines)))
