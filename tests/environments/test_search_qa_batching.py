"""Searches that many threads make at the same time become batches, and each gets its own hits or failure."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from taspo_trl.environments.search_qa.passages import Passage
from taspo_trl.environments.search_qa.retrievers import BatchingRetriever, BM25Retriever, RetrieverError
from taspo_trl.errors import ServiceError
from tests.environments.search_qa_helpers import PASSAGES, ids


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


def test_bm25_is_right_under_many_threads():
    pytest.importorskip("bm25s")
    bm25 = BM25Retriever.build(PASSAGES)
    queries = ["curlew bridge", "rodriguez", "candles", "herons"] * 25
    expected = [bm25.search([query], 2) for query in queries]
    assert search_at_once(bm25, queries, topk=lambda _: 2) == expected
    assert search_at_once(BatchingRetriever(bm25), queries, topk=lambda _: 2) == expected
