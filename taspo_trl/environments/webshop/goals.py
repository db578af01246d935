"""Goals: which product is wanted, in what order the goals are numbered, and what they may cost.

A goal is named by its number in the shuffled order. Every draw comes from generators seeded here, so that goal k is
the same task in every process. The order of the draws is the original's: the price of every product that has a price
range, then the price limit of every instruction, then the shuffle with a seed of its own.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ...errors import ConfigurationError
from .catalogue import Catalogue
from .products import Entry


GoalKind = Literal["synthetic", "human"]

PRICE_SEED = 0
GOAL_SEED = 233

NO_LIMIT = 1_000_000.0
_LIMITS = [10.0 * step for step in range(1, 100)]
_NUM_LIMITS = 4


@dataclass(frozen=True, slots=True)
class Goal:
    """One task: the instruction that the agent reads, and what the reward compares a purchase with."""

    asin: str
    instruction: str
    attributes: tuple[str, ...]
    options: Mapping[str, str] | tuple[str, ...]
    """Synthetic goals: option name -> value. Human goals: the values alone."""
    price_limit: float
    title: str
    category: str
    query: str
    product_category: str

    @property
    def option_values(self) -> tuple[str, ...]:
        return tuple(self.options.values()) if isinstance(self.options, Mapping) else self.options

    @property
    def digest(self) -> str:
        """16 hex digits that change whenever anything about the task changes."""
        options = dict(self.options) if isinstance(self.options, Mapping) else self.options
        facts = [self.asin, self.instruction, self.attributes, options, self.price_limit]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


class GoalBook:
    """The numbered goals of a catalogue, and the prices of its products.

    Goals are made on demand: the synthetic goals of a million products would not fit in memory as records.

    Args:
        catalogue (`Catalogue`):
            What the goals are about.
        kind (`str`, *optional*, defaults to `"synthetic"`):
            `"synthetic"`: every combination of a product's options, with a formulaic text. `"human"`: the wishes that
            people wrote.
        price_seed (`int`, *optional*, defaults to `0`):
            Seed of the prices and price limits.
        goal_seed (`int`, *optional*, defaults to `233`):
            Seed of the order. 233 is the original's; forks use 42.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        kind: GoalKind = "synthetic",
        price_seed: int = PRICE_SEED,
        goal_seed: int = GOAL_SEED,
    ):
        if kind not in ("synthetic", "human"):
            raise ConfigurationError(f"`goals` must be 'synthetic' or 'human', got {kind!r}.")
        self.kind, self.price_seed, self.goal_seed = kind, price_seed, goal_seed
        self._catalogue = catalogue
        sources = catalogue.synthetic if kind == "synthetic" else catalogue.human
        self._sources = sources  # (S, 2): one row for each instruction
        draws = random.Random(price_seed)
        self.prices = _draw_prices(catalogue.price_ranges, draws)  # (N,)
        self._price_limits = np.array([_draw_limit(self.prices[number], draws) for number in sources[:, 0]])  # (S,)
        num_goals = sources[:, 1] if kind == "synthetic" else np.ones(len(sources), np.int64)
        self._ends = np.cumsum(num_goals)  # (S,): where each instruction's goals end in the unshuffled order
        self._order = _shuffled(int(num_goals.sum()), goal_seed)
        if not len(self._order):
            raise ConfigurationError(
                f"The catalogue {catalogue.identity} holds no {kind} goals; a catalogue of files has human ones only "
                "with `items_human_ins*.json` beside its products."
            )

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, goal: int) -> Goal:
        """Goal number `goal`, from 0."""
        if not 0 <= goal < len(self):
            raise ConfigurationError(f"There is no goal {goal}: the goals are numbered 0 to {len(self) - 1}.")
        position = int(self._order[goal])
        source = int(np.searchsorted(self._ends, position, side="right"))
        number, detail = map(int, self._sources[source])
        entry = self._catalogue.entry(number)
        limit = float(self._price_limits[source])
        if self.kind == "human":
            return _human_goal(entry, detail, limit)
        return _synthetic_goal(entry, detail - int(self._ends[source] - position), limit)


def _draw_prices(price_ranges: np.ndarray, draws: random.Random) -> np.ndarray:
    """What each product costs: its price, or a draw from its range."""
    prices = np.array(price_ranges[:, 0])
    for number in np.flatnonzero(~np.isnan(price_ranges[:, 1])):
        prices[number] = draws.uniform(*map(float, price_ranges[number]))
    return prices


def _draw_limit(price: float, draws: random.Random) -> float:
    """The larger of two of the four next multiples of ten above the price; none when there are not two below 1,000."""
    candidates = [limit for limit in _LIMITS if limit > price][:_NUM_LIMITS]
    return max(draws.sample(candidates, 2)) if len(candidates) >= 2 else NO_LIMIT


def _shuffled(num_goals: int, seed: int) -> np.ndarray:
    order = array("q", range(num_goals))
    random.Random(seed).shuffle(order)
    return np.frombuffer(order, np.int64) if num_goals else np.empty(0, np.int64)


def _price_clause(limit: float) -> str:
    return "" if limit == NO_LIMIT else f", and price lower than {limit:.2f} dollars"


def _goal(entry: Entry, text: str, attributes: tuple[str, ...], options, limit: float) -> Goal:
    product = entry.product
    return Goal(
        asin=product.asin,
        instruction=text + _price_clause(limit),
        attributes=attributes,
        options=options,
        price_limit=limit,
        title=product.title,
        category=product.category,
        query=product.query,
        product_category=product.product_category,
    )


def _synthetic_goal(entry: Entry, combination: int, limit: float) -> Goal:
    """The goal of the `combination`-th choice of options, in the order of `itertools.product` over sorted names."""
    wish = entry.synthetic
    assert wish is not None
    names = sorted(entry.product.options)
    choices = itertools.product(*(entry.product.options[name] for name in names))
    options = dict(zip(names, next(itertools.islice(choices, combination, None)), strict=True))
    clause = ", and ".join(f"{name}: {value}" for name, value in options.items())
    return _goal(entry, f"{wish.text} with {clause}" if clause else wish.text, wish.attributes, options, limit)


def _human_goal(entry: Entry, position: int, limit: float) -> Goal:
    wish = entry.human[position]
    return _goal(entry, wish.text, wish.attributes, wish.options or (), limit)
