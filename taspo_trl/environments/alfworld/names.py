"""The names by which ALFWorld shows the things of a scene.

Pure: ids in, names out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


def display_names(ids: Iterable[str]) -> dict[str, str]:
    """How the entities `ids` are called in observations and commands: `mug_bar__plus_00...` becomes "mug 2".

    The things of one kind are numbered downwards in the order of their ids. A sink and a bathtub are told from their
    basins by the word "basin" anywhere in the id. An id without `_bar_` is no thing of the scene and keeps its text,
    followed by the blank that ALFWorld puts before the missing number.
    """
    ids = sorted(ids)
    kinds = {id_: id_.split("_bar_", 1)[0] + ("basin" if "basin" in id_ else "") for id_ in ids if "_bar_" in id_}
    numbers = Counter(kinds.values())
    names = {}
    for id_ in ids:
        if id_ in kinds:
            kind = kinds[id_]
            names[id_] = f"{kind} {numbers[kind]}"
            numbers[kind] -= 1
        else:
            names[id_] = f"{_unescape(id_)} "
    return names


def _unescape(id_: str) -> str:
    for escape, character in (("_minus_", "-"), ("_plus_", "+"), ("_dot_", "."), ("_comma_", ",")):
        id_ = id_.replace(escape, character)
    return id_
