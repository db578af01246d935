"""Served indexes, in both formats, under faults: every search ends in time, with passages or with a named failure."""

import asyncio
import http.client
import json
import math
import pickle
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from taspo_trl.environments import SearchQAEnvironment
from taspo_trl.environments.search_qa import Passage, RetrieverServer
from taspo_trl.environments.search_qa.retrievers import (
    BatchingRetriever,
    BM25Retriever,
    HTTPRetriever,
    RetrieverError,
    open_retriever,
)
from taspo_trl.environments.search_qa.retrievers import open as opening
from taspo_trl.environments.search_qa.retrievers.loop import background_loop
from taspo_trl.environments.search_qa.retrievers.wire import (
    WireError,
    decode_request,
    decode_result,
    encode_request,
    encode_result,
)
from taspo_trl.errors import ConfigurationError, ServiceError


pytest.importorskip("aiohttp")

FORMATS = ["batch", "single"]


# --- a server with faults --------------------------------------------------------------------------------------------


def hits_for(query):
    return [
        {"document": {"id": f"{query}-{rank}", "contents": f'"Title of {query}"\ntext {rank}'}, "score": 1.0 / rank}
        for rank in (1, 2, 3)
    ]


def send(handler, status, body, content_type="application/json", headers=()):
    data = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
    handler.send_response(status)
    handler.send_header("Content-Type", content_type)
    handler.send_header("Content-Length", str(len(data)))
    for name, value in headers:
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(data)


def ok(handler, queries):
    send(handler, 200, {"result": [hits_for(query) for query in queries]})


def status(code, body=b"<html>Service Unavailable</html>", headers=()):
    return lambda handler, queries: send(handler, code, body, "text/html", headers)


def body(value):
    return lambda handler, queries: send(handler, 200, value)


def html(handler, queries):
    send(handler, 200, b"<html><body>Please log in</body></html>", "text/html")


def fewer_lists(handler, queries):
    send(handler, 200, {"result": [hits_for(query) for query in queries][:-1]})


def hang(handler, queries):
    handler.server.released.wait(10)
    handler.close_connection = True


def hang_up(handler, queries):
    handler.connection.shutdown(socket.SHUT_RDWR)
    handler.close_connection = True


def drip(handler, data):
    for byte in data:
        if handler.server.released.wait(0.05):
            break
        handler.wfile.write(bytes([byte]))
        handler.wfile.flush()
    handler.close_connection = True


def drip_headers(handler, queries):
    drip(handler, b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 10_000)


def drip_body(handler, queries):
    handler.send_response(200)
    handler.send_header("Content-Length", "10000")
    handler.end_headers()
    drip(handler, b" " * 10_000)


def cut_short(handler, queries):
    handler.send_response(200)
    handler.send_header("Content-Length", "10000")
    handler.end_headers()
    handler.wfile.write(b'{"result": [')
    handler.close_connection = True


class FaultyServer(ThreadingHTTPServer):
    """Answers the n-th request with the n-th behaviour of a script, and all later ones with the last."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, script):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script = script
        self.requests = []
        self.connections = set()
        self.lock = threading.Lock()
        self.released = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}/retrieve"

    def handle_error(self, request, client_address):
        pass  # clients that give up are part of the tests


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.requests.append(asked)
            self.server.connections.add(self.client_address)
            number = len(self.server.requests) - 1
            behave = self.server.script[min(number, len(self.server.script) - 1)]
        behave(self, asked["queries"] if "queries" in asked else [asked["query"]])

    def log_message(self, *_):
        pass


@contextmanager
def faulty(*script):
    server = FaultyServer(script)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.released.set()
        server.shutdown()
        server.server_close()


def client(url, wire_format="batch", **settings):
    settings = {"timeout": 5.0, "max_attempts": 3, "deadline": 20.0, "backoff": 0.01, **settings}
    return HTTPRetriever(url, wire_format=wire_format, **settings)


def ids(hits):
    return [[passage.passage_id for passage in of_query] for of_query in hits]


# --- what goes over the wire -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("wire_format", FORMATS)
def test_a_search_is_answered_in_the_order_of_its_queries(wire_format):
    with faulty(ok) as server:
        retriever = client(server.url, wire_format)
        hits = retriever.search(["a", "b", "c"], 2)
        assert ids(hits) == [["a-1", "a-2"], ["b-1", "b-2"], ["c-1", "c-2"]]
        assert hits[0][0] == Passage("a-1", "Title of a", "text 1", 1.0)
        assert retriever.search([], 2) == []
        retriever.close()
        retriever.close()
        if wire_format == "batch":
            assert server.requests == [{"queries": ["a", "b", "c"], "topk": 2, "return_scores": True}]
        else:
            assert sorted(request["query"] for request in server.requests) == ["a", "b", "c"]
            assert all(set(request) == {"query", "topk", "return_scores"} for request in server.requests)


def test_long_searches_are_sent_in_parts():
    with faulty(ok) as server:
        hits = client(server.url, max_queries=4).search([f"q{i}" for i in range(10)], 1)
        assert ids(hits) == [[f"q{i}-1"] for i in range(10)]
        assert sorted(len(request["queries"]) for request in server.requests) == [2, 4, 4]


@pytest.mark.parametrize("wire_format", FORMATS)
def test_connections_are_used_again(wire_format):
    with faulty(ok) as server:
        retriever = client(server.url, wire_format)
        for i in range(20):
            retriever.search([f"q{i}"], 1)
        assert len(server.requests) == 20
        assert len(server.connections) == 1


@pytest.mark.parametrize(
    "query", ["Émile “Zola” 北京 😀", "a\u2028b\n\tc", "\ud800 lone", 'quote " \\ slash', "", "x" * 10_000]
)
@pytest.mark.parametrize("wire_format", FORMATS)
def test_queries_arrive_as_they_are(wire_format, query):
    with faulty(body({"result": [[]]})) as server:
        assert client(server.url, wire_format).search([query], 1) == [[]]
        (asked,) = server.requests
        assert asked.get("query", asked.get("queries", [None])[0]) == query


@pytest.mark.parametrize("wire_format", FORMATS)
def test_unicode_passages_arrive_as_they_are(wire_format):
    document = {"id": "é", "contents": '"Ünï “T”"\n北京 😀 \u2028 end'}
    with faulty(body({"result": [[{"document": document, "score": 2}]]})) as server:
        (hits,) = client(server.url, wire_format).search(["q"], 1)
        assert hits == [Passage("é", "Ünï “T”", "北京 😀 \u2028 end", 2.0)]


@pytest.mark.parametrize("wire_format", FORMATS)
def test_empty_results_are_results(wire_format):
    with faulty(body({"result": [[]]})) as server:
        assert client(server.url, wire_format).search(["q"], 3) == [[]]
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("answer", "num_queries", "expected"),
    [
        ({"result": [[{"document": {"id": 1, "contents": "x"}, "score": 1}]]}, 1, [[Passage("1", "", "x", 1.0)]]),
        ({"result": [[{"id": 1, "contents": '"T"\nx'}]]}, 1, [[Passage("1", "T", "x")]]),
        ({"result": [[{"document": {"title": "T", "text": "x"}}]]}, 1, [[Passage("0", "T", "x")]]),
        ({"result": [{"document": {"id": 1, "contents": "x"}, "score": 1}]}, 1, [[Passage("1", "", "x", 1.0)]]),
        ({"result": [[{"document": {"id": 1, "contents": "x"}, "score": "high"}]]}, 1, [[Passage("1", "", "x")]]),
        (
            {"result": [[{"document": {"id": 1, "contents": "x"}, "score": math.nan}]]},
            1,
            [[Passage("1", "", "x")]],
        ),
        ({"result": [[], []]}, 2, [[], []]),
        ({"result": []}, 0, []),
    ],
)
def test_answers_in_use_are_understood(answer, num_queries, expected):
    assert decode_result(answer, num_queries, 3) == expected


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        ([], "bad_body"),
        ("ok", "bad_body"),
        (None, "bad_body"),
        ({"detail": "no"}, "bad_body"),
        ({"result": None}, "bad_body"),
        ({"result": [None, None]}, "bad_body"),
        ({"result": [["x"], []]}, "bad_body"),
        ({"result": [[{"document": None}], []]}, "bad_body"),
        ({"result": [[{"document": {"id": 1}}], []]}, "bad_body"),
        ({"result": [[]]}, "wrong_count"),
        ({"result": [[], [], []]}, "wrong_count"),
        ({"result": []}, "wrong_count"),
    ],
)
def test_other_answers_are_named_faults(answer, cause):
    with pytest.raises(WireError) as caught:
        decode_result(answer, 2, 3)
    assert caught.value.cause == cause


def test_both_formats_survive_a_round_trip():
    hits = [[Passage("1", "T", "x", 0.5), Passage("2", "", "y", 0.25)], []]
    assert decode_result(json.loads(json.dumps(encode_result(hits, True))), 2, 5) == hits
    bare = decode_result(encode_result(hits, False), 2, 5)
    assert [[(p.passage_id, p.score) for p in of_query] for of_query in bare] == [[("1", None), ("2", None)], []]
    assert decode_request(encode_request(["a", "b"], 4, "batch")).queries == ("a", "b")
    assert decode_request(encode_request(["a"], 4, "single")).queries == ("a",)


# --- faults ----------------------------------------------------------------------------------------------------------

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
        retriever = client(server.url, wire_format, timeout=0.5 if cause == "timeout" else 5.0)
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
            client(server.url, max_attempts=100, backoff=0.1, deadline=0.5).search(["q"], 1)
        assert time.monotonic() - started < 5
        assert 2 <= len(server.requests) <= 5


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


# --- our own server --------------------------------------------------------------------------------------------------

WORDS = [f"word{i}" for i in range(1000)]


@pytest.fixture(scope="module")
def own_server():
    pytest.importorskip("bm25s")
    passages = [Passage(str(i), f"Title {word}", f"The text of “{word}” — 北京.") for i, word in enumerate(WORDS)]
    with RetrieverServer(BM25Retriever.build(passages), port=0) as server:
        yield server


def post(url, data):
    request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=5) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_the_server_speaks_both_formats(own_server):
    assert own_server.url.startswith("http://127.0.0.1:")
    code, answer = post(own_server.url, b'{"queries": ["word7", "nothing"], "topk": 1, "return_scores": true}')
    assert code == 200
    (hit,), nothing = answer["result"]
    assert hit["document"] == {"id": "7", "contents": '"Title word7"\nThe text of “word7” — 北京.'}
    assert hit["score"] > 0
    assert nothing == []
    assert post(own_server.url, b'{"query": "word7"}') == (200, {"result": [[hit["document"]]]})
    assert post(own_server.url, b'{"queries": []}') == (200, {"result": []})
    assert post(own_server.url, b'{"queries": ["word7"], "topk": null}')[0] == 200


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"{", b"[]", b"{}", b'{"queries": "word7"}', b'{"queries": [1]}', b'{"query": ["a"]}', b"[" * 100_000),
        *(b'{"queries": ["a"], "topk": 0}', b'{"queries": ["a"], "topk": "3"}', b'{"query": "a", "topk": 100000}'),
    ],
)
def test_the_server_explains_what_is_wrong_with_a_request(own_server, data):
    code, answer = post(own_server.url, data)
    assert code == 422
    assert answer["error"]
    assert post(own_server.url, b'{"query": "word7"}')[0] == 200  # and goes on


def test_the_server_tells_that_it_is_up(own_server):
    with urllib.request.urlopen(own_server.url.replace("/retrieve", "/health"), timeout=5) as response:
        assert json.load(response) == {"status": "ok"}


@pytest.mark.parametrize("wire_format", FORMATS)
def test_a_thousand_parallel_queries_each_get_their_own_passage(own_server, wire_format):
    address = own_server.url if wire_format == "batch" else f"single+{own_server.url}"
    retriever = opening._open(address)
    barrier = threading.Barrier(len(WORDS))

    def search(word):
        barrier.wait()
        return retriever.search([word], 1)

    with ThreadPoolExecutor(len(WORDS)) as threads:
        results = list(threads.map(search, WORDS))
    assert [ids(result) for result in results] == [[[str(i)]] for i in range(len(WORDS))]
    retriever.close()


def test_a_failure_behind_the_server_is_a_failure_of_the_client():
    class Down:
        def search(self, queries, topk):
            raise RetrieverError.of("timeout", "the index behind is down")

        def close(self):
            pass

    failing = pytest.raises(RetrieverError, match=r"http_502.*the index behind is down")
    with RetrieverServer(Down(), port=0) as server, failing:
        client(server.url).search(["q"], 1)


def test_a_taken_port_is_explained(own_server):
    port = int(own_server.url.split(":")[2].split("/")[0])
    with pytest.raises(ConfigurationError, match="Choose another `port`"):
        RetrieverServer(EchoOnly(), port=port).start()


class EchoOnly:
    def search(self, queries, topk):
        return [[Passage(query, "", query)] for query in queries]

    def close(self):
        pass


def test_a_server_that_is_closed_is_gone_and_may_be_closed_twice():
    server = RetrieverServer(EchoOnly(), port=0)
    server.start()
    url = server.url
    assert ids(client(url).search(["q"], 1)) == [["q"]]
    server.close()
    server.close()
    with pytest.raises(RetrieverError, match="connection"):
        client(url, max_attempts=1).search(["q"], 1)


def test_listening_beyond_this_machine_is_warned_about(caplog):
    with RetrieverServer(EchoOnly(), host="0.0.0.0", port=0):
        assert "password" in caplog.text


def test_a_client_outlives_a_restart_of_its_server():
    with RetrieverServer(EchoOnly(), port=0) as server:
        retriever = client(server.url)
        assert ids(retriever.search(["a"], 1)) == [["a"]]
        port = int(server.url.split(":")[2].split("/")[0])
    with RetrieverServer(EchoOnly(), port=port):
        assert ids(retriever.search(["b"], 1)) == [["b"]]


# --- where it is called from -----------------------------------------------------------------------------------------


def test_a_search_works_inside_a_running_event_loop():
    with faulty(ok) as server:

        async def main():
            return client(server.url).search(["q"], 1)

        assert ids(asyncio.run(main())) == [["q-1"]]
        assert ids(asyncio.run(main())) == [["q-1"]]


def test_a_client_travels_to_another_process():
    retriever = client("http://127.0.0.1:9/x", "single", timeout=1.5)
    sent = pickle.loads(pickle.dumps(retriever))
    assert (sent.url, sent.wire_format, sent.timeout) == (retriever.url, "single", 1.5)
    both = pickle.loads(pickle.dumps(BatchingRetriever(retriever, max_batch=7)))
    assert (both.max_batch, both.retriever.url) == (7, retriever.url)


def test_searching_starts_one_thread_in_all():
    with faulty(ok) as server:
        client(server.url).search(["q"], 1)
        before = {thread.name for thread in threading.enumerate()}
        for _ in range(10):
            client(server.url).search(["q"], 1)
        names = [thread.name for thread in threading.enumerate() if thread.name == "taspo-http"]
        assert len(names) == 1
        assert "taspo-http" in before


def test_a_process_that_forgets_to_close_ends_quietly_and_at_once():
    script = """
import sys
from taspo_trl.environments.search_qa.retrievers import HTTPRetriever
retriever = HTTPRetriever(sys.argv[1])
print(retriever.search(["q"], 1)[0][0].passage_id)
"""
    with faulty(ok) as server:
        done = subprocess.run(
            [sys.executable, "-X", "dev", "-W", "ignore::DeprecationWarning", "-c", script, server.url],
            capture_output=True,
            text=True,
            timeout=20,
        )
    assert (done.stdout, done.stderr, done.returncode) == ("q-1\n", "", 0)


def test_a_forked_child_searches_with_a_loop_of_its_own():
    script = """
import os, sys, warnings
warnings.simplefilter("ignore")
from taspo_trl.environments.search_qa.retrievers import open_retriever
print(open_retriever(sys.argv[1]).search(["parent"], 1)[0][0].passage_id, flush=True)
child = os.fork()
if child == 0:
    print(open_retriever(sys.argv[1]).search(["child"], 1)[0][0].passage_id, flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(open_retriever(sys.argv[1]).search(["again"], 1)[0][0].passage_id, flush=True)
"""
    with faulty(ok) as server:
        # An answer that the parent does not hear of would take it the 15 s of a lost attempt.
        done = subprocess.run(
            [sys.executable, "-c", script, server.url], capture_output=True, text=True, timeout=12, check=True
        )
    assert done.stdout.split() == ["parent-1", "child-1", "again-1"]


def test_serving_ends_on_an_interrupt():
    # A process started in the background inherits a deaf ear for interrupts.
    script = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from taspo_trl.environments.search_qa import serve
serve(port=0, on_ready=lambda url: print(url, flush=True))
"""
    pytest.importorskip("bm25s")
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        url = process.stdout.readline().strip()
        (hits,) = open_retriever(url).search(["museum of art"], 2)
        assert len(hits) == 2
        process.send_signal(2)
        _, errors = process.communicate(timeout=10)
        assert process.returncode == 0
        assert errors == ""
    finally:
        process.kill()
        process.wait()


def test_a_kept_connection_that_died_is_replaced():
    # The server closes the connection after each answer without saying so beforehand, as proxies do when idle.
    def answer_and_leave(handler, queries):
        ok(handler, queries)
        handler.wfile.flush()
        handler.connection.shutdown(socket.SHUT_RDWR)
        handler.close_connection = True

    with faulty(answer_and_leave) as server:
        retriever = client(server.url)
        for i in range(5):
            assert ids(retriever.search([f"q{i}"], 1)) == [[f"q{i}-1"]]


def test_http_client_of_the_standard_library_reads_our_answers(own_server):
    host, port = own_server.url.split("/")[2].split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=5)
    for _ in range(2):  # the second over the same connection
        connection.request("POST", "/retrieve", json.dumps({"query": "word1"}))
        response = connection.getresponse()
        assert response.status == 200
        assert len(json.loads(response.read())["result"]) == 1
    connection.close()
