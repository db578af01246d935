"""Attempts, time-outs and limits of the analyzer, against an endpoint that is slow, busy or gone."""

from __future__ import annotations

import asyncio
import gzip
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from taspo_trl.analyzer import LiteLLMAnalyzer
from taspo_trl.analyzer.llm.pacing import Pace, backoff_seconds
from taspo_trl.background import background_loop

from ...playing import eventually
from ..endpoint import ALL_PROVIDERS, OK, Endpoint, Reply, request, warned


# ---- attempts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ALL_PROVIDERS)
@pytest.mark.parametrize(
    "bad", [Reply(status=429, error="slow down"), Reply(status=503, error="busy"), Reply(reset=True)]
)
def test_attempts_are_exactly_those_allowed(model, bad, serve, make_analyzer, monkeypatch):
    # LLM-1: neither LiteLLM nor the OpenAI client below it adds retries of its own, whatever the provider's route.
    monkeypatch.setattr("taspo_trl.analyzer.llm.calls.backoff_seconds", lambda attempt, rng: 0.0)
    endpoint = serve(lambda received, number: bad)
    analyzer = make_analyzer(endpoint, model, api_key="sk-test", attempts=3, required=False)
    kind = "rate_limit" if bad.status == 429 else "server_error" if bad.status == 503 else "connection"
    assert analyzer.complete(request()).error == kind
    assert len(endpoint.received) == 3
    assert make_analyzer(endpoint, model, api_key="sk-test", attempts=1).complete(request()).error == kind
    assert len(endpoint.received) == 4


def test_the_wait_that_the_server_asks_for_is_kept_once(serve, make_analyzer):
    # LLM-1
    script = [Reply(status=429, error="slow down", headers={"retry-after": "1"}), OK]
    endpoint = serve(lambda received, number: script[number])
    reply = make_analyzer(endpoint).complete(request())
    assert reply.error == "" and reply.details["retries"] == 1
    assert 1.0 <= endpoint.received[1].time - endpoint.received[0].time < 1.95


def test_a_wait_for_one_worker_holds_all(serve, make_analyzer):
    script = {0: Reply(status=429, error="slow down", headers={"retry-after": "2"})}
    endpoint = serve(lambda received, number: script.get(number, OK))
    analyzer = make_analyzer(endpoint)
    with ThreadPoolExecutor(4) as workers:
        first = workers.submit(analyzer.complete, request(0))
        assert eventually(lambda: len(endpoint.received) == 1)
        time.sleep(1.0)
        others = [workers.submit(analyzer.complete, request(number)) for number in (1, 2, 3)]
        assert [one.result().error for one in (first, *others)] == [""] * 4
    waits = [received.time - endpoint.received[0].time for received in endpoint.received[1:]]
    assert len(waits) == 4 and min(waits) >= 2.0


def test_a_rate_limit_that_never_ends_falls_back_and_the_log_says_so(serve, make_analyzer, monkeypatch, caplog):
    # LLM-1: 4 workers, 8 targets, 429 for ever.
    monkeypatch.setattr("taspo_trl.analyzer.llm.calls.backoff_seconds", lambda attempt, rng: 0.01)
    endpoint = serve(lambda received, number: Reply(status=429, error="Rate limit reached"))
    analyzer = make_analyzer(endpoint, attempts=3)
    with ThreadPoolExecutor(4) as workers:
        replies = list(workers.map(analyzer.complete, [request(number) for number in range(8)]))
    tried = [reply for reply in replies if reply.error == "rate_limit"]
    assert {reply.error for reply in replies} <= {"rate_limit", "paused"}
    assert 4 <= len(tried) <= 7, "those under way when the fourth failed still end"
    assert [reply.details["requests"] for reply in tried] == [3.0] * len(tried)
    assert len(endpoint.received) == 3 * len(tried)
    assert warned(caplog, "An analyzer call failed (rate_limit)") == 1
    assert warned(caplog, "TIMES IN A ROW (rate_limit)") == 1
    assert "tenacity" not in caplog.text.lower()


def test_a_wait_of_an_hour_is_not_waited_for(serve, make_analyzer):
    endpoint = serve(lambda received, number: Reply(status=429, error="x", headers={"retry-after": "3600"}))
    started = time.monotonic()
    assert make_analyzer(endpoint).complete(request()).error == "rate_limit"
    assert time.monotonic() - started < 5 and len(endpoint.received) == 1


def test_backoff_doubles_and_is_not_the_same_for_all():
    rng = random.Random(0)
    for attempt in range(1, 10):
        ceiling = min(30.0, 2.0 ** (attempt - 1))
        waits = [backoff_seconds(attempt, rng) for _ in range(50)]
        assert ceiling / 2 <= min(waits) < max(waits) <= ceiling


def test_the_runs_random_numbers_stay_untouched(serve, make_analyzer):
    random.seed(3)
    expected = random.Random(3).random()
    script = [Reply(status=500, error="x"), OK]
    make_analyzer(serve(lambda received, number: script[number])).complete(request())
    assert random.random() == expected


# ---- time -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ALL_PROVIDERS)
@pytest.mark.parametrize("slow", [Reply(delay=30.0), Reply("{}" + " " * 200, drip=0.1)], ids=["hang", "drip"])
def test_a_timeout_is_wall_time(model, slow, serve, make_analyzer):
    endpoint = serve(lambda received, number: slow)
    started = time.monotonic()
    reply = make_analyzer(endpoint, model, api_key="sk-test", timeout=1.0, attempts=1).complete(request())
    assert reply.error == "timeout" and 0.8 <= time.monotonic() - started < 2.5
    assert len(endpoint.received) == 1


def test_a_storm_of_everything_keeps_the_time_and_gives_the_threads_and_sockets_back(serve, monkeypatch):
    monkeypatch.setattr("taspo_trl.analyzer.llm.calls.backoff_seconds", lambda attempt, rng: 0.01)
    storm = [
        Reply(delay=30.0),
        Reply("{}" + " " * 500, drip=0.05),
        Reply(status=429, error="x", headers={"retry-after": "0.2"}),
        Reply(reset=True),
        Reply(status=500, error="x"),
        Reply(body=b"<html>502 Bad Gateway</html>"),
        OK,
    ]
    endpoint = serve(lambda received, number: storm[number % len(storm)])
    before = set(threading.enumerate())
    analyzer = LiteLLMAnalyzer("openai/m", api_base=endpoint.url, cache=None, timeout=0.5, attempts=2, required=False)
    started = time.monotonic()
    with ThreadPoolExecutor(4) as workers:
        replies = list(workers.map(analyzer.complete, [request(number) for number in range(28)]))
    # 28 questions of at most 2 attempts of 0.5 s, 4 at a time, and the waits between them.
    assert time.monotonic() - started < 28 * 2 * 0.5 / 4 + 8
    assert {reply.error for reply in replies} >= {"", "timeout"}
    # A busy machine lets four answers in a row come late: then the analyzer pauses, and sends nothing.
    assert all(reply.details.get("requests", 0) <= 2 for reply in replies)
    endpoint.script = lambda received, number: OK
    assert analyzer.complete(request(99)).error == "" and connections_to(endpoint)
    analyzer.close()
    assert eventually(lambda: not new_threads(before) and not connections_to(endpoint)), new_threads(before)
    assert not asyncio.all_tasks(background_loop()), "LiteLLM's own tasks included"


def new_threads(before: set[threading.Thread]) -> list[str]:
    """Threads that were not there before, without the endpoint's handlers, which hang on purpose, and without the loop
    and its few helpers, which all clients of the process share."""
    names = [thread.name for thread in threading.enumerate() if thread not in before]
    assert names.count("taspo-http") <= 1
    return [
        name
        for name in names
        if "process_request_thread" not in name and not name.startswith("taspo-http_") and name != "taspo-http"
    ]


def connections_to(endpoint: Endpoint) -> list[Any]:
    """This process's client sockets to the endpoint."""
    port = int(endpoint.url.split(":")[2].split("/")[0])
    return [one for one in psutil.Process().net_connections("tcp") if one.raddr and one.raddr.port == port]


@pytest.mark.parametrize("model", ALL_PROVIDERS)
@pytest.mark.parametrize("is_packed", [False, True])
def test_a_response_without_end_is_given_up_at_its_cap(model, is_packed, serve, make_analyzer, monkeypatch):
    # The class of an answer of 700 MB that took 3.5 GB of memory; 8 MB is the cap, here 256 kB.
    monkeypatch.setattr("taspo_trl.analyzer.llm.transport.MAX_BODY_BYTES", 2**18)
    body = Reply("x" * 2**22).encoded()
    headers = {"content-encoding": "gzip"} if is_packed else {}
    endpoint = serve(lambda received, number: Reply(body=gzip.compress(body) if is_packed else body, headers=headers))
    analyzer = make_analyzer(endpoint, model, api_key="sk-test", attempts=3, required=False)
    assert analyzer.complete(request()).error == "too_large"
    assert len(endpoint.received) == 1, "asking again would bring the same"
    endpoint.script = lambda received, number: OK
    assert analyzer.complete(request()).error == ""


def test_close_gives_up_what_is_in_flight_and_may_be_called_twice(serve, make_analyzer):
    endpoint = serve(lambda received, number: Reply(delay=30.0))
    analyzer = make_analyzer(endpoint, timeout=60.0)
    with ThreadPoolExecutor(2) as workers:
        calls = [workers.submit(analyzer.complete, request(number)) for number in range(2)]
        assert eventually(lambda: len(endpoint.received) >= 1)
        started = time.monotonic()
        analyzer.close()
        analyzer.close()
        assert [call.result(timeout=5).error for call in calls] == ["closed", "closed"]
    assert time.monotonic() - started < 5
    assert analyzer.complete(request(9)).error == "closed"


def test_close_ends_a_wait_between_attempts(serve, make_analyzer):
    endpoint = serve(lambda received, number: Reply(status=429, error="x", headers={"retry-after": "50"}))
    analyzer = make_analyzer(endpoint)
    with ThreadPoolExecutor(1) as workers:
        call = workers.submit(analyzer.complete, request())
        assert eventually(lambda: len(endpoint.received) == 1)
        analyzer.close()
        assert call.result(timeout=5).error == "closed"


def test_limits_per_minute_hold_over_any_minute():
    now = [0.0]

    class Clock(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            now[0] += max(timeout or 0.0, 1e-6)
            return False

    pace, clock, sent = Pace(requests_per_minute=5, clock=lambda: now[0]), Clock(), []
    for _ in range(23):
        assert pace.wait_turn(1, clock) is not None
        sent.append(now[0])
        now[0] += 1.0
    assert all(later - earlier >= 60.0 for earlier, later in zip(sent, sent[5:], strict=False))
    assert sent[-1] < 300, "and no longer than that"

    now[0] = 1000.0
    pace, sizes, sent = Pace(tokens_per_minute=100, clock=lambda: now[0]), [30, 30, 30, 30, 500, 10, 90], []
    for size in sizes:
        pace.wait_turn(size, clock).used(size)
        sent.append((now[0], size))
        now[0] += 1.0
    for k, (at, size) in enumerate(sent):
        window = sum(other for then, other in sent[: k + 1] if then > at - 60.0)
        assert window <= 100 or window == size == 500, "a request larger than the limit goes alone"


def test_the_servers_count_replaces_the_estimate():
    now = [0.0]
    pace = Pace(tokens_per_minute=100, clock=lambda: now[0])
    pace.wait_turn(90, threading.Event()).used(10)
    assert pace._seconds_to_turn(90) <= 0 < pace._seconds_to_turn(91)


def test_requests_per_minute_reach_the_wire(serve, make_analyzer):
    endpoint = serve(lambda received, number: OK)
    analyzer = make_analyzer(endpoint, requests_per_minute=2)
    with ThreadPoolExecutor(4) as workers:
        calls = [workers.submit(analyzer.complete, request(number)) for number in range(4)]
        assert eventually(lambda: len(endpoint.received) == 2)
        time.sleep(0.5)
        assert len(endpoint.received) == 2
        analyzer.close()
        assert sorted(call.result(timeout=5).error for call in calls) == ["", "", "closed", "closed"]
