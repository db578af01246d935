"""How the time of a piece of work grows with its input."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def growth(work: Callable[[str], Any], piece: str, size: int = 2**16, factor: int = 16) -> float:
    """By how much the work's time grows when a text of many pieces grows by `factor`, by default to 1 MB.

    About `factor` for linear work, its square for quadratic work. Of a few tries the best counts: others share the
    machine.
    """

    def seconds(length: int) -> float:
        text = piece * (length // len(piece))
        start = time.process_time()
        work(text)
        return time.process_time() - start

    best = float("inf")
    for _ in range(3):
        before = max(min(seconds(size) for _ in range(3)), 1e-3)
        best = min(best, seconds(factor * size) / before)
        if best < 2 * factor:
            break
    return best
