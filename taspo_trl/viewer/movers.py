"""Which statement of the guidance lies nearest to what a turn did.

Pure. All statements are shown to the guided pass at once, so that a shift belongs to the block as a whole. Which one
it turns on is read off the texts: a success did the same, it names what the action does, or it quotes this turn.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..analyzer.quotes import collapse
from .lenient import items, mapping, text, whole


_NAMED = 0.5
"""Part of an action's words that a statement must name."""
_LIGHT = frozenset(
    ("a", "an", "the", "to", "from", "in", "into", "on", "onto", "at", "of", "with", "and", "go", "take", "put", "use")
)
"""Words that say little of what is done."""
_LIGHT_WEIGHT = 0.2


@dataclass(frozen=True)
class Mover:
    """The statement nearest to a turn.

    Args:
        statement (`int`):
            Its number, from 0.
        how (`str`):
            `"same"`: a success did the same. `"names"`: it names what the action does. `"quotes"`: it quotes the turn.
            `"only"`: there is no other.
        mark (`str`):
            Where its quote stands in the guidance: `e<evidence>.<source>.action` or `s<statement>.<support>`; empty
            for a statement without any.
        uid (`str`), turn (`int`, *optional*), quote (`str`):
            The quote with its episode and turn; no episode = the trajectory's own.
    """

    statement: int
    how: str
    mark: str = ""
    uid: str = ""
    turn: int | None = None
    quote: str = ""


def mover_of(turn_idx: int, action: str, guidance: Mapping[str, Any]) -> Mover | None:
    """The statement nearest to the action of a turn; None where none is near.

    Args:
        turn_idx (`int`), action (`str`):
            The turn, and what was executed.
        guidance (`Mapping[str, Any]`):
            The raw guidance of its trajectory.
    """
    statements = [mapping(one) for one in items(guidance.get("statements"))]
    evidence = {
        text(mapping(one).get("evidence_id")): (place, mapping(one))
        for place, one in enumerate(items(guidance.get("evidence")))
    }
    found: list[tuple[float, Mover]] = []
    for number, one in enumerate(statements):
        sources = [
            (place, k, mapping(source))
            for name in map(text, items(one.get("evidence_ids")))
            if name in evidence
            for place, item in [evidence[name]]
            for k, source in enumerate(items(item.get("sources")))
        ]
        found.append(_nearness(number, one, sources, turn_idx, action))
    if not found:
        return None
    nearness, mover = max(found, key=lambda pair: pair[0])
    if nearness > 0:
        return mover
    return Mover(0, "only", *_first(found[0][1])) if len(found) == 1 else None


def _nearness(
    number: int,
    statement: Mapping[str, Any],
    sources: list[tuple[int, int, Mapping[str, Any]]],
    turn_idx: int,
    action: str,
) -> tuple[float, Mover]:
    wanted = collapse(action).casefold()
    for place, k, source in sources:
        quote = text(source.get("action_quote"))
        if wanted and collapse(quote).casefold() == wanted:
            return 3.0, _from_source(number, "same", place, k, source)
    named = _share_named(action, " ".join([text(statement.get("text")), *_actions(sources)]))
    best = _from_source(number, "names", *sources[0]) if sources else Mover(number, "names")
    if named >= _NAMED:
        return 1.0 + named, best
    for k, support in enumerate(map(mapping, items(statement.get("support")))):
        if whole(support.get("step")) == turn_idx and text(support.get("field")) in ("action", "post"):
            mark = f"s{number}.{k}"
            return 0.5 + named / 10, Mover(number, "quotes", mark, "", turn_idx, text(support.get("quote")))
    return 0.0, best


def _from_source(number: int, how: str, place: int, k: int, source: Mapping[str, Any]) -> Mover:
    field = next((one for one in ("action", "post", "pre") if text(source.get(f"{one}_quote"))), "action")
    quote = text(source.get(f"{field}_quote"))
    return Mover(number, how, f"e{place}.{k}.{field}", text(source.get("traj_uid")), whole(source.get("step")), quote)


def _first(mover: Mover) -> tuple[str, str, int | None, str]:
    return mover.mark, mover.uid, mover.turn, mover.quote


def _actions(sources: list[tuple[int, int, Mapping[str, Any]]]) -> list[str]:
    return [text(source.get("action_quote")) for _, _, source in sources]


def _share_named(action: str, statement: str) -> float:
    """Part of the action's words, weighed, that the statement holds."""
    words, named = _words(action), _words(statement)
    total = sum(words.values())
    return sum(weight for word, weight in words.items() if word in named) / total if total else 0.0


@lru_cache(maxsize=4096)
def _words(value: str) -> dict[str, float]:
    found = re.findall(r"\w+", value.casefold())
    return {word: _LIGHT_WEIGHT if word in _LIGHT or word.isdigit() else 1.0 for word in found}
