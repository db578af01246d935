"""A stand-in for a tokenizer where no model is at hand: four characters count as one token.

Only lengths mean anything; its ids belong to no model.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence


_CHARS = 4


class ApproximateTokenizer:
    """What [`~taspo_trl.guidance.block.Composer`] needs of a tokenizer."""

    all_special_tokens: tuple[str, ...] = ()
    all_special_ids: tuple[int, ...] = ()

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ids: dict[str, int] = {}
        self._pieces: list[str] = []

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        with self._lock:
            return [self._id_of(text[k : k + _CHARS]) for k in range(0, len(text), _CHARS)]

    def decode(self, ids: Sequence[int], clean_up_tokenization_spaces: bool = False) -> str:
        return "".join(self._pieces[i] for i in ids)

    def _id_of(self, piece: str) -> int:
        if piece not in self._ids:
            self._ids[piece] = len(self._pieces)
            self._pieces.append(piece)
        return self._ids[piece]
