"""Tables of faults: a test for each row, and the rows in docs/reliability.md.

`TASPO_WRITE_DOCS=1` makes the tests of this module's users write their tables instead of comparing them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


PAGE = Path(__file__).parents[1] / "docs" / "reliability.md"


@dataclass(frozen=True)
class Fault:
    """One row: what goes wrong, what follows, and what bounds it."""

    kind: str
    """raises, hangs, dies, wrong type, huge, hostile."""
    what: str
    outcome: str
    bound: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}"


def check_table(name: str, faults: Sequence[Fault]) -> None:
    """Hold the table between the page's two marks against `faults`."""
    rows = [f"| {one.kind} | {one.what} | {one.outcome} | {one.bound} |" for one in faults]
    table = "\n".join(["| fault | for example | what follows | bound |", "|---|---|---|---|", *rows])
    begin, end = f"<!-- {name}: from its tests -->", f"<!-- {name}: end -->"
    page = PAGE.read_text(encoding="utf-8")
    found = re.search(f"{re.escape(begin)}\n(.*?)\n{re.escape(end)}", page, re.DOTALL)
    assert found, f"{PAGE.name} has no marks {begin} and {end}"
    if os.environ.get("TASPO_WRITE_DOCS"):
        PAGE.write_text(page[: found.start(1)] + table + page[found.end(1) :], encoding="utf-8")
    else:
        assert found.group(1) == table, f"{PAGE.name} is not what is tested; run this test with TASPO_WRITE_DOCS=1"
