"""Both formats of served indexes, as they go over the wire."""

import json
import math

import pytest

from taspo_trl.environments.search_qa import Passage
from taspo_trl.environments.search_qa.retrievers.wire import (
    WireError,
    decode_request,
    decode_result,
    encode_request,
    encode_result,
)
from tests.environments.search_qa_servers import FORMATS, body, client, faulty, ids, ok


pytest.importorskip("aiohttp")


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
