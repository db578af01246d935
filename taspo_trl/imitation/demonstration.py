"""One turn to imitate, in tokens. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One turn to imitate."""

    prompt_ids: tuple[int, ...]
    reply_ids: tuple[int, ...]
