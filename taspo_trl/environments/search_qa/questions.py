"""The task rows of Search-QA: which sets, how many of each, in which columns."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...errors import ConfigurationError
from .columns import canonical_family, question_row
from .sources import EMBEDDED, default_sets, read_records


def load_questions(
    split: str = "train",
    *,
    sets: Sequence[str] | None = None,
    source: str | Path = EMBEDDED,
    limit: int | None = None,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Task rows with the columns `task_id`, `question`, `golden_answers`, `family` and `split`.

    Args:
        split (`str`, *optional*, defaults to `"train"`):
            `"train"` or `"test"`. A public set without a test part gives its development part, as is the habit.
        sets (`Sequence[str]`, *optional*):
            Names of the sets. By default both embedded sets; of public sources NQ and HotpotQA for `"train"` and all
            seven otherwise; of a single file all sets in it.
        source (`str` or `Path`, *optional*, defaults to `"embedded"`):
            `"embedded"`, a file (JSON lines or parquet), a folder of such files, or a dataset repository:
            `PeterJinGo/nq_hotpotqa_train` and copies of it, or `RUC-NLPIR/FlashRAG_datasets`.
        limit (`int`, *optional*):
            At most so many questions of each set, drawn at random but always the same for a seed.
        seed (`int`, *optional*, defaults to `0`):
            Seed of that draw.
    """
    if isinstance(sets, str):
        raise ConfigurationError(f"`sets` is the string {sets!r}, it must be a list of names.")
    if limit is not None and limit < 1:
        raise ConfigurationError(f"`limit` ({limit}) must be at least 1, or None for all questions.")
    source = str(source)
    families = default_sets(source, split) if sets is None else tuple(dict.fromkeys(map(canonical_family, sets)))
    rows: list[dict[str, Any]] = []
    for family, records in read_records(source, families, split).items():
        of_set = [
            question_row(record, family=family, split=split, position=position)
            for position, record in enumerate(records)
        ]
        if not of_set:
            raise ConfigurationError(f"{source!r} holds no question of set {family!r}, split {split!r}.")
        rows.extend(_draw(_with_unique_ids(of_set), limit, f"{family} {seed}"))
    return rows


def _with_unique_ids(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows, a repeated id told apart by its count: results are kept by `task_id`."""
    seen: dict[str, int] = {}
    for row in rows:
        count = seen[row["task_id"]] = seen.get(row["task_id"], 0) + 1
        if count > 1:
            row["task_id"] = f"{row['task_id']}#{count}"
    return rows


def _draw(rows: list[dict[str, Any]], limit: int | None, seed: str) -> list[dict[str, Any]]:
    if limit is None or limit >= len(rows):
        return rows
    # Each set has a draw of its own, so that leaving a set out changes nothing for the others. Rows are ordered by a
    # random key each: Python promises to keep the sequence of `random()`, not that of `sample()`.
    keys = random.Random(seed)
    chosen = sorted(sorted((keys.random(), index) for index in range(len(rows)))[:limit], key=lambda pair: pair[1])
    return [rows[index] for _, index in chosen]
