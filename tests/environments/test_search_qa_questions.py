"""Questions from every source end up in the same five columns."""

import gzip
import json
import lzma

import pytest

from taspo_trl.environments import SearchQAEnvironment
from taspo_trl.environments.search_qa import FLASHRAG, QUESTION_SETS, SEARCH_R1, load_questions
from taspo_trl.environments.search_qa.columns import canonical_family, question_row, record_family
from taspo_trl.errors import ConfigurationError
from tests.data import real_data


def write_lines(path, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    opener = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
    with opener(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    return path


def write_parquet(path, records):
    arrow = pytest.importorskip("pyarrow")
    path.parent.mkdir(parents=True, exist_ok=True)
    pytest.importorskip("pyarrow.parquet").write_table(arrow.Table.from_pylist(records), path)
    return path


def flashrag(number, prefix="q"):
    return {"id": f"test_{number}", "question": f"{prefix} {number}", "golden_answers": [f"a{number}"]}


def search_r1(number, family, split="test"):
    """A row in the columns of the public table for all sets."""
    question = f"{family} {number}?"
    return {
        "id": f"{split}_{number}",
        "question": question,
        "golden_answers": [f"a{number}", "b"],
        "data_source": family,
        "prompt": [{"role": "user", "content": f"Answer ... {question}"}],
        "ability": "fact-reasoning",
        "reward_model": {"ground_truth": {"target": [f"a{number}", "b"]}, "style": "rule"},
        "extra_info": {"index": number, "split": split},
        "metadata": None,
    }


# --- columns ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "identifier", "question", "answers"),
    [
        ({"id": "7", "question": "Who", "golden_answers": ["x", "y"]}, "nq/test/7", "Who?", ["x", "y"]),
        ({"question": " Who? ", "answer": "x"}, "nq/test/3", "Who?", ["x"]),
        ({"question": "Who?", "answers": ["x"]}, "nq/test/3", "Who?", ["x"]),
        ({"question": "Who?", "answers": {"text": ["x"], "answer_start": [4]}}, "nq/test/3", "Who?", ["x"]),
        ({"question": "Who?", "answer": 1999}, "nq/test/3", "Who?", ["1999"]),
        ({"question": "Who?", "golden_answers": ["x", None, " ", "x", "y "]}, "nq/test/3", "Who?", ["x", "y"]),
        ({"id": 0, "question": "Who?", "answer": "x"}, "nq/test/0", "Who?", ["x"]),
        ({"task_id": "mine", "id": 0, "question": "Who?", "answer": "x"}, "mine", "Who?", ["x"]),
        (
            {
                "data_source": "searchR1_nq",
                "reward_model": {"ground_truth": {"target": ["x"]}},
                "extra_info": {"index": 5, "question": "Who?"},
            },
            "nq/test/5",
            "Who?",
            ["x"],
        ),
        (
            {"question": "Who?", "reward_model": {"ground_truth": "x"}, "extra_info": None, "id": None},
            "nq/test/3",
            "Who?",
            ["x"],
        ),
    ],
)
def test_records_of_every_public_shape_become_rows(record, identifier, question, answers):
    assert question_row(record, family="nq", split="test", position=3) == {
        "task_id": identifier,
        "question": question,
        "golden_answers": answers,
        "family": "nq",
        "split": "test",
    }


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"text": "Who?"}, "no question"),
        ({"question": "  ", "answer": "x"}, "no question"),
        ({"question": "Who?"}, "no answer"),
        ({"question": "Who?", "golden_answers": []}, "no answer"),
        ({"question": "Who?", "golden_answers": ["", None]}, "no answer"),
    ],
)
def test_a_record_that_cannot_be_asked_or_judged_is_an_error_with_its_place(record, message):
    with pytest.raises(ConfigurationError, match=rf"Record 3 of `nq`.*{message}"):
        question_row(record, family="nq", split="test", position=3)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NQ", "nq"),
        ("searchR1_hotpotqa", "hotpotqa"),
        ("2WikiMultiHopQA", "2wikimultihopqa"),
        ("2wiki", "2wikimultihopqa"),
        ("mine", "mine"),
    ],
)
def test_sets_have_one_spelling(name, expected):
    assert canonical_family(name) == expected
    assert record_family({"data_source": name}) == expected


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mine.jsonl", "mine.jsonl.gz", "mine.jsonl.xz", "mine.parquet"])
def test_one_file_is_one_set_called_after_it(tmp_path, name):
    records = [flashrag(0), flashrag(1, "été")]
    path = tmp_path / name
    (write_parquet if name.endswith("parquet") else write_lines)(path, records)
    rows = load_questions("test", source=path)
    assert [row["question"] for row in rows] == ["q 0?", "été 1?"]
    assert {row["family"] for row in rows} == {"mine"}


def test_a_file_may_hold_several_sets_and_splits(tmp_path):
    records = [
        {**flashrag(0), "family": "nq", "split": "train"},
        {**flashrag(1), "family": "nq", "split": "test"},
        {**flashrag(2), "family": "mine", "split": "train"},
    ]
    path = write_lines(tmp_path / "all.jsonl", records)
    assert [(row["family"], row["question"]) for row in load_questions("train", source=path)] == [
        ("nq", "q 0?"),
        ("mine", "q 2?"),
    ]
    assert [row["question"] for row in load_questions("test", source=path)] == ["q 1?"]


def test_a_folder_is_searched_by_set_and_split_then_by_set_then_by_split(tmp_path):
    write_lines(tmp_path / "nq" / "train.jsonl", [flashrag(1)])
    write_lines(tmp_path / "nq" / "dev.jsonl", [flashrag(2)])
    write_lines(tmp_path / "hotpotqa.jsonl", [flashrag(3)])
    write_parquet(tmp_path / "test.parquet", [search_r1(4, "musique"), search_r1(5, "popqa")])
    assert [row["question"] for row in load_questions("train", source=tmp_path)] == ["q 1?", "q 3?"]
    rows = load_questions("test", source=tmp_path, sets=["popqa", "nq", "musique"])
    # NQ has no test part in this folder; its development part is used, as is the habit.
    assert [row["question"] for row in rows] == ["popqa 5?", "q 2?", "musique 4?"]


def test_the_public_table_in_a_folder_gives_its_sets(tmp_path):
    write_parquet(tmp_path / "train.parquet", [search_r1(i, ("nq", "hotpotqa")[i % 2], "train") for i in range(6)])
    rows = load_questions("train", source=tmp_path)
    assert [row["family"] for row in rows] == ["nq"] * 3 + ["hotpotqa"] * 3
    assert rows[0] == {
        "task_id": "nq/train/train_0",
        "question": "nq 0?",
        "golden_answers": ["a0", "b"],
        "family": "nq",
        "split": "train",
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"source": "missing.jsonl"}, "no question file"),
        ({"source": "./missing"}, "no question file"),
        ({"source": "missing"}, "no question file"),
        ({"sets": "nq"}, "list of names"),
        ({"sets": ["nq"]}, "no set 'nq'"),
        ({"split": "dev"}, "splits: train, test"),
        ({"limit": 0}, "limit"),
    ],
)
def test_what_cannot_be_loaded_is_explained(arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        load_questions(**arguments)


def test_a_missing_set_names_the_files_that_were_looked_for(tmp_path):
    write_lines(tmp_path / "nq.jsonl", [flashrag(0)])
    with pytest.raises(ConfigurationError, match=r"hotpotqa/train, hotpotqa, train"):
        load_questions("train", source=tmp_path)


def test_a_broken_line_is_named(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"question": "Q?", "answer": "x"}\n\n{"question": \n', encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"mine.jsonl, line 3: not JSON"):
        load_questions("test", source=path)


def test_ids_are_unique_even_where_a_file_repeats_them(tmp_path):
    path = write_lines(tmp_path / "mine.jsonl", [flashrag(1, "a"), flashrag(1, "b"), flashrag(1, "c")])
    assert [row["task_id"] for row in load_questions("test", source=path)] == [
        "mine/test/test_1",
        "mine/test/test_1#2",
        "mine/test/test_1#3",
    ]


def test_a_limit_draws_the_same_questions_of_each_set_whatever_the_other_sets(tmp_path):
    for family in ("nq", "hotpotqa"):
        write_lines(tmp_path / f"{family}.jsonl", [flashrag(i, family) for i in range(50)])
    both = load_questions("train", source=tmp_path, limit=5)
    alone = load_questions("train", source=tmp_path, sets=["hotpotqa"], limit=5)
    assert len(both) == 10
    assert both[5:] == alone
    numbers = [int(row["question"].split()[1].rstrip("?")) for row in alone]
    assert numbers == sorted(numbers)
    assert alone != load_questions("train", source=tmp_path, sets=["hotpotqa"], limit=5, seed=1)
    assert len(load_questions("train", source=tmp_path, limit=99)) == 100


# --- datasets --------------------------------------------------------------------------------------------------------


def test_the_embedded_dataset_has_the_columns_that_reset_takes():
    pytest.importorskip("datasets")
    dataset = SearchQAEnvironment.dataset("train")
    assert dataset.column_names == ["task_id", "question", "golden_answers", "family", "split"]
    assert len(dataset) == 180
    assert len(set(dataset["task_id"])) == 180
    for row in dataset:
        assert all(value for value in row.values())  # nothing is padded with None on the way through Arrow


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """Sends requests for a public repository to a local folder of the same shape; the rest is the real library."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folders = {}
    for name in ("load_dataset", "get_dataset_split_names"):
        real = getattr(datasets, name)
        monkeypatch.setattr(
            datasets, name, lambda path, *args, _real=real, **kwargs: _real(str(folders[path]), *args, **kwargs)
        )
    return folders


def test_the_public_table_is_read_from_its_repository(hub, tmp_path):
    hub[SEARCH_R1] = tmp_path / "repository"
    write_parquet(
        hub[SEARCH_R1] / "train.parquet", [search_r1(i, ("nq", "hotpotqa")[i % 2], "train") for i in range(4)]
    )
    write_parquet(hub[SEARCH_R1] / "test.parquet", [search_r1(i, QUESTION_SETS[i % 7]) for i in range(14)])
    train = SearchQAEnvironment.dataset("train", source=SEARCH_R1)
    assert train["family"] == ["nq", "nq", "hotpotqa", "hotpotqa"]
    assert train[1]["golden_answers"] == ["a2", "b"]
    test = SearchQAEnvironment.dataset("test", source=SEARCH_R1)
    assert list(dict.fromkeys(test["family"])) == list(QUESTION_SETS)
    assert len(test) == 14
    assert len(SearchQAEnvironment.dataset("test", source=SEARCH_R1, sets=["popqa"], limit=1)) == 1


def test_the_public_repository_with_a_configuration_for_each_set_is_read(hub, tmp_path):
    folder = hub[FLASHRAG] = tmp_path / "repository"
    write_lines(folder / "nq" / "train.jsonl", [flashrag(0, "nq train")])
    write_lines(folder / "nq" / "test.jsonl", [flashrag(1, "nq test")])
    write_lines(folder / "musique" / "dev.jsonl", [{**flashrag(2, "musique dev"), "metadata": {"type": "2hop"}}])
    (folder / "README.md").write_text(
        """---
configs:
- config_name: nq
  data_files:
  - {split: train, path: nq/train.jsonl}
  - {split: test, path: nq/test.jsonl}
- config_name: musique
  data_files:
  - {split: dev, path: musique/dev.jsonl}
---
""",
        encoding="utf-8",
    )
    rows = load_questions("test", source=FLASHRAG, sets=["nq", "musique"])
    assert [(row["family"], row["question"]) for row in rows] == [("nq", "nq test 1?"), ("musique", "musique dev 2?")]
    with pytest.raises(ConfigurationError, match="no split 'train' of set 'musique', only dev"):
        load_questions("train", source=FLASHRAG, sets=["musique"])


# --- public data -----------------------------------------------------------------------------------------------------


def test_all_seven_public_files_load():
    folder = real_data("searchqa")
    rows = load_questions("test", source=folder)
    assert list(dict.fromkeys(row["family"] for row in rows)) == list(QUESTION_SETS)
    lines = sum(len((folder / f"{family}.jsonl").read_bytes().splitlines()) for family in QUESTION_SETS)
    assert len(rows) == lines
    assert len({row["task_id"] for row in rows}) == lines
    assert all(row["question"].endswith("?") and row["golden_answers"] for row in rows)
