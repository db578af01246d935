"""Where questions come from: the embedded world, files on disk, or the public dataset repositories.

A source gives raw records by set; [`~taspo_trl.environments.search_qa.columns`] makes task rows of them. A file or
table that holds several sets is read once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from ...errors import ConfigurationError
from .columns import FAMILY_COLUMNS, canonical_family, record_family
from .jsonl import is_jsonl, read_jsonl
from .world import build_questions, build_world


EMBEDDED = "embedded"
SEARCH_R1 = "PeterJinGo/nq_hotpotqa_train"
"""One table for all sets, told apart by its column `data_source`."""
FLASHRAG = "RUC-NLPIR/FlashRAG_datasets"
"""One configuration for each set."""

QUESTION_SETS = ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle")
TRAIN_SETS = ("nq", "hotpotqa")
EMBEDDED_SETS = ("one_hop", "two_hop")

_ROW_COLUMNS = ("id", "task_id", "split", "question", "golden_answers", "answers", "answer")
_USEFUL_COLUMNS = frozenset((*FAMILY_COLUMNS, *_ROW_COLUMNS, "reward_model", "extra_info"))
# A public set is evaluated on its test part, else on its development part, else on what there is.
_SPLIT_NAMES = {"test": ("test", "dev", "validation", "train"), "validation": ("validation", "dev")}

Record = Mapping[str, Any]


def default_sets(source: str, split: str) -> tuple[str, ...]:
    """The sets of a split where none are named.

    Both of the embedded ones, those that the records of a single file name, else NQ and HotpotQA to train on and all
    seven otherwise.
    """
    if source == EMBEDDED:
        return EMBEDDED_SETS
    path = Path(source).expanduser()
    if path.is_file():
        return tuple(_by_family(_read_file(path), _stem(path), split))
    return TRAIN_SETS if split == "train" else QUESTION_SETS


def read_records(source: str, families: Sequence[str], split: str) -> dict[str, list[Record]]:
    """The raw records of some sets, under their names.

    Args:
        source (`str`):
            `"embedded"`, the path of a file or folder, or a dataset repository on the Hugging Face Hub.
        families (`Sequence[str]`):
            Names of the sets.
        split (`str`):
            Name of the split.
    """
    if source == EMBEDDED:
        return {family: _embedded(family, split) for family in families}
    path = Path(source).expanduser()
    if path.exists():
        return _local(path, families, split)
    names_a_file = is_jsonl(path) or path.suffix == ".parquet" or source.startswith((".", "/", "~"))
    if source.count("/") == 1 and not names_a_file:
        return {family: list(_hub(source, family, split)) for family in families}
    raise ConfigurationError(
        f"There is no question file or folder {source!r}. Give `source` a path, a dataset repository such as "
        f"{SEARCH_R1!r}, or {EMBEDDED!r}."
    )


@lru_cache(maxsize=1)
def _embedded_questions() -> dict[str, list[Record]]:
    return {
        split: [
            {
                "id": position,
                "question": asked.question,
                "golden_answers": asked.golden_answers,
                "family": asked.family,
            }
            for position, asked in enumerate(questions)
        ]
        for split, questions in build_questions(build_world()).items()
    }


def _embedded(family: str, split: str) -> list[Record]:
    by_split = _embedded_questions()
    if family not in EMBEDDED_SETS or split not in by_split:
        raise ConfigurationError(
            f"The embedded questions have no set {family!r} with a split {split!r}. Sets: {', '.join(EMBEDDED_SETS)}; "
            f"splits: {', '.join(by_split)}. For the public sets, give `source`."
        )
    return [record for record in by_split[split] if record["family"] == family]


def _local(path: Path, families: Sequence[str], split: str) -> dict[str, list[Record]]:
    files = {family: path if path.is_file() else _find_file(path, family, split) for family in families}
    families_in: dict[Path, list[str]] = defaultdict(list)
    for family, file in files.items():
        families_in[file].append(family)
    found: dict[str, list[Record]] = {}
    for file, wanted in families_in.items():
        # Records that do not name their set belong to the set that the file is called after, or was found for.
        unnamed = wanted[0] if len(wanted) == 1 else _stem(file)
        in_file = _by_family(_read_file(file), unnamed, split)
        found |= {family: in_file.get(family, []) for family in wanted}
    return {family: found[family] for family in families}


def _by_family(records: Iterable[Record], unnamed: str, split: str) -> dict[str, list[Record]]:
    """Records by set, without those that say they belong to another split."""
    by_family: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        if record.get("split") in (None, split):
            by_family[record_family(record) or unnamed].append(record)
    return by_family


def _stem(path: Path) -> str:
    return canonical_family(path.name.split(".")[0])


def _find_file(folder: Path, family: str, split: str) -> Path:
    """The file of a set and split below `folder`: by set and split, by set alone, or one table by split."""
    splits = _SPLIT_NAMES.get(split, (split,))
    stems = [*(f"{family}/{name}" for name in splits), family, *splits]
    for stem in stems:
        files = sorted(file for file in folder.glob(f"{stem}.*") if is_jsonl(file) or file.suffix == ".parquet")
        if files:
            return files[0]
    raise ConfigurationError(
        f"{str(folder)!r} has no questions of set {family!r}, split {split!r}. Looked for .jsonl and .parquet files "
        f"called {', '.join(stems)}. Name fewer `sets`, or add the file."
    )


def _read_file(path: Path) -> Iterable[Record]:
    if path.suffix == ".parquet":
        return _read_parquet(path)
    if is_jsonl(path):
        return read_jsonl(path)
    raise ConfigurationError(
        f"Cannot read questions from {str(path)!r}: use JSON lines (.jsonl, also .gz, .bz2 or .xz) or .parquet."
    )


def _read_parquet(path: Path) -> Iterator[Record]:
    import pyarrow.parquet as pq  # comes with `datasets`

    with pq.ParquetFile(path) as table:
        columns = [name for name in table.schema_arrow.names if name in _USEFUL_COLUMNS]
        for batch in table.iter_batches(columns=columns):
            yield from batch.to_pylist()


def _hub(repository: str, family: str, split: str) -> Iterable[Record]:
    from datasets import get_dataset_split_names, load_dataset

    config = family if repository == FLASHRAG else None
    available = get_dataset_split_names(repository, config)
    chosen = next((name for name in _SPLIT_NAMES.get(split, (split,)) if name in available), None)
    if chosen is None:
        raise ConfigurationError(
            f"The dataset {repository!r} has no split {split!r} of set {family!r}, only {', '.join(available)}."
        )
    table = load_dataset(repository, config, split=chosen)
    table = table.select_columns([name for name in table.column_names if name in _USEFUL_COLUMNS])
    family_column = next((name for name in FAMILY_COLUMNS if name in table.column_names), None)
    if family_column is None:
        return table
    return table.select(
        [position for position, name in enumerate(table[family_column]) if canonical_family(str(name)) == family]
    )
