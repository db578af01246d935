"""Griffe extension: docstrings as TRL writes them, turned into the google style that mkdocstrings reads.

Types and defaults of arguments come from the signature; references become links where the API pages have the target.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import griffe


_TYPE = r" \((?:[^()]|\([^()]*\))*\)"  # (`int`, *optional*, defaults to `(3, 4)`)
_NAMED = rf"\*{{0,2}}\w+(?:{_TYPE})?"
_ENTRY = re.compile(rf"    ({_NAMED}(?:, {_NAMED})*):")
_GROUP = re.compile(r"    > (Parameters that control .+)")
_SECTION = re.compile(r"(Args|Parameters|Raises|Returns|Yields):")
_RETURNED = re.compile(r"    `([^`]+)`(?: or `([^`]+)`)?: (.*)")
_REFERENCE = re.compile(r"\[`(~?)([\w.]+)`\](?!\()")


def google_style(text: str, link: Callable[[str, str], str]) -> str:
    """A docstring with its sections in google style.

    Args:
        text (`str`):
            The docstring, without indentation.
        link (`Callable`):
            (dotted name, what is shown) -> Markdown.
    """
    lines: list[str] = []
    section, pending = "", []  # names that share one description, and that description
    for line in [*text.split("\n"), ""]:
        entry = _ENTRY.fullmatch(line) if section in ("Args", "Parameters") else None
        if pending and (entry or not line.startswith("        ")):
            lines += [part for name in pending[0] for part in (f"    {name}:", *pending[1:])]
            pending = []
        if entry:
            pending = [re.sub(_TYPE, "", entry[1]).split(", ")]
        elif pending:
            pending.append(line)
        elif group := _GROUP.fullmatch(line):
            lines += ["", f"Args: {group[1]}"]
        elif start := _SECTION.fullmatch(line):
            section = start[1]
            lines.append("Args:" if section == "Parameters" else line)
        elif section == "Returns" and (returned := _RETURNED.fullmatch(line)):
            kind = f"{returned[1]} | {returned[2]}" if returned[2] else returned[1]
            lines.append(f"    {kind}: {returned[3]}")
        else:
            section = "" if line and not line.startswith(" ") else section
            lines.append(line)
    made = "\n".join(lines).rstrip()
    made = re.sub(r"^Args:\n+(?=Args: )", "", made, flags=re.MULTILINE)  # groups follow, each with its own title
    made = re.sub(r"^(Args: .+)\n+", r"\1\n", made, flags=re.MULTILINE)
    made = made.replace("> [!NOTE]\n", "> **Note.**\n")
    made = re.sub(r"^(>.*:)\n(> - )", r"\1\n>\n\2", made, flags=re.MULTILINE)  # a list needs a blank line before it
    return _REFERENCE.sub(lambda found: link(found[2], found[2].split(".")[-1] if found[1] else found[2]), made)


def _link(name: str, shown: str, obj: griffe.Object) -> str:
    """An optional reference: a link where the name has a place on the API pages, else plain code."""
    if "." not in name:
        try:
            name = obj.resolve(name)
        except griffe.NameResolutionError:
            return f"`{shown}`"
    if not name.startswith("taspo_trl."):
        return f"`{shown}`"
    return f'<autoref identifier="{name}" optional><code>{shown}</code></autoref>'


class TRLDocstrings(griffe.Extension):
    """Rewrites every docstring of the package before mkdocstrings parses it."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        self._rewrite(pkg)

    def _rewrite(self, obj: griffe.Object) -> None:
        if obj.docstring is not None:
            obj.docstring.value = google_style(obj.docstring.value, lambda name, shown: _link(name, shown, obj))
        for member in obj.members.values():
            if not member.is_alias:
                self._rewrite(member)
