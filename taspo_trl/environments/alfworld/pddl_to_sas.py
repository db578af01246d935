"""Translates a PDDL problem with Fast Downward's translator: a program for a process of its own.

    python pddl_to_sas.py < {"domain": "...", "problem": "..."} > translation

The translator overwrites `sys.argv`, swaps `sys.stdout`, keeps its options in module globals and leaves some 25 MB of
scattered memory behind: none of it harms a process that ends. The output is read by `translation.py`: a line of JSON
and the planning task, compressed. This file imports nothing of the package, so that it starts fast.
"""

from __future__ import annotations

import gc
import json
import sys
import zlib
from collections.abc import Iterator
from typing import Any

import fast_downward
from fast_downward.translate.pddl.conditions import Atom
from fast_downward.translate.pddl.f_expression import Assign


def translate(domain: str, problem: str) -> bytes:
    """What `translation.Translation` holds, as bytes."""
    task, sas = fast_downward.pddl2sas(domain, problem)
    types: dict[str, list[str]] = {}
    for type_ in task.types:  # the translator declares `object`, and so may the domain: the first one counts
        types.setdefault(type_.name, list(type_.supertype_names))
    header = {
        "actions": {action.name: [[p.name, p.type_name] for p in action.parameters] for action in task.actions},
        "types": types,
        "objects": {thing.name: thing.type_name for thing in task.objects},
        "facts": list(_facts(task.init)),
    }
    return zlib.compress(f"{json.dumps(header)}\n{sas}".encode())


def _facts(init: list[Any]) -> Iterator[tuple[str, list[str]]]:
    """The initial state without equalities, costs and distances: what TextWorld turns into propositions."""
    for element in init:
        if isinstance(element, Atom) and element.predicate != "=":
            yield element.predicate, list(element.args)
        elif isinstance(element, Assign) and element.fluent.symbol != "total-cost":
            value = str(element.expression.value)
            if not value.isdigit():
                yield value, list(element.fluent.args)


if __name__ == "__main__":
    gc.disable()  # it only costs time in a process that soon ends
    output = sys.stdout.buffer
    texts = json.load(sys.stdin)
    output.write(translate(texts["domain"], texts["problem"]))
