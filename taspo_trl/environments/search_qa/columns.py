"""One record of a public question file -> one task row.

Pure. The public copies of the seven sets agree on the content and differ in the columns; this is the one place that
knows their shapes: FlashRAG (`question`, `golden_answers`), Search-R1 (the same and `data_source`), and the parquet
files made from it for training (`extra_info`, `reward_model`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...errors import ConfigurationError


FAMILY_COLUMNS = ("family", "data_source", "dataset")

_PREFIX = "searchr1_"
_ALIASES = {
    "natural_questions": "nq",
    "nq_open": "nq",
    "trivia_qa": "triviaqa",
    "hotpot_qa": "hotpotqa",
    "2wiki": "2wikimultihopqa",
    "2wikimultihop": "2wikimultihopqa",
}


def canonical_family(name: str) -> str:
    """The set's name as this package spells it; unknown names stay as they are."""
    lowered = name.strip().lower().removeprefix(_PREFIX)
    return _ALIASES.get(lowered, lowered)


def record_family(record: Mapping[str, Any]) -> str | None:
    """The set that a record says it belongs to; None when it does not say."""
    name = next((record[column] for column in FAMILY_COLUMNS if record.get(column)), None)
    return None if name is None else canonical_family(str(name))


def question_row(record: Mapping[str, Any], *, family: str, split: str, position: int) -> dict[str, Any]:
    """The task row of a record: `task_id`, `question`, `golden_answers`, `family`, `split`.

    Args:
        record (`Mapping[str, Any]`):
            One line or row of a question file.
        family (`str`):
            Name of the set.
        split (`str`):
            Name of the split.
        position (`int`):
            Where the record stands in its file, for an id where it has none and for error messages.
    """
    extra = record.get("extra_info") or {}
    question = str(record.get("question") or extra.get("question") or "").strip()
    if not question:
        raise ConfigurationError(
            f"Record {position} of `{family}` has no question, only the columns {sorted(record)}. "
            "Name the column `question`."
        )
    answers = _clean_answers(_raw_answers(record))
    if not answers:
        raise ConfigurationError(
            f"Record {position} of `{family}` ({question!r}) has no answer. Give `golden_answers`, a list of strings."
        )
    identifier = next((value for value in (record.get("id"), extra.get("index")) if value is not None), position)
    return {
        "task_id": record.get("task_id") or f"{family}/{split}/{identifier}",
        # The public training files end every question with a question mark; sets without one would look different.
        "question": question if question.endswith("?") else f"{question}?",
        "golden_answers": answers,
        "family": family,
        "split": split,
    }


def _raw_answers(record: Mapping[str, Any]) -> Any:
    for column in ("golden_answers", "answers", "answer"):
        if record.get(column) is not None:
            return record[column]
    reward_model = record.get("reward_model") or {}
    ground_truth = reward_model.get("ground_truth")
    return ground_truth.get("target") if isinstance(ground_truth, Mapping) else ground_truth


def _clean_answers(raw: Any) -> list[str]:
    """Strings without blanks and repetitions, in their order."""
    if raw is None:
        return []
    if isinstance(raw, Mapping):  # SQuAD's shape: {"text": [...], ...}
        return _clean_answers(raw.get("text"))
    if isinstance(raw, str) or not isinstance(raw, Iterable):
        raw = [raw]
    return list(dict.fromkeys(text for answer in raw if answer is not None and (text := str(answer).strip())))
