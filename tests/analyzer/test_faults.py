"""What an analyzer does wrong ends one question: other groups keep their guidance, in bounded time and memory."""

from __future__ import annotations

import gzip
import json
import resource
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from taspo_trl.analyzer.base import AnalyzerReply, AnalyzerRequest
from taspo_trl.analyzer.extractive import ExtractiveAnalyzer
from taspo_trl.analyzer.llm import transport
from taspo_trl.guidance.aligned import AlignedConstruction
from taspo_trl.guidance.base import GuidanceContext
from taspo_trl.guidance.block import Composer
from taspo_trl.guidance.stage import GuidanceBatch, GuidanceStage
from taspo_trl.types import TrajectoryGroup

from ..reliability import Fault, check_table
from ..tokenizers import byte_bpe
from ..trajectories import outcomes
from .endpoint import Endpoint, Reply, honest


TIMEOUT = 3.0
"""Of one attempt in these tests; two attempts."""
BAD = "the bad task"
MARGIN = 12.0
"""Seconds for a busy machine."""


def groups() -> list[TrajectoryGroup]:
    """One group whose questions go wrong, and one whose questions do not."""
    bad = outcomes(1, 0, 0, group_id="bad")
    bad = replace(bad, trajectories=tuple(replace(t, task_text=BAD) for t in bad.trajectories))
    return [bad, outcomes(1, 0, 0, group_id="good")]


def guided(analyzer: Any, time_budget: float | None = None) -> GuidanceBatch:
    construction, context = AlignedConstruction(Composer(byte_bpe())), GuidanceContext(analyzer)
    stage = GuidanceStage(construction, 2, time_budget=time_budget, context=context)
    for group in groups():
        stage.submit(group)
    try:
        return stage.collect()
    finally:
        stage.close()


def reasons(batch: GuidanceBatch) -> set[str]:
    """Why the bad group's targets have no guidance; the good group's have some."""
    assert all(batch.guidance[f"good-k{k}"] for k in (1, 2)), "the other group is not touched"
    assert not any(batch.guidance[f"bad-k{k}"] for k in (0, 1, 2))
    return {batch.guidance[f"bad-k{k}"].abstain_reason.split(":")[-1].strip() for k in (1, 2)}


class Own:
    """An analyzer of the user's that breaks its contract for one group."""

    name = "own"

    def __init__(self, act: Callable[[], Any]):
        self._act = act
        self._good = ExtractiveAnalyzer()

    def complete(self, request: AnalyzerRequest) -> AnalyzerReply:
        return self._act() if BAD in json.dumps(request.payload) else self._good.complete(request)

    def close(self) -> None:
        pass


def raising(error: BaseException) -> Callable[[], Any]:
    def act() -> Any:
        raise error

    return act


HOSTILE = '{"evidence": [' + '{"evidence_id": "E1", "kind": "progress", "statement": "x", "sources": [' * 20
SERVED: dict[Fault, tuple[Reply, set[str]]] = {
    Fault("raises", "a server answers 500, or closes the connection", "`server_error`, `connection`", "attempts"): (
        Reply(status=500, error="x"),
        {"server_error"},
    ),
    Fault("raises", "a request is refused once the analyzer has answered", "`refused`", "one request"): (
        Reply(status=400, error="nonsense"),
        {"refused"},
    ),
    Fault("hangs", "no answer, or a byte now and then", "`timeout`", "`analyzer_timeout` × `analyzer_attempts`"): (
        Reply(delay=60.0),
        {"timeout"},
    ),
    Fault("dies", "the connection breaks in the middle of an answer", "`connection`", "attempts"): (
        Reply(reset=True),
        {"connection"},
    ),
    Fault("wrong type", "a page instead of JSON; JSON that is no completion", "`bad_response`", "attempts"): (
        Reply(body=b"<html>busy</html>"),
        {"bad_response"},
    ),
    Fault(
        "wrong type", "content that is a number, a list, or missing", "`empty_answer`, asked once more", "2 requests"
    ): (
        Reply(None),
        {"empty_answer"},
    ),
    Fault("huge", "a response of 64 MB", "`too_large`", "one request; 8 MB of it are held"): (
        Reply("x" * 2**26),
        {"too_large"},
    ),
    Fault("huge", "64 MB packed into 64 kB", "`too_large`", "one request; it is not unpacked"): (
        Reply(body=gzip.compress(Reply("x" * 2**26).encoded()), headers={"content-encoding": "gzip"}),
        {"too_large"},
    ),
    Fault("huge", "an answer of 4 MB", "`answer_too_long`", "one request; not read"): (
        Reply(" " + "x" * 2**22),
        {"answer_too_long"},
    ),
    Fault(
        "hostile",
        "an object cut, nested, repeated without end",
        "`cut_json` and others, asked once more",
        "2 requests",
    ): (
        Reply(HOSTILE),
        {"cut_json"},
    ),
    Fault("hostile", "a decoy among thoughts", "`thought_around`, asked once more", "2 requests"): (
        Reply('<think>{"evidence": []}</think> {"evidence": []} </think>'),
        {"thought_around"},
    ),
    Fault(
        "hostile", "evidence with made-up quotes and weights", "`no_evidence`: each item is rejected", "linear time"
    ): (
        Reply(
            json.dumps(
                {
                    "weights": [9],
                    "evidence": [
                        {
                            "evidence_id": f"E{k}",
                            "kind": "progress",
                            "statement": "x",
                            "sources": [
                                {"traj_uid": "bad-k0", "step": 0, "action_quote": "made up", "post_quote": "made up"}
                            ],
                        }
                        for k in range(1000)
                    ],
                }
            )
        ),
        {"no_evidence"},
    ),
}
OWN: dict[Fault, tuple[Callable[[], Any], set[str]]] = {
    Fault("raises", "`complete` of an analyzer of yours", "`raised`, one warning with the traceback", "one call"): (
        raising(ZeroDivisionError("a bug of the user's")),
        {"raised"},
    ),
    Fault("wrong type", "it returns anything but an `AnalyzerReply`", "`wrong_type`", "one call"): (
        lambda: {"text": "{}"},
        {"wrong_type"},
    ),
    Fault("wrong type", "a reply whose fields are not of their types", "`wrong_type`", "one call"): (
        lambda: AnalyzerReply(text=b"{}", details={"requests": "many"}),
        {"wrong_type"},
    ),
}
LATE = Fault("hangs", "it never returns", "`time_budget` for what is missing", "`analyzer_time_budget` for the step")


@pytest.mark.parametrize("fault", SERVED, ids=str)
def test_a_server_that(fault, serve, make_analyzer, monkeypatch):
    monkeypatch.setattr("taspo_trl.analyzer.llm.calls.backoff_seconds", lambda attempt, rng: 0.01)
    reply, wanted = SERVED[fault]
    endpoint: Endpoint = serve(lambda received, number: reply if BAD in received.text else honest(received))
    analyzer = make_analyzer(endpoint, "hosted_vllm/m", timeout=TIMEOUT, attempts=2)
    analyzer.complete(AnalyzerRequest("extraction", "json", {"task": "first", "trajectories": []}))
    reply.encoded()
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    assert reasons(guided(analyzer)) == wanted
    assert time.monotonic() - started < 2 * TIMEOUT + MARGIN
    asked = sum(BAD in received.text for received in endpoint.received)
    assert asked <= (1 if "one request" in fault.bound else 2)
    if fault.kind == "huge":
        # The server of the test writes it in this process too, in one piece.
        held = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
        assert held < 2**26 + 8 * transport.MAX_BODY_BYTES


@pytest.mark.parametrize("fault", OWN, ids=str)
def test_an_analyzer_that(fault):
    act, wanted = OWN[fault]
    assert reasons(guided(Own(act))) == wanted


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1)])
def test_an_interrupt_is_no_fault(error):
    with pytest.raises(type(error)):
        guided(Own(raising(error)))


def test_an_analyzer_that_never_returns_costs_the_step_its_budget():
    started = time.monotonic()
    assert reasons(guided(Own(lambda: time.sleep(30)), time_budget=1.0)) == {"time_budget"}
    assert time.monotonic() - started < 1.0 + MARGIN


def test_the_page_says_what_is_tested():
    check_table("analyzer", [*SERVED, *OWN, LATE])
