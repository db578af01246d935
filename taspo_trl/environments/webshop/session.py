"""One visit to the shop: the page that is open, what was chosen, and how an action changes it.

No prompts and no training: the state machine of the original, for one goal, used by one thread.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from . import pages
from .nouns import Tagger
from .pages import Kind, Node, ObservationMode, Page
from .products import Product
from .reward import OptionMatching, Score, score_purchase
from .shop import Shop


NUM_RESULTS = 50

_ACTION = re.compile(r"(.+)\[(.+)\]")


def parse_action(action: str) -> tuple[str, str] | None:
    """Name and lower-case argument of `name[argument]`; None when the action has another form."""
    match = _ACTION.match(action)
    return (match[1], match[2].lower()) if match else None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an action led to."""

    valid: bool
    """Whether the shop accepted it; otherwise nothing has changed."""
    score: Score | None = None
    """After the purchase: its score."""


class Session:
    """A visit.

    Args:
        shop (`Shop`):
            Where to buy.
        goal_number (`int`):
            What to buy.
        tagger (`Tagger`):
            For the score.
        option_matching (`str`, *optional*, defaults to `"original"`):
            For the score, see [`~taspo_trl.environments.webshop.reward.score_purchase`].
        seed (`int`, *optional*, defaults to `0`):
            For the random products of the search `<r>`.
    """

    def __init__(
        self,
        shop: Shop,
        goal_number: int,
        tagger: Tagger,
        option_matching: OptionMatching = "original",
        seed: int = 0,
    ):
        self.goal = shop.goals[goal_number]
        self.score: Score | None = None
        self._shop = shop
        self.tagger = tagger
        self._option_matching = option_matching
        self._draws = random.Random(seed)
        self._open_search()

    def _open_search(self) -> None:
        self._keywords: list[str] = []
        self._results: Sequence[int] = ()
        self._page_number = 1
        self._product: Product | None = None
        self._visited: set[str] = set()
        self._chosen: dict[str, str] = {}
        self._sub_page = ""
        self._show(pages.search_page(self.goal.instruction))

    def _show(self, page: Page) -> None:
        self.page = page
        self.clickables: dict[str, Node] = page.clickables()
        """What may be clicked now, see [`~taspo_trl.environments.webshop.pages.Page.clickables`]."""

    def observation(self, mode: ObservationMode = "text") -> str:
        """The open page in words."""
        return self.page.text() if mode == "text" else self.page.text_rich(self._visited, self._address())

    def _address(self) -> str:
        """The part of the original's page address that its text can depend on."""
        options = json.dumps(self._chosen) if self._product is not None else ""
        return f"{'+'.join(self._keywords)}/{self._page_number}/{options}"

    def act(self, action: str) -> Outcome:
        """Carry out `search[keywords]` or `click[value]`; anything else changes nothing.

        A search is accepted on every page but the last. A click must name something on the page.
        """
        parsed = parse_action(action)
        if parsed is None or self.score is not None:
            return Outcome(valid=False)
        name, argument = parsed
        if name == "search":
            self._search(argument)
        elif name == "click" and argument in self.clickables and argument != pages.SEARCH.lower():
            self._click(argument)
        else:
            return Outcome(valid=False)
        return Outcome(valid=True, score=self.score)

    def _search(self, keywords: str) -> None:
        self._keywords = keywords.split(" ")
        self._results = self._find(self._keywords)
        self._open_results(1)

    def _find(self, keywords: Sequence[str]) -> Sequence[int]:
        """The original's short cuts `<r>`, `<a>`, `<c>`, `<q>`, else the search engine."""
        catalogue = self._shop.catalogue
        prefix, rest = keywords[0], " ".join(keywords[1:]).strip()
        if prefix == "<r>":
            return self._draws.sample(range(len(catalogue)), min(NUM_RESULTS, len(catalogue)))
        if prefix == "<a>":
            return catalogue.listed_by("attribute", rest)
        if prefix == "<c>":
            return catalogue.listed_by("category", keywords[1].strip() if len(keywords) > 1 else "")
        if prefix == "<q>":
            return catalogue.listed_by("query", rest)
        return catalogue.search(" ".join(keywords), NUM_RESULTS)

    def _click(self, value: str) -> None:
        sub_page = next((name for name in pages.SUB_PAGES if name.lower() == value), "")
        node = self.clickables[value]
        if value == pages.BUY_NOW.lower():
            self._buy()
        elif value == pages.BACK_TO_SEARCH.lower():
            self._open_search()
        elif value == pages.NEXT.lower() and self._product is None:
            self._open_results(self._page_number + 1)
        elif value == pages.PREVIOUS.lower() and self._product is None:
            self._open_results(self._page_number - 1)
        elif value == pages.PREVIOUS.lower() and self._sub_page:
            self._open_item()
        elif value == pages.PREVIOUS.lower():
            self._open_results(self._page_number)
        elif sub_page:
            self._open_sub_page(sub_page)
        elif node.kind is Kind.OPTION:
            self._chosen[node.option] = value
            self._open_item()
        else:
            self._open_product(node.text)

    def _open_results(self, page_number: int) -> None:
        self._page_number, self._product, self._chosen, self._sub_page = page_number, None, {}, ""
        start = (page_number - 1) * pages.NUM_PER_PAGE
        numbers = self._results[start : start + pages.NUM_PER_PAGE]
        products = [self._shop.catalogue.entry(int(number)).product for number in numbers]
        self._show(pages.results_page(self.goal.instruction, products, page_number, len(self._results)))

    def _open_product(self, asin: str) -> None:
        self._visited.add(asin)
        self._product = self._shop.product(asin)
        self._open_item()

    def _open_item(self) -> None:
        assert self._product is not None
        self._sub_page = ""
        self._show(pages.item_page(self.goal.instruction, self._product))

    def _open_sub_page(self, name: str) -> None:
        assert self._product is not None
        self._sub_page = name
        self._show(pages.sub_page(self.goal.instruction, self._product, name))

    def _buy(self) -> None:
        assert self._product is not None
        self.score = score_purchase(
            self._product,
            self._chosen,
            self._shop.price(self._product.asin),
            self.goal,
            tagger=self.tagger,
            option_matching=self._option_matching,
        )
        self._show(pages.done_page(self._product.asin, self._chosen, self.score.value))
