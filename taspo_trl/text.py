"""Which strings can be encoded. Pure."""

from __future__ import annotations


def is_unicode(text: str) -> bool:
    """Whether `text` can be encoded: half of a surrogate pair cannot, and no tokenizer or file takes it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def as_unicode(text: str) -> str:
    """`text` with a question mark for each half of a surrogate pair."""
    return text.encode(errors="replace").decode()
