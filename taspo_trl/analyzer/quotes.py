"""When a quote counts as support: white space is forgiven, nothing else is (method.md, section 4).

Pure.
"""

from __future__ import annotations


MIN_QUOTE = 4
"""Characters that an observation quote needs, unless it is the whole record."""
LONG_ACTION = 320
"""Above this length an exact part of an action may stand for it."""
MIN_ACTION_PART = 40

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


def observation_fault(quote: str, record: str) -> str:
    """Why `quote` is no support from the observation or task text `record`; empty when it is.

    A quote must be a non-empty part of the record after collapsing white space, of at least 4 characters unless it is
    the whole record.
    """
    needle, haystack = collapse(quote), collapse(record)
    if not needle:
        return "quote_empty"
    if needle == haystack:
        return ""
    if needle not in haystack:
        return _why_not_found(needle, haystack)
    return "quote_too_short" if len(needle) < MIN_QUOTE else ""


def action_fault(quote: str, action: str) -> str:
    """Why `quote` does not stand for the executed `action`; empty when it does.

    It must be the whole action after collapsing white space; for an action of more than 320 characters an exact part
    of at least 40 is enough.
    """
    needle, whole = collapse(quote), collapse(action)
    if not needle:
        return "quote_empty"
    if needle == whole:
        return ""
    if len(whole) > LONG_ACTION and needle in whole:
        return "" if len(needle) >= MIN_ACTION_PART else "quote_too_short"
    if needle in whole:
        return "action_quote_incomplete"
    return _why_not_found(needle, whole)


def _why_not_found(needle: str, haystack: str) -> str:
    # Rejected all the same, but counted apart: a provider that curls or straightens every quote mark shows up in the
    # metrics.
    return "quote_typography" if _fold(needle) in _fold(haystack) else "quote_not_found"


def _fold(text: str) -> str:
    return text.translate(_TYPOGRAPHY).replace("…", "...")
