"""The options of `taspo train` as a table, for help and for typing errors: nothing heavy is imported to read it.

`python -m taspo_trl.cli.option_table` makes `train_options.json` anew from the configuration; a test holds the two
together.
"""

from __future__ import annotations

import json
import re
import shutil
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any


TABLE = Path(__file__).with_name("train_options.json")

FIRST = (
    "config",
    "model_name_or_path",
    "environment",
    "train_split",
    "eval_split",
    "output_dir",
    "method",
    "guidance",
    "analyzer_model",
    "num_generations",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "learning_rate",
    "max_steps",
    "max_turns",
    "max_completion_length",
    "beta",
    "use_peft",
    "use_vllm",
    "eval_strategy",
    "report_to",
    "seed",
)
"""What most runs set; help shows it first."""


@dataclass(frozen=True)
class Option:
    """One option of `taspo train`."""

    name: str
    group: str
    """Where it comes from: the heading under which help shows it."""
    kind: str
    """What it takes: a type, or its choices."""
    default: str
    help: str


@cache
def options() -> Mapping[str, Option]:
    """Name -> option, from the table."""
    return {one["name"]: Option(**one) for one in json.loads(TABLE.read_text(encoding="utf-8"))}


def help_text(width: int | None = None) -> str:
    """The whole help: the options that matter first, then all of them in their groups."""
    width = width or min(120, shutil.get_terminal_size().columns)
    known = options()
    lines = [
        "usage: taspo train [--config FILE.yaml] [--OPTION VALUE ...]",
        "",
        *textwrap.wrap(
            "Train a model. `--config FILE.yaml` sets any of these options; flags win over it. Each option is written "
            "with hyphens or with underscores: `--max-turns 8` is `--max_turns 8`.",
            width,
        ),
    ]
    groups: dict[str, list[Option]] = {"What most runs set": [known[name] for name in FIRST if name in known]}
    for option in known.values():
        if option.name not in FIRST:
            groups.setdefault(option.group, []).append(option)
    for title, members in groups.items():
        lines += ["", f"{title}:"]
        for option in members:
            lines += _entry(option, width)
    return "\n".join(lines)


def _entry(option: Option, width: int) -> list[str]:
    told = option.help + (f" (default: {option.default})" if option.default else "")
    kind = option.kind
    if len(kind) > width // 2:  # many choices
        kind, told = "CHOICE", f"{told} One of {kind.strip('{}').replace(',', ', ')}."
    head = f"  --{option.name} {kind}".rstrip()
    body = textwrap.wrap(told, width - 6, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return [head, *body]


def refuse_unknown(names: Iterable[str]) -> None:
    """Raise [`~taspo_trl.errors.ConfigurationError`] for a name that is no option, with the nearest one."""
    from ..errors import ConfigurationError, did_you_mean

    known = {*options(), "config", "help"}
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known)
            raise ConfigurationError(f"There is no option `{name}`.{hint} `taspo train --help` lists them all.")


# ---- making the table ----------------------------------------------------------------------------------------------


def make_table() -> list[dict[str, str]]:
    """The table as the configuration is now: loads transformers and TRL."""
    from .train import parser

    made = parser()
    groups = _groups()
    rows = [
        {"name": "config", "group": "", "kind": "FILE", "default": "", "help": "YAML file with options by name."},
    ]
    for action in made._actions:
        if action.dest in ("help", "config") or action.dest not in groups or not action.option_strings:
            continue
        if any(row["name"] == action.dest for row in rows):
            continue
        rows.append(
            {
                "name": action.dest,
                "group": groups[action.dest],
                "kind": _kind(action),
                "default": _default(action.default),
                "help": " ".join(str(action.help or "").replace("%%", "%").split()),
            }
        )
    order = list(dict.fromkeys(groups.values()))
    return sorted(rows, key=lambda row: order.index(row["group"]) if row["group"] in order else -1)


def _groups() -> dict[str, str]:
    """Option -> heading: of ours by what they control, of others by the class that has them."""
    import dataclasses

    from transformers import TrainingArguments
    from trl import GRPOConfig, ModelConfig

    from ..config import TASPOConfig
    from .train import TaskArguments

    found: dict[str, str] = {one.name: "What is trained on" for one in dataclasses.fields(TaskArguments)}
    heading = "TASPO"
    for line in (TASPOConfig.__doc__ or "").splitlines():
        if heading_line := re.match(r"\s+> Parameters that control (.*)", line):
            heading = f"Parameters that control {heading_line[1]}"
        elif entry := re.match(r"        (\w+) \(", line):
            found.setdefault(entry[1], heading)
    own = set(TASPOConfig.__annotations__)
    for cls, title in (
        (ModelConfig, "The model (TRL's ModelConfig)"),
        (TASPOConfig, "TASPO"),
        (GRPOConfig, "TRL's GRPOConfig"),
        (TrainingArguments, "transformers' TrainingArguments"),
    ):
        inherited = {one.name for one in dataclasses.fields(TrainingArguments)} if cls is GRPOConfig else set()
        for one in dataclasses.fields(cls):
            if cls is TASPOConfig and one.name not in own:
                continue
            if one.name not in inherited:
                found.setdefault(one.name, title)
    return found


def _kind(action: Any) -> str:
    if action.choices:
        return "{" + ",".join(map(str, action.choices)) + "}"
    name = getattr(action.type, "__name__", "")
    kind = {"str": "TEXT", "int": "N", "float": "X", "string_to_bool": "BOOL"}.get(name, "VALUE")
    return f"{kind} ..." if action.nargs in ("+", "*") else kind


def _default(value: Any) -> str:
    return "" if value is None or type(value).__name__ == "_MISSING_TYPE" else str(getattr(value, "value", value))


def main() -> None:
    rows = make_table()
    TABLE.write_text(json.dumps(rows, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{TABLE}: {len(rows)} options")


if __name__ == "__main__":
    main()
