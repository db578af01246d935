"""The model card of a warm start: what was imitated and how, in a table. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence


TAGS = ("generated_from_trainer", "sft", "taspo", "trl")


def model_card(
    name: str,
    facts: Mapping[str, str],
    *,
    made_by: str,
    is_model: bool = True,
    base_model: str | None = None,
    dataset: str | None = None,
    tags: Sequence[str] = TAGS,
    more: str = "",
) -> str:
    """The text of `README.md`, in place of that of TRL's SFTTrainer, which knows neither turns nor local models.

    Args:
        name (`str`):
            Its heading.
        facts (`Mapping[str, str]`):
            The rows of the table; empty values are left out.
        made_by (`str`):
            A command or a class.
        is_model (`bool`, *optional*, defaults to `True`):
            False for an adapter.
        base_model (`str`, *optional*), dataset (`str`, *optional*):
            Their names on the Hub.
        tags (`Sequence[str]`, *optional*):
            Of the card.
        more (`str`, *optional*):
            A last paragraph.
    """
    front = [f"library_name: {'transformers' if is_model else 'peft'}", "pipeline_tag: text-generation"]
    front += [f"base_model: {json.dumps(base_model)}"] if base_model else []
    front += ["datasets:", f"- {json.dumps(dataset)}"] if dataset else []
    front += ["tags:", *(f"- {one}" for one in tags)]
    table = [f"| {what} | {value} |" for what, value in facts.items() if value]
    parts = [
        "\n".join(["---", *front, "---"]),
        f"# {name}",
        f"A language agent at its warm start, made by `{made_by}`: it imitates turns of recorded episodes, and is "
        "meant to be trained further (`taspo train`). How well it acts was not measured when this was written; `taspo "
        "eval` does.",
        "\n".join(["| | |", "|---|---|", *table]),
    ]
    return "\n\n".join([*parts, more] if more else parts) + "\n"
