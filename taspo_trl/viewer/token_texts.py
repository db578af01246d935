"""Token ids to readable text, with the tokenizer that a run saved.

Records hold ids only. Each id is decoded alone, so a character that several tokens share is shown as pieces.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any


def load_token_texts(path: Path | None) -> Callable[[Any], str | None]:
    """A function from a token id to its text; it gives None where that is not known.

    Args:
        path (`Path`, *optional*):
            A `tokenizer.json`. Without one, or when it cannot be read, nothing is known.
    """
    if path is None:
        return lambda token_id: None
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception:  # the library raises bare exceptions, and a page without token texts is still a page
        return lambda token_id: None
    known: dict[int, str | None] = {}

    def text_of(token_id: Any) -> str | None:
        if not isinstance(token_id, int) or not 0 <= token_id < 2**31:
            return None
        if token_id not in known:
            decoded = tokenizer.decode([token_id], skip_special_tokens=False)
            known[token_id] = decoded or tokenizer.id_to_token(token_id)
        return known[token_id]

    return text_of
