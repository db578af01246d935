"""When a quote counts as support: white space is forgiven, nothing else is (docs/method.md, section 4).

Pure.
"""

from __future__ import annotations

import functools


MIN_QUOTE = 4
"""Characters that an observation quote needs, unless it is the whole record."""
LONG_ACTION = 320
"""Above this length an exact part of an action may stand for it."""
MIN_ACTION_PART = 40
MAX_QUOTES = 500
"""Of one answer that are looked up: more than 4,096 tokens hold, and little enough to search in long records."""

_TYPOGRAPHY = str.maketrans(
    {
        "‘": "'",
        "’": "'",
        "‚": "'",
        "“": '"',
        "”": '"',
        "„": '"',
        "‐": "-",
        "‑": "-",
        "–": "-",
        "—": "-",
        "−": "-",
    }
)


def collapse(text: str) -> str:
    """`text` with every run of white space (non-breaking space included) made one blank, none at the ends."""
    return " ".join(text.split())


class Quotes:
    """Checks quotes against records. Each record is collapsed once, however many quotes name it."""

    def __init__(self) -> None:
        self._collapsed = functools.cache(collapse)
        self._folded = functools.cache(_fold)
        self._num_checked = 0

    def observation_fault(self, quote: str, record: str) -> str:
        """Why `quote` is no support from the observation or task text `record`; empty when it is.

        A quote must be a non-empty part of the record after collapsing white space, of at least 4 characters unless
        it is the whole record.
        """
        needle, haystack = collapse(quote), self._collapsed(record)
        fault = self._first_fault(needle)
        if fault or needle == haystack:
            return fault
        if needle not in haystack:
            return self._why_not_found(needle, haystack)
        return "quote_too_short" if len(needle) < MIN_QUOTE else ""

    def action_fault(self, quote: str, action: str) -> str:
        """Why `quote` does not stand for the executed `action`; empty when it does.

        It must be the whole action after collapsing white space; for an action of more than 320 characters an exact
        part of at least 40 is enough.
        """
        needle, whole = collapse(quote), self._collapsed(action)
        fault = self._first_fault(needle)
        if fault or needle == whole:
            return fault
        if len(whole) > LONG_ACTION and needle in whole:
            return "" if len(needle) >= MIN_ACTION_PART else "quote_too_short"
        if needle in whole:
            return "action_quote_incomplete"
        return self._why_not_found(needle, whole)

    def _first_fault(self, needle: str) -> str:
        if not needle:
            return "quote_empty"
        self._num_checked += 1
        return "over_max_quotes" if self._num_checked > MAX_QUOTES else ""

    def _why_not_found(self, needle: str, haystack: str) -> str:
        # Rejected all the same, but counted apart: a provider that curls or straightens every quote mark shows up in
        # the metrics.
        return "quote_typography" if _fold(needle) in self._folded(haystack) else "quote_not_found"


def _fold(text: str) -> str:
    return text.translate(_TYPOGRAPHY).replace("…", "...")
