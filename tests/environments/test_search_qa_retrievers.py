"""Retrievers in this process: built once, shared, saved and reloaded, opened by what a user writes."""

import builtins
import json
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taspo_trl.environments import SearchQAEnvironment
from taspo_trl.environments.search_qa.passages import Passage
from taspo_trl.environments.search_qa.retrievers import (
    BatchingRetriever,
    BM25Retriever,
    DenseRetriever,
    HTTPRetriever,
    SentenceTransformerEncoder,
    open_retriever,
    read_corpus,
)
from taspo_trl.environments.search_qa.retrievers import open as opening
from taspo_trl.environments.search_qa.retrievers.bm25 import best_positions
from taspo_trl.environments.search_qa.retrievers.store import PassageStore, write_corpus
from taspo_trl.environments.search_qa.world import build_passages, build_questions, build_world
from taspo_trl.errors import ConfigurationError, MissingDependencyError
from tests.data import real_data
from tests.environments.search_qa_helpers import PASSAGES, BagOfWords, ids


@pytest.fixture
def bm25():
    pytest.importorskip("bm25s")
    return BM25Retriever.build(PASSAGES)


@pytest.fixture(autouse=True)
def separate_caches(tmp_path, monkeypatch):
    monkeypatch.setenv("TASPO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(opening, "_opened", {})


# --- passages on disk ------------------------------------------------------------------------------------------------


def test_a_store_gives_back_every_passage_by_position(tmp_path):
    path = tmp_path / "passages.jsonl"
    passages = [Passage(p.passage_id, p.title, p.text) for p in PASSAGES]
    write_corpus(passages, path)
    store = PassageStore(path)
    assert list(store) == passages
    assert store[-1] == passages[-1]
    assert store[1:3] == passages[1:3]
    with pytest.raises(IndexError):
        store[4]


def test_a_store_notices_that_its_file_was_changed(tmp_path):
    path = tmp_path / "passages.jsonl"
    write_corpus(PASSAGES, path)
    offsets = np.array([0, 10])
    with pytest.raises(ConfigurationError, match="Build the index again"):
        PassageStore(path, offsets)


def test_corpora_of_both_public_shapes_are_read(tmp_path):
    path = tmp_path / "corpus.jsonl"
    records = [{"id": 0, "contents": '"T"\nx'}, {"id": "1", "title": "U", "text": "y"}, {"text": "z"}]
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    assert list(read_corpus(path)) == [Passage("0", "T", "x"), Passage("1", "U", "y"), Passage("2", "", "z")]
    path.write_text('{"id": 0, "body": "x"}\n', encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"Passage '0' has the fields \['body', 'id'\]"):
        list(read_corpus(path))


# --- BM25 ------------------------------------------------------------------------------------------------------------


def test_bm25_finds_what_shares_words(bm25):
    assert ids(bm25.search(["who opened the Curlew Bridge", "herons' nests"], 1)) == [["a"], ["c"]]


@pytest.mark.parametrize("query", ["jose rodriguez", "José Rodríguez", "JOSE\u0301 RODRI\u0301GUEZ", "北京"])
def test_accents_case_and_spelling_of_unicode_do_not_matter(bm25, query):
    assert ids(bm25.search([query], 3)) == [["b"]]


@pytest.mark.parametrize("query", ["", "   ", "the of and", "zyzzyva", "?!", "\ud83d\ude00", "a" * 5000])
def test_a_query_without_a_known_word_finds_nothing(bm25, query):
    assert bm25.search([query, "candles", query], 2)[0] == []
    assert ids(bm25.search([query, "candles", query], 2)) == [[], ["d"], []]


def test_hits_come_best_first_with_their_scores_and_are_at_most_topk(bm25):
    (hits,) = bm25.search(["the river and the bridge"], 2)
    assert [hit.passage_id for hit in hits] == ["a", "c"]
    assert hits[0].score > hits[1].score > 0
    assert len(bm25.search(["river"], 1)[0]) == 1
    assert len(bm25.search(["river"], 100)[0]) == 2  # more than the corpus holds


@pytest.mark.parametrize(
    ("scores", "topk", "expected"),
    [
        ([0.0, 2.0, 0.0, 3.0, 1.0], 2, [3, 1]),
        ([0.0, 2.0, 0.0, 3.0, 1.0], 9, [3, 1, 4]),
        ([1.0, 2.0, 1.0, 1.0, 2.0], 3, [1, 4, 0]),  # ties stand in the order of the corpus, also at the limit
        ([0.0, 0.0], 3, []),
        ([], 3, []),
    ],
)
def test_the_best_positive_scores_are_selected(scores, topk, expected):
    assert best_positions(np.asarray(scores, dtype=np.float32), topk).tolist() == expected


@settings(deadline=None)
@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0]), max_size=30), st.integers(1, 8))
def test_selection_equals_a_full_sort(scores, topk):
    ranked = sorted((index for index, score in enumerate(scores) if score > 0), key=lambda index: -scores[index])
    assert best_positions(np.asarray(scores), topk).tolist() == ranked[:topk]


def test_no_query_is_no_work(bm25):
    assert bm25.search([], 3) == []


def test_the_result_does_not_depend_on_the_batch(bm25):
    queries = ["river", "painter north", "", "candles", "bridge opened 1801"]
    together = bm25.search(queries, 3)
    assert together == [bm25.search([query], 3)[0] for query in queries]


def test_an_index_is_saved_mapped_and_shared(tmp_path):
    pytest.importorskip("bm25s")
    folder = tmp_path / "index"
    built = BM25Retriever.build(PASSAGES, folder)
    loaded = BM25Retriever.load(folder)
    queries = ["curlew bridge", "rodriguez", "candles", "nothing"]
    expected = BM25Retriever.build(PASSAGES).search(queries, 3)
    assert built.search(queries, 3) == loaded.search(queries, 3) == expected
    # On disk, not copied: what a process maps, all processes share.
    assert isinstance(loaded._index.scores["data"], np.memmap)
    sent = pickle.loads(pickle.dumps(loaded))
    assert sent.search(queries, 3) == expected
    assert [path.name for path in tmp_path.iterdir()] == ["index"]  # no drafts left behind


def test_an_index_in_memory_is_not_sent_to_another_process(bm25):
    with pytest.raises(ConfigurationError, match="folder"):
        pickle.dumps(bm25)


def test_an_existing_index_is_never_replaced_or_taken_for_another(tmp_path):
    pytest.importorskip("bm25s")
    BM25Retriever.build(PASSAGES, tmp_path / "index")
    with pytest.raises(ConfigurationError, match="already holds an index"):
        BM25Retriever.build(PASSAGES[:1], tmp_path / "index")


def test_broken_index_folders_are_explained(tmp_path):
    pytest.importorskip("bm25s")
    with pytest.raises(ConfigurationError, match="no index folder"):
        BM25Retriever.load(tmp_path)
    folder = tmp_path / "index"
    BM25Retriever.build(PASSAGES, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "version": 99}))
    with pytest.raises(ConfigurationError, match="version 99"):
        BM25Retriever.load(folder)
    (folder / "manifest.json").write_text(json.dumps({**manifest, "kind": "dense"}))
    with pytest.raises(ConfigurationError, match="kind 'dense'"):
        BM25Retriever.load(folder)
    with pytest.raises(ConfigurationError, match="no passage"):
        BM25Retriever.build([])


def test_a_build_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    pytest.importorskip("bm25s")
    from taspo_trl.environments.search_qa.retrievers import bm25 as module

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(module, "write_corpus", fail)
    with pytest.raises(OSError, match="disk full"):
        BM25Retriever.build(PASSAGES, tmp_path / "index")
    assert list(tmp_path.iterdir()) == []


def test_the_embedded_retriever_finds_the_first_passage_of_nearly_every_question():
    pytest.importorskip("bm25s")
    questions = [question for split in build_questions(build_world()).values() for question in split]
    hits = open_retriever().search([question.question for question in questions], 3)
    found = [
        any(hit.title == question.evidence[0] for hit in of_query)
        for question, of_query in zip(questions, hits, strict=True)
    ]
    assert sum(found) / len(found) > 0.95


@pytest.mark.parametrize(("family", "least"), [("hotpotqa", 0.64), ("2wikimultihopqa", 0.57), ("musique", 0.40)])
def test_recall_at_3_on_public_questions(family, least, public_index):
    lines = real_data("searchqa", f"{family}.jsonl").read_bytes().splitlines()
    records = [record for record in map(json.loads, lines) if record.get("supporting")]
    hits = ids(public_index.search([record["question"] for record in records], 3))
    recalls = [
        len(set(found) & set(record["supporting"])) / len(record["supporting"])
        for found, record in zip(hits, records, strict=True)
    ]
    assert len(records) > 100
    assert sum(recalls) / len(recalls) >= least


@pytest.fixture(scope="module")
def public_index():
    pytest.importorskip("bm25s")
    return BM25Retriever.build(list(read_corpus(real_data("searchqa", "corpus_mini.jsonl.xz"))))


# --- opening ---------------------------------------------------------------------------------------------------------


def test_all_episodes_of_a_process_share_one_index():
    pytest.importorskip("bm25s")
    with ThreadPoolExecutor(16) as threads:
        opened = list(threads.map(lambda _: open_retriever("embedded"), range(16)))
    assert all(retriever is opened[0] for retriever in opened)


def test_a_corpus_file_is_indexed_once_and_anew_when_it_changes(tmp_path, monkeypatch):
    pytest.importorskip("bm25s")
    corpus = tmp_path / "corpus.jsonl"
    write_corpus(PASSAGES, corpus)
    first = open_retriever(corpus)
    assert ids(first.search(["candles"], 1)) == [["d"]]
    folders = list((tmp_path / "cache" / "search_qa").iterdir())
    assert len(folders) == 1

    def refuse(*_):
        raise AssertionError("the index was built again")

    monkeypatch.setattr(opening, "_opened", {})  # as in another process
    with monkeypatch.context() as patch:
        patch.setattr(opening, "read_corpus", refuse)
        assert ids(open_retriever(str(corpus)).search(["candles"], 1)) == [["d"]]
    write_corpus(PASSAGES[:3], corpus)
    monkeypatch.setattr(opening, "_opened", {})
    assert open_retriever(corpus).search(["candles"], 1) == [[]]


def test_an_index_folder_is_opened_by_its_kind(tmp_path):
    pytest.importorskip("bm25s")
    BM25Retriever.build(PASSAGES, tmp_path / "index")
    environment = SearchQAEnvironment(tmp_path / "index", topk=1)
    environment.reset(seed=0, question="Q?", golden_answers=["x"])
    assert "Doc 1: Curlew Bridge" in environment.step("<search>curlew</search>").observation


def test_addresses_say_their_format():
    pytest.importorskip("aiohttp")
    batch = open_retriever("http://127.0.0.1:9/x")
    assert isinstance(batch, BatchingRetriever)
    assert batch.retriever.wire_format == "batch"
    single = open_retriever("single+http://127.0.0.1:9/x")
    assert isinstance(single, HTTPRetriever)
    assert single.wire_format == "single"


@pytest.mark.parametrize(
    ("module", "make", "message"),
    [
        ("bm25s", lambda: SearchQAEnvironment(), r"bm25s.*\.\[search\]"),
        ("Stemmer", lambda: SearchQAEnvironment(), r"Stemmer.*\.\[search\]"),
        ("aiohttp", lambda: SearchQAEnvironment("http://127.0.0.1:9"), r"aiohttp.*\.\[search\]"),
        ("faiss", lambda: DenseRetriever.build(PASSAGES, encoder=BagOfWords()), r"faiss.*\.\[search-dense\]"),
        (
            "sentence_transformers",
            lambda: SentenceTransformerEncoder().encode(["x"], "query"),
            r"sentence-transformers.*\.\[search-dense\]",
        ),
    ],
)
def test_a_missing_package_is_named_with_what_installs_it(monkeypatch, module, make, message):
    real_import = builtins.__import__

    def without(name, *args, **kwargs):
        if name.split(".")[0] == module:
            raise ImportError(f"No module named {name!r}", name=name)
        return real_import(name, *args, **kwargs)

    if module != "bm25s":
        pytest.importorskip("bm25s")
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingDependencyError, match=message):
        make()


def test_larger_corpora_are_found_as_well():
    pytest.importorskip("bm25s")
    passages = build_passages(build_world(scale=4))
    retriever = BM25Retriever.build(passages)
    hits = retriever.search([passage.title for passage in passages[::37]], 1)
    assert [of_query[0].title for of_query in hits] == [passage.title for passage in passages[::37]]
