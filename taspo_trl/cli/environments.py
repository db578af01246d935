"""`taspo env`: which environments are there, and where their data comes from."""

from __future__ import annotations

import argparse

from ..environments import ENVIRONMENTS
from ..errors import ConfigurationError, did_you_mean


_FACTS = {
    "household": ("none", "embedded, made from a seed"),
    "alfworld": ("alfworld", "embedded small games; the official ones: `taspo env download alfworld`"),
    "webshop": ("webshop", "embedded catalogue; the official files by path or $TASPO_WEBSHOP_DATA"),
    "search_qa": ("search", "embedded questions and passages; public sets through `datasets`"),
}
"""Name -> (extra, data)."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="taspo env", description="Environments and their data; without a command: list."
    )
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("list", help="list the built-in environments")
    download = commands.add_parser("download", help="fetch an environment's public data")
    download.add_argument("name", help="environment, for example alfworld")
    download.add_argument("--data", default=None, help="folder to download to (default: $ALFWORLD_DATA)")
    download.add_argument("--force", action="store_true", help="download again what is there")
    options = parser.parse_args(arguments)
    return _download(options) if options.command == "download" else _list()


def _list() -> int:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title="Built-in environments")
    for column in ("name", "class", "extra", "data"):
        table.add_column(column)
    for name, class_name in ENVIRONMENTS.items():
        extra, data = _FACTS[name]
        table.add_row(name, class_name, "-" if extra == "none" else escape(f"taspo_trl[{extra}]"), data)
    Console().print(table)
    return 0


def _download(options: argparse.Namespace) -> int:
    if options.name not in ENVIRONMENTS:
        hint = did_you_mean(options.name, ENVIRONMENTS)
        raise ConfigurationError(f"There is no environment {options.name!r}.{hint} `taspo env list` lists them.")
    if options.name != "alfworld":
        raise ConfigurationError(f"There is nothing to download for {options.name!r}: {_FACTS[options.name][1]}.")
    from ..environments.alfworld import download

    for split, count in download(options.data, force=options.force).items():
        print(f"{split}: {count} games")
    return 0
