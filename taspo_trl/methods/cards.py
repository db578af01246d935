"""The card of a method in Markdown: equation, options, needs, cost, guarantees, citation. And the table of all."""

from __future__ import annotations

import inspect
import re
import sys
from functools import partial

from .method import Method, Part
from .registry import GROUPS


def table() -> str:
    """One row for each method, kind by kind."""
    lines = ["| method | what it does | needs | costs beyond GRPO |", "|---|---|---|---|"]
    for group, methods in GROUPS.items():
        lines.append(f"| **{group}** | | | |")
        lines += [f"| [`{m.name}`](#{m.name}) | {m.line} | {m.needs_words} | {m.cost_words} |" for m in methods]
    return "\n".join(lines)


def card(method: Method) -> str:
    """What there is to know of a method, under a heading of its name."""
    parts = [f"### {method.name}", f"{_sentence(method.line)}"]
    formulas = [method.formulas] if method.formulas else [equations(part) for part in method.parts]
    parts += [text for text in dict.fromkeys(formulas) if text]
    if method.note:
        parts.append(method.note)
    options = [f"| `{name}` | `{value!r}` |" for name, value in method.options.items()]
    options += [f"| `{name}` of the configuration | |" for name in method.fields.values()]
    parts.append("\n".join(["| option | default |", "|---|---|", *options]) if options else "It has no options.")
    cited = [f"[{paper.title or paper.name}]({paper.address})" for paper in method.papers]
    rows = [
        ("Needs", method.needs_words),
        ("Costs beyond GRPO", method.cost_words),
        ("Checked at every step", method.guarantee_words),
        ("Cite", "; ".join(cited) or "nobody; it is ours, and a control"),
    ]
    parts.append("\n".join(f"- {name}: {value}." for name, value in rows))
    return "\n\n".join(parts) + "\n"


def equations(part: Part) -> str:
    """What a rule computes, as the documentation of its file or class says it, without its list of arguments."""
    made = part.make.func if isinstance(part.make, partial) else part.make
    module = _body(sys.modules[made.__module__].__doc__)
    own = inspect.cleandoc(made.__doc__ or "").split("\nArgs:")[0].rstrip()
    if not isinstance(made, type) and made.__name__ != "opd":  # a function that sets parameters of a class
        return _fenced(f"{own}\n\n{module}")
    return _fenced(module or own)


def _body(text: str | None) -> str:
    """A documentation without its first paragraph."""
    return inspect.cleandoc(text or "").partition("\n\n")[2].strip("\n")


def _fenced(text: str) -> str:
    """Indented lines as code blocks, references as plain names."""
    text = re.sub(r"\[`~?([\w.]+)`\]", lambda found: f"`{found[1].split('.')[-1]}`", text)
    blocks = [
        "```text\n" + inspect.cleandoc("\n" + block) + "\n```" if block.startswith("    ") else block
        for block in text.split("\n\n")
    ]
    return "\n\n".join(blocks)


def _sentence(line: str) -> str:
    return line[0].upper() + line[1:] + "."


def generated() -> str:
    """What docs/methods.md holds behind its introduction: the table, and all cards."""
    parts = ["## Table", table()]
    for group, methods in GROUPS.items():
        parts += [f"## {group}", *(card(method).rstrip() for method in methods)]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.stdout.write(generated())
