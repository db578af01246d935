"""Our own server, and the client wherever it is called from."""

import asyncio
import gzip
import http.client
import json
import pickle
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from taspo_trl.environments.search_qa import Passage, RetrieverServer
from taspo_trl.environments.search_qa.retrievers import (
    BatchingRetriever,
    BM25Retriever,
    RetrieverError,
    open_retriever,
)
from taspo_trl.environments.search_qa.retrievers import open as opening
from taspo_trl.errors import ConfigurationError
from tests.environments.search_qa_servers import FORMATS, client, faulty, ids, ok


pytest.importorskip("aiohttp")


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


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_request_without_end_is_refused_and_the_next_one_served(is_packed, monkeypatch):
    monkeypatch.setattr("taspo_trl.environments.search_qa.server.MAX_REQUEST_BYTES", 2**16)
    body = b'{"queries": ["' + b"x" * 2**22 + b'"]}'
    headers = {"Content-Encoding": "gzip"} if is_packed else {}
    with RetrieverServer(EchoOnly(), port=0) as server:
        long = urllib.request.Request(server.url, gzip.compress(body) if is_packed else body, headers)
        with pytest.raises(urllib.error.URLError) as refused:  # or the connection is closed before all is sent
            urllib.request.urlopen(long, timeout=10)
        assert getattr(refused.value, "code", 413) == 413
        assert ids(client(server.url).search(["q"], 1)) is not None


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
        (hits,) = open_retriever(url).search(["bridge of dressed stone"], 2)
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
