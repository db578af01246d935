"""Draws that come out the same on every machine and Python version, and numbered choices without repetition.

Python promises a stable sequence for `random.Random.random` alone: `shuffle`, `sample` and `randrange` may change
between versions. So everything here is built on `random()`, and seeds are strings (never `hash()`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import comb, gcd
from typing import TypeVar


Item = TypeVar("Item")


def stream(*key: object) -> random.Random:
    """A generator of its own for `key`, for example `stream("small", "train", 17)`."""
    return random.Random("/".join(str(part) for part in key))


def draw_index(rng: random.Random, length: int) -> int:
    """An index below `length`."""
    return int(rng.random() * length)


def draw(rng: random.Random, items: Sequence[Item]) -> Item:
    """One of `items`."""
    return items[draw_index(rng, len(items))]


def draw_between(rng: random.Random, low: int, high: int) -> int:
    """A whole number from `low` to `high`, both included."""
    return low + draw_index(rng, high - low + 1)


def shuffled(rng: random.Random, items: Sequence[Item]) -> list[Item]:
    """`items` in random order (Fisher-Yates)."""
    result = list(items)
    for last in range(len(result) - 1, 0, -1):
        other = draw_index(rng, last + 1)
        result[last], result[other] = result[other], result[last]
    return result


def combination(rank: int, items: Sequence[Item], length: int) -> tuple[Item, ...]:
    """The combination of `length` out of `items` with number `rank`, in the order of `itertools.combinations`.

    Different ranks below `comb(len(items), length)` give different combinations, without listing the ones between.
    """
    chosen: list[Item] = []
    for position, item in enumerate(items):
        if len(chosen) == length:
            break
        # How many combinations go on with this item; `rank` counts past them when it lies behind.
        with_item = comb(len(items) - position - 1, length - len(chosen) - 1)
        if rank < with_item:
            chosen.append(item)
        else:
            rank -= with_item
    return tuple(chosen)


def scattered(rng: random.Random, number: int, size: int) -> int:
    """`number` moved to a random-looking place below `size`, one to one for a fixed state of `rng`."""
    offset = draw_index(rng, size)
    stride = 1 + draw_index(rng, size)
    while gcd(stride, size) != 1:
        stride += 1
    return (offset + stride * number) % size
