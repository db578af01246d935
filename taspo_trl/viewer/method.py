"""What method a run used: from what it wrote down, or from the name that its records carry."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..records import METHOD_FILE
from .lenient import items, mapping, text
from .sources import read_json


def load_facts(records: Path | None) -> tuple[dict[str, Any], list[str]]:
    """(what [`~taspo_trl.methods.facts.facts_of`] told beside the records, notes); nothing where there is no file.

    Args:
        records (`Path`, *optional*):
            The folder of the records.
    """
    path = None if records is None else records / METHOD_FILE
    if path is None or not path.is_file():
        return {}, []
    try:
        found = mapping(read_json(path))
    except (OSError, ValueError) as error:
        return {}, [f"{METHOD_FILE} tells no method: {error}."]
    return dict(found), []


def usual_facts(name: str) -> dict[str, Any]:
    """Those of a method by its name, with its options at their defaults; nothing for a name that we do not know."""
    from ..methods import METHODS  # takes seconds to load, and is asked only for records without a file of their own
    from ..methods.facts import facts_of

    if name not in METHODS:
        return {"name": name} if name else {}
    return facts_of(METHODS[name].usual) | {"assumed": True}


def shown_method(facts: Mapping[str, Any], names: Counter[str]) -> dict[str, Any]:
    """What the page shows of it.

    Args:
        facts (`Mapping[str, Any]`):
            As told; may lack anything.
        names (`Counter[str]`):
            How many records carry which name.
    """
    return {
        "name": text(facts.get("name")),
        "names": names.most_common(),
        "line": text(facts.get("line")),
        "note": text(facts.get("note")),
        "papers": [
            [text(mapping(one).get("reference")), _address(text(mapping(one).get("address")))]
            for one in items(facts.get("papers"))
        ],
        "equations": text(facts.get("equations")),
        "contexts": [text(one) for one in items(facts.get("contexts"))],
        "teacher": text(facts.get("teacher")),
        "parts": [
            [part, text(mapping(facts.get(part)).get("rule")), _options(mapping(facts.get(part)))]
            for part in ("advantage", "weight", "distill")
            if mapping(facts.get(part))
        ],
        "distill": {
            name: text(mapping(facts.get("distill")).get(name)) for name in ("share", "policy_share", "reduction")
        }
        if mapping(facts.get("distill"))
        else None,
        "assumed": facts.get("assumed") is True,
    }


def _address(value: str) -> str:
    """A plain address; empty for anything that a link must not hold."""
    return value if re.fullmatch(r"https://[\w.-]+(/[\w./-]*)?", value, re.ASCII) else ""


def _options(part: Mapping[str, Any]) -> list[list[str]]:
    return [[str(name), text(value) or "none"] for name, value in mapping(part.get("options")).items()]
