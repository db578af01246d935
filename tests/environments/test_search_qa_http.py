"""Served indexes under faults: every search ends in time, with passages or with a named failure."""

import asyncio
import gzip
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from taspo_trl.background import background_loop
from taspo_trl.environments import SearchQAEnvironment
from taspo_trl.environments.search_qa.retrievers import BatchingRetriever, HTTPRetriever, RetrieverError
from taspo_trl.errors import ConfigurationError, ServiceError
from tests.environments.search_qa_servers import (
    FORMATS,
    body,
    client,
    cut_short,
    drip_body,
    drip_headers,
    faulty,
    fewer_lists,
    hang,
    hang_up,
    html,
    ids,
    ok,
    status,
)


pytest.importorskip("aiohttp")


TEMPORARY = {
    "503": (status(503), "http_503"),
    "500": (status(500), "http_500"),
    "429": (status(429), "http_429"),
    "html": (html, "bad_body"),
    "fewer_lists": (fewer_lists, "wrong_count"),
    "hang_up": (hang_up, "connection"),
    "cut_short": (cut_short, "connection"),
    "hang": (hang, "timeout"),
    "drip_headers": (drip_headers, "timeout"),
    "drip_body": (drip_body, "timeout"),
    "array": (body([1, 2]), "bad_body"),
    "too_deep": (body(b"[" * 100_000), "bad_body"),
    "no_text": (body(b"\xff\xfe"), "bad_body"),
}


@pytest.mark.parametrize("wire_format", FORMATS)
@pytest.mark.parametrize(("fault", "cause"), TEMPORARY.values(), ids=TEMPORARY)
def test_two_faults_are_outlived(wire_format, fault, cause):
    with faulty(fault, fault, ok) as server:
        retriever = client(server.url, wire_format, timeout=1.0 if cause == "timeout" else 5.0)
        assert ids(retriever.search(["q"], 1)) == [["q-1"]]
        assert len(server.requests) == 3
        assert retriever.failures == {cause: 2}


@pytest.mark.parametrize("wire_format", FORMATS)
@pytest.mark.parametrize(("fault", "cause"), TEMPORARY.values(), ids=TEMPORARY)
def test_a_lasting_fault_ends_in_a_service_error_with_url_and_cause(wire_format, fault, cause):
    with faulty(fault) as server:
        retriever = client(server.url, wire_format, timeout=0.3 if cause == "timeout" else 5.0)
        started = time.monotonic()
        with pytest.raises(ServiceError) as caught:
            retriever.search(["q"], 1)
        assert time.monotonic() - started < 10
        assert caught.value.cause == cause
        assert server.url in str(caught.value)
        assert cause in str(caught.value)
        assert len(server.requests) == 3  # exactly the attempts that are allowed


@pytest.mark.parametrize("code", [400, 401, 404, 413, 422, 302])
@pytest.mark.parametrize("wire_format", FORMATS)
def test_a_request_that_is_refused_is_not_sent_again(wire_format, code):
    with faulty(status(code, b"no", [("Location", "http://127.0.0.1:9/")])) as server:
        with pytest.raises(RetrieverError, match=f"1 attempt .*http_{code}"):
            client(server.url, wire_format).search(["q"], 1)
        assert len(server.requests) == 1


@pytest.mark.parametrize("behaviour", [hang, drip_headers, drip_body])
def test_the_deadline_holds_whatever_the_server_does(behaviour):
    with faulty(behaviour) as server:
        started = time.monotonic()
        with pytest.raises(RetrieverError, match=r"deadline of 0\.3 s") as caught:
            client(server.url, timeout=60, deadline=0.3).search(["q"], 1)
        assert 0.25 < time.monotonic() - started < 5
        assert caught.value.cause == "deadline"


def test_the_deadline_counts_the_pauses_too():
    with faulty(status(503)) as server:
        started = time.monotonic()
        with pytest.raises(RetrieverError, match="http_503"):
            client(server.url, max_attempts=100, backoff=0.1, deadline=2.0).search(["q"], 1)
        assert time.monotonic() - started < 10
        assert 2 <= len(server.requests) <= 12


def test_the_server_is_given_the_time_it_asks_for():
    with faulty(status(503, b"busy", [("Retry-After", "1")]), ok) as server:
        started = time.monotonic()
        assert ids(client(server.url).search(["q"], 1)) == [["q-1"]]
        assert time.monotonic() - started >= 1.0


def test_pauses_grow_and_are_scattered():
    retriever = client("http://127.0.0.1:9", backoff=1.0)
    for failures, middle in ((1, 1.0), (2, 2.0), (3, 4.0), (4, 8.0), (9, 8.0)):
        pauses = [retriever._pause(failures, None) for _ in range(50)]
        assert all(middle / 2 <= pause <= middle * 1.5 for pause in pauses)
        assert len(set(pauses)) > 10
    assert retriever._pause(1, 30.0) == 30.0


@pytest.mark.parametrize("wire_format", FORMATS)
def test_nobody_listening_is_a_connection_failure(wire_format):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(RetrieverError, match=r"/retrieve failed after 3 attempts.*Is it up\?") as caught:
            client(url, wire_format).search(["q"], 1)
    assert caught.value.cause == "connection"


def test_no_secret_of_the_url_is_shown():
    retriever = client("http://user:CANARY@127.0.0.1:9/retrieve?key=CANARY")
    with pytest.raises(RetrieverError) as caught:
        retriever.search(["q"], 1)
    assert "CANARY" not in str(caught.value)
    assert "CANARY" not in repr(retriever)
    assert "127.0.0.1:9/retrieve" in str(caught.value)


def test_one_bad_query_of_a_single_format_search_fails_it_and_leaves_no_request_running():
    def by_query(handler, queries):
        (hang if queries == ["slow"] else status(404))(handler, queries)

    with faulty(by_query) as server:
        started = time.monotonic()
        with pytest.raises(RetrieverError, match="http_404"):
            client(server.url, "single", timeout=60, deadline=60).search(["slow", "bad"], 1)
        while asyncio.all_tasks(background_loop()):  # the slow request is given up as well
            assert time.monotonic() - started < 10
            time.sleep(0.01)


@pytest.mark.parametrize("wire_format", FORMATS)
@pytest.mark.parametrize("is_packed", [False, True])
def test_an_answer_without_end_is_given_up_at_its_cap(wire_format, is_packed, monkeypatch):
    monkeypatch.setattr("taspo_trl.background.MAX_BODY_BYTES", 2**16)
    data = b'{"result": [[' + b" " * 2**20
    long = gzip.compress(data) if is_packed else data
    headers = [("Content-Encoding", "gzip")] if is_packed else []
    with (
        faulty(status(200, long, headers)) as server,
        pytest.raises(RetrieverError, match="longer than 65536 bytes") as caught,
    ):
        client(server.url, wire_format).search(["q"], 1)
    assert caught.value.cause == "bad_body"


def test_a_search_under_way_ends_when_its_client_is_closed():
    with faulty(hang) as server:
        retriever = client(server.url, timeout=60, deadline=60)
        with ThreadPoolExecutor(1) as threads:
            search = threads.submit(retriever.search, ["q"], 1)
            while not server.requests:
                time.sleep(0.01)
            retriever.close()
            with pytest.raises(RetrieverError) as caught:
                search.result(5)
    assert caught.value.cause == "closed"


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x/y", "http://", ""])
def test_what_is_no_address_is_refused(url):
    with pytest.raises(ConfigurationError, match="http://host:port/path"):
        HTTPRetriever(url)


@pytest.mark.parametrize("settings", [{"timeout": 0}, {"deadline": -1}, {"max_attempts": 0}, {"wire_format": "xml"}])
def test_impossible_settings_are_refused(settings):
    with pytest.raises(ConfigurationError, match=next(iter(settings))):
        HTTPRetriever("http://127.0.0.1:9", **settings)


# --- episodes --------------------------------------------------------------------------------------------------------


def episode(retriever):
    environment = SearchQAEnvironment(retriever, topk=1)
    environment.reset(seed=0, question="Q?", golden_answers=["x"])
    return environment


@pytest.mark.parametrize("wire_format", FORMATS)
def test_four_siblings_go_on_when_the_service_comes_back(wire_format):
    with faulty(status(503), status(503), ok) as server:
        retriever = client(server.url, wire_format)
        with ThreadPoolExecutor(4) as threads:
            results = list(threads.map(lambda i: episode(retriever).step(f"<search>q{i}</search>"), range(4)))
        assert [f"Doc 1: Title of q{i}" in result.observation for i, result in enumerate(results)] == [True] * 4
        assert all(result.info["valid"] for result in results)


@pytest.mark.parametrize("wire_format", FORMATS)
@pytest.mark.parametrize("fault", [html, hang, fewer_lists])
def test_four_siblings_end_without_a_word_of_the_outage_for_the_policy(wire_format, fault):
    with faulty(fault) as server:
        retriever = client(server.url, wire_format, timeout=0.3 if fault is hang else 5.0)

        def play(i):
            with pytest.raises(ServiceError) as caught:
                episode(retriever).step(f"<search>q{i}</search>")
            return str(caught.value)

        with ThreadPoolExecutor(4) as threads:
            errors = list(threads.map(play, range(4)))
        assert all(server.url in error for error in errors)


def test_an_outage_of_a_batched_service_costs_few_requests():
    with faulty(status(503)) as server:
        retriever = BatchingRetriever(client(server.url), max_concurrency=2, patience=20)
        barrier = threading.Barrier(64)

        def play(i):
            barrier.wait()
            with pytest.raises(ServiceError):
                episode(retriever).step(f"<search>q{i}</search>")

        with ThreadPoolExecutor(64) as threads:
            list(threads.map(play, range(64)))
        assert len(server.requests) <= 3 * 64 // 2  # without batches, three attempts for each of 64 searches
