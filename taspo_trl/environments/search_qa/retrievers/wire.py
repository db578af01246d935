"""The two JSON formats of served indexes, for the client and for the server.

Pure: objects in, objects out.

```
batch   {"queries": ["...", ...], "topk": 3, "return_scores": true}  ->  {"result": [[hit, ...] for each query]}
single  {"query": "...", "topk": 3, "return_scores": true}           ->  {"result": [[hit, ...]]}
hit     {"document": {"id": "7", "contents": "\\"Title\\"\\ntext"}, "score": 1.5}, or the document alone
```
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ....errors import ConfigurationError
from ..passages import Passage
from .store import passage_of


WireFormat = Literal["batch", "single"]

DEFAULT_TOPK = 3
MAX_TOPK = 1000


class WireError(ValueError):
    """A body that is not of the format; `cause` names the kind of fault."""

    def __init__(self, message: str, cause: str = "bad_body"):
        super().__init__(message)
        self.cause = cause


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """What a client asks of a server."""

    queries: tuple[str, ...]
    topk: int
    return_scores: bool


def encode_request(queries: Sequence[str], topk: int, wire_format: WireFormat) -> dict[str, Any]:
    """The body of a request; the single format takes exactly one query."""
    if wire_format == "batch":
        return {"queries": list(queries), "topk": topk, "return_scores": True}
    (query,) = queries
    return {"query": query, "topk": topk, "return_scores": True}


def decode_request(body: Any) -> SearchRequest:
    """The request in a body of either format; [`WireError`] says what is wrong with it."""
    if not isinstance(body, Mapping):
        raise WireError(f"the body must be a JSON object, got {type(body).__name__}")
    queries = [body["query"]] if "query" in body and "queries" not in body else body.get("queries")
    if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
        raise WireError("`queries` must be a list of strings (or `query` one string)")
    topk = body.get("topk")
    topk = DEFAULT_TOPK if topk is None else topk
    if isinstance(topk, bool) or not isinstance(topk, int) or not 1 <= topk <= MAX_TOPK:
        raise WireError(f"`topk` must be a whole number from 1 to {MAX_TOPK}, got {topk!r}")
    return SearchRequest(queries=tuple(queries), topk=topk, return_scores=bool(body.get("return_scores", False)))


def encode_result(hits: Sequence[Sequence[Passage]], return_scores: bool) -> dict[str, Any]:
    """The body of an answer."""

    def encode(passage: Passage) -> dict[str, Any]:
        document = {"id": passage.passage_id, "contents": passage.contents}
        return {"document": document, "score": passage.score} if return_scores else document

    return {"result": [[encode(passage) for passage in of_query] for of_query in hits]}


def decode_result(body: Any, num_queries: int, topk: int) -> list[list[Passage]]:
    """The hits in an answer to `num_queries` queries, at most `topk` for each.

    Raises:
        [`WireError`]: With cause `bad_body`, or `wrong_count` when there is not one list for each query.
    """
    result = body.get("result") if isinstance(body, Mapping) else None
    if not isinstance(result, list):
        raise WireError("the answer is no object with a list `result`")
    if num_queries == 1 and result and all(isinstance(item, Mapping) for item in result):
        result = [result]  # some single-query servers leave out the outer list
    if len(result) != num_queries:
        raise WireError(f"{len(result)} result lists for {num_queries} queries", cause="wrong_count")
    return [_decode_hits(hits, topk) for hits in result]


def _decode_hits(hits: Any, topk: int) -> list[Passage]:
    if not isinstance(hits, list):
        raise WireError(f"a result list is a {type(hits).__name__}")
    return [_decode_hit(hit, position) for position, hit in enumerate(hits[:topk])]


def _decode_hit(hit: Any, position: int) -> Passage:
    document = hit.get("document", hit) if isinstance(hit, Mapping) else None
    if not isinstance(document, Mapping):
        raise WireError("a hit is no object")
    try:
        passage = passage_of(dict(document), position)
    except ConfigurationError as error:
        raise WireError(f"a hit is no passage: {error}") from error
    score = hit.get("score")
    is_number = isinstance(score, int | float) and not isinstance(score, bool) and math.isfinite(score)
    return Passage(passage.passage_id, passage.title, passage.text, float(score) if is_number else None)
