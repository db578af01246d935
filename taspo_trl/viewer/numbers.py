"""Numbers of a calculation as people write them.

Pure.
"""

from __future__ import annotations


MINUS = "\u2212"


def signed(value: float, digits: int = 3) -> str:
    """With its sign, +0.250; a small value keeps one digit: +0.0001."""
    text = _digits(value, digits)
    return f"+{text}" if float(text.replace(MINUS, "-")) > 0 else text


def plain(value: float, digits: int = 3) -> str:
    """Without a sign where it is not negative."""
    return _digits(value, digits)


def short(value: float) -> str:
    """A constant: 0.5, 2, 0.001."""
    return f"{value:.4g}".replace("-", MINUS)


def less(value: float, digits: int = 3) -> str:
    """What stands behind a value from which this one is taken: ` − 0.070`, or ` + 0.070` for a negative one."""
    text = _digits(abs(value), digits)
    return f" + {text}" if value < 0 else f" {MINUS} {text}"


def _digits(value: float, digits: int) -> str:
    text = f"{value:.{digits}f}"
    if float(text) == 0:  # too small for its digits, or nothing
        text = f"{value:.1g}" if abs(value) >= 10.0 ** -(digits + 2) else f"{0:.{digits}f}"
    return text.replace("-", MINUS)
