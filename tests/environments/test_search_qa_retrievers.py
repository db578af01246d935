"""Retrievers in this process: built once, shared, saved and reloaded; searches of many threads become batches."""

import builtins
import json
import pickle
import re
import threading
import time
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
    RetrieverError,
    SentenceTransformerEncoder,
    open_retriever,
    read_corpus,
)
from taspo_trl.environments.search_qa.retrievers import open as opening
from taspo_trl.environments.search_qa.retrievers.bm25 import best_positions
from taspo_trl.environments.search_qa.retrievers.store import PassageStore, write_corpus
from taspo_trl.environments.search_qa.world import build_passages, build_questions, build_world
from taspo_trl.errors import ConfigurationError, MissingDependencyError, ServiceError
from tests.data import real_data


PASSAGES = [
    Passage("a", "Curlew Bridge", "The bridge over the river was opened in 1801."),
    Passage("b", "José Rodríguez", "A painter from the north, “born” in 1850. 北京 is elsewhere."),
    Passage("c", "Herons", "Herons nest on the lower course of the river.\nThey eat eels."),
    Passage("d", "", "A passage without a title about candles."),
]


def ids(hits):
    return [[passage.passage_id for passage in of_query] for of_query in hits]


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
        ("bm25s", lambda: SearchQAEnvironment(), r"bm25s.*taspo_trl\[search\]"),
        ("Stemmer", lambda: SearchQAEnvironment(), r"Stemmer.*taspo_trl\[search\]"),
        ("aiohttp", lambda: SearchQAEnvironment("http://127.0.0.1:9"), r"aiohttp.*taspo_trl\[search\]"),
        ("faiss", lambda: DenseRetriever.build(PASSAGES, encoder=BagOfWords()), r"faiss.*taspo_trl\[search-dense\]"),
        (
            "sentence_transformers",
            lambda: SentenceTransformerEncoder().encode(["x"], "query"),
            r"sentence-transformers.*taspo_trl\[search-dense\]",
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


# --- batching --------------------------------------------------------------------------------------------------------


class EchoRetriever:
    """Answers each query with a passage of its name; records the batches; can be slow or fail."""

    def __init__(self, seconds=0.0, fail=lambda queries: None):
        self.seconds = seconds
        self.fail = fail
        self.batches = []
        self.num_running = 0
        self.most_running = 0
        self._lock = threading.Lock()

    def search(self, queries, topk):
        with self._lock:
            self.batches.append((list(queries), topk))
            self.num_running += 1
            self.most_running = max(self.most_running, self.num_running)
        try:
            time.sleep(self.seconds)
            if error := self.fail(queries):
                raise error
            return [[Passage(query, "", f"top {topk}")] for query in queries]
        finally:
            with self._lock:
                self.num_running -= 1

    def close(self):
        self.closed = True


def search_at_once(retriever, queries, topk=lambda query: 3):
    """One thread for each query, all started together: hits or the exception."""
    barrier = threading.Barrier(len(queries))

    def one(query):
        barrier.wait()
        try:
            return retriever.search([query], topk(query))
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(queries)) as threads:
        return list(threads.map(one, queries))


def test_searches_made_at_once_become_few_batches_and_each_gets_its_own_hits():
    inner = EchoRetriever(seconds=0.05)
    retriever = BatchingRetriever(inner, max_batch=32)
    queries = [f"q{i}" for i in range(100)]
    results = search_at_once(retriever, queries)
    assert [ids(result) for result in results] == [[[query]] for query in queries]
    assert sorted(query for batch, _ in inner.batches for query in batch) == sorted(queries)
    assert max(len(batch) for batch, _ in inner.batches) <= 32
    assert len(inner.batches) < 50
    assert inner.most_running == 1


def test_as_many_batches_run_at_once_as_allowed():
    inner = EchoRetriever(seconds=0.05)
    search_at_once(BatchingRetriever(inner, max_batch=4, max_concurrency=3), [f"q{i}" for i in range(40)])
    assert inner.most_running == 3


def test_a_search_alone_does_not_wait():
    retriever = BatchingRetriever(EchoRetriever())
    started = time.monotonic()
    for i in range(100):
        retriever.search([f"q{i}"], 3)
    assert time.monotonic() - started < 1.0


def test_calls_for_different_numbers_of_passages_are_not_mixed():
    inner = EchoRetriever(seconds=0.01)
    queries = [f"q{i}" for i in range(40)]
    results = search_at_once(BatchingRetriever(inner), queries, topk=lambda query: 1 + int(query[1:]) % 3)
    assert [result[0][0].text for result in results] == [f"top {1 + i % 3}" for i in range(40)]


def test_a_call_keeps_its_queries_together():
    inner = EchoRetriever()
    retriever = BatchingRetriever(inner, max_batch=2)
    assert ids(retriever.search(["a", "b", "c"], 3)) == [["a"], ["b"], ["c"]]
    assert inner.batches == [(["a", "b", "c"], 3)]
    assert retriever.search([], 3) == []


def test_a_failing_batch_fails_all_its_searches_and_nothing_after():
    down = RetrieverError.of("timeout", "The retriever at http://x failed.")
    inner = EchoRetriever(seconds=0.02, fail=lambda queries: down)
    retriever = BatchingRetriever(inner)
    results = search_at_once(retriever, [f"q{i}" for i in range(20)])
    assert all(isinstance(result, ServiceError) for result in results)
    assert len(inner.batches) < 20  # an outage is not asked about again by every search alone
    inner.fail = lambda queries: None
    assert ids(retriever.search(["again"], 3)) == [["again"]]


def test_one_query_that_a_server_cannot_stomach_fails_alone():
    release = threading.Event()

    def fail(queries):
        release.wait(10)
        return RetrieverError.of("http_500", "no") if "poison" in queries else None

    inner = EchoRetriever(fail=fail)
    retriever = BatchingRetriever(inner)
    queries = [*(f"q{i}" for i in range(20)), "poison"]
    with ThreadPoolExecutor(len(queries) + 1) as threads:
        first = threads.submit(retriever.search, ["first"], 3)
        while not inner.batches:
            time.sleep(0.001)
        rest = [threads.submit(retriever.search, [query], 3) for query in queries]
        while len(retriever._waiting) < len(queries):  # all of them gather behind the first
            time.sleep(0.001)
        release.set()
        assert ids(first.result()) == [["first"]]
        assert [ids(one.result()) for one in rest[:-1]] == [[[query]] for query in queries[:-1]]
        with pytest.raises(RetrieverError, match="no"):
            rest[-1].result()
    assert sorted(inner.batches[1][0]) == sorted(queries)


def test_a_search_does_not_wait_for_ever_behind_others():
    release = threading.Event()
    inner = EchoRetriever(fail=lambda queries: release.wait(10) and None)
    retriever = BatchingRetriever(inner, patience=0.1)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(retriever.search, ["stuck"], 3)
        while not inner.batches:
            time.sleep(0.001)
        with pytest.raises(RetrieverError, match=r"waited 0.1 s") as caught:
            retriever.search(["behind"], 3)
        assert caught.value.cause == "queue_timeout"
        release.set()
        assert ids(first.result()) == [["stuck"]]
    assert ids(retriever.search(["after"], 3)) == [["after"]]
    assert [batch for batch, _ in inner.batches] == [["stuck"], ["after"]]  # what gave up is not searched any more


def test_an_interrupt_is_for_one_thread_only():
    interrupted = threading.Event()

    def fail(queries):
        if not interrupted.is_set():
            interrupted.set()
            time.sleep(0.05)
            raise KeyboardInterrupt

    retriever = BatchingRetriever(EchoRetriever(fail=fail))
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(retriever.search, ["first"], 3)
        interrupted.wait(5)
        assert ids(retriever.search(["second"], 3)) == [["second"]]
        with pytest.raises(KeyboardInterrupt):
            first.result()


def test_a_retriever_that_miscounts_is_a_failure_not_a_wrong_document():
    inner = EchoRetriever()
    inner.search = lambda queries, topk: []
    with pytest.raises(RetrieverError, match="0 result lists for 1 queries"):
        BatchingRetriever(inner).search(["q"], 3)


def test_bm25_is_right_under_many_threads(bm25):
    queries = ["curlew bridge", "rodriguez", "candles", "herons"] * 25
    expected = [bm25.search([query], 2) for query in queries]
    assert search_at_once(bm25, queries, topk=lambda _: 2) == expected
    assert search_at_once(BatchingRetriever(bm25), queries, topk=lambda _: 2) == expected


# --- dense -----------------------------------------------------------------------------------------------------------


class BagOfWords:
    """An encoder that needs no model: one dimension for each word of the passages."""

    vocabulary = sorted({word for p in PASSAGES for word in re.findall(r"\w+", p.contents.lower())})

    def __init__(self):
        self.kinds = []

    def encode(self, texts, kind):
        self.kinds.append(kind)
        counts = [[re.findall(r"\w+", text.lower()).count(word) for word in self.vocabulary] for text in texts]
        return np.asarray(counts, dtype=np.float32)


def test_dense_retrieval_ranks_by_inner_product_and_is_reloaded(tmp_path):
    pytest.importorskip("faiss")
    encoder = BagOfWords()
    built = DenseRetriever.build(PASSAGES, tmp_path / "index", encoder)
    queries = ["candles", "river herons"]
    hits = built.search(queries, 2)
    assert [of_query[0].passage_id for of_query in hits] == ["d", "c"]
    # "river herons" against passage c: river once, herons twice (title and text).
    assert hits[1][0].score == pytest.approx(3.0)
    assert encoder.kinds == ["passage", "query"]
    assert DenseRetriever.load(tmp_path / "index", encoder).search(queries, 2) == hits
    assert pickle.loads(pickle.dumps(built)).search(queries, 2) == hits
    assert DenseRetriever.build(PASSAGES, None, encoder).search(queries, 2) == hits
    assert built.search([], 2) == []
    assert len(built.search(["river"], 50)[0]) == 4


def test_a_public_faiss_index_is_opened_with_its_corpus(tmp_path):
    pytest.importorskip("faiss")
    encoder = BagOfWords()
    DenseRetriever.build(PASSAGES, tmp_path / "index", encoder)
    opened = DenseRetriever.from_faiss(
        tmp_path / "index" / "index.faiss", tmp_path / "index" / "passages.jsonl", encoder
    )
    assert ids(opened.search(["candles"], 1)) == [["d"]]
    write_corpus(PASSAGES[:2], tmp_path / "other.jsonl")
    with pytest.raises(ConfigurationError, match="4 vectors and the corpus 2 passages"):
        DenseRetriever.from_faiss(tmp_path / "index" / "index.faiss", tmp_path / "other.jsonl", encoder)


def test_an_index_of_an_own_encoder_asks_for_it_again(tmp_path):
    pytest.importorskip("faiss")
    DenseRetriever.build(PASSAGES, tmp_path / "index", BagOfWords())
    with pytest.raises(ConfigurationError, match="encoder of your own"):
        DenseRetriever.load(tmp_path / "index")


def test_a_sentence_encoder_is_remembered_by_its_settings_but_not_its_device():
    encoder = SentenceTransformerEncoder("some/model", query_prefix="q: ", device="cuda")
    assert SentenceTransformerEncoder(**encoder.settings()) == SentenceTransformerEncoder(
        "some/model", query_prefix="q: "
    )


def test_larger_corpora_are_found_as_well():
    pytest.importorskip("bm25s")
    passages = build_passages(build_world(scale=4))
    retriever = BM25Retriever.build(passages)
    hits = retriever.search([passage.title for passage in passages[::37]], 1)
    assert [of_query[0].title for of_query in hits] == [passage.title for passage in passages[::37]]
