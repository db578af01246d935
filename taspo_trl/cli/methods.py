"""`taspo methods`: which methods there are, what each needs and costs, and the card of one."""

from __future__ import annotations

import argparse

from ..errors import ConfigurationError, did_you_mean


_COLUMNS = ("what it does", "needs", "costs beyond GRPO")
_WIDE = 110
"""Columns of a terminal from which on the table has a column for each of them."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="taspo methods", description="Methods of credit assignment; with a name: the card of one."
    )
    parser.add_argument("name", nargs="?", help="a method, for example serl")
    options = parser.parse_args(arguments)
    return _list() if options.name is None else _card(options.name)


def _list() -> int:
    from rich.console import Console
    from rich.table import Table

    from ..methods import GROUPS

    console = Console()
    is_narrow = console.width < _WIDE
    table = Table(title="Methods", show_lines=False)
    table.add_column("name", overflow="fold", no_wrap=is_narrow)
    for column in ("what it does; needs; costs beyond GRPO",) if is_narrow else _COLUMNS:
        table.add_column(column, overflow="fold")
    for group, methods in GROUPS.items():
        table.add_section()
        table.add_row(f"[bold]{group}[/bold]", *([""] if is_narrow else [""] * len(_COLUMNS)))
        for one in methods:
            told = (one.line, one.needs_words.replace("`", ""), one.cost_words)
            table.add_row(one.name, *(_below(*told) if is_narrow else told))
    console.print(table)
    print("`taspo methods NAME` shows the card of one; train with `--method NAME --method_options '{...}'`.")
    return 0


def _below(line: str, needs: str, costs: str) -> list[str]:
    """Three cells as one: beside each other they would be too narrow for their words."""
    parts = [line, *(f"{what}: {value}" for what, value in (("needs", needs), ("costs", costs)) if value != "nothing")]
    return ["\n".join(parts)]


def _card(name: str) -> int:
    from rich.console import Console
    from rich.markdown import Markdown

    from ..methods import METHODS
    from ..methods.cards import card

    if name not in METHODS:
        raise ConfigurationError(
            f"There is no method {name!r}.{did_you_mean(name, METHODS)} `taspo methods` lists them all."
        )
    Console().print(Markdown(card(METHODS[name])))
    return 0
