"""What calls cost: every one is booked, a budget stops new ones, and a budget is shared by its run."""

from __future__ import annotations

import json
import shutil
import sqlite3
from typing import Any

import pytest

from taspo_trl.analyzer.base import AnalyzerReply, AnalyzerRequest
from taspo_trl.analyzer.llm.database import Database
from taspo_trl.analyzer.llm.ledger import Ledger, Totals
from taspo_trl.reporting.metrics import analyzer_metrics

from ..endpoint import NOTHING, Reply


PRICED = "deepseek/deepseek-chat"  # in LiteLLM's price list


def request(number: int = 0) -> AnalyzerRequest:
    return AnalyzerRequest("extraction", "json", {"task": str(number), "trajectories": []})


def reply(**values: Any) -> AnalyzerReply:
    return AnalyzerReply(**{"prompt_tokens": 100, "completion_tokens": 20, "details": {"requests": 1.0}, **values})


def test_totals_are_sums():
    ledger = Ledger(Database(None), "m", "run")
    ledger.count(reply(cost_usd=0.25, seconds=1.0))
    ledger.count(reply(cost_usd=0.5, seconds=2.0, details={"requests": 3.0}))
    ledger.count(AnalyzerReply(is_cached=True))
    ledger.count(AnalyzerReply(error="timeout", seconds=4.0, details={"requests": 2.0}))
    ledger.count(AnalyzerReply(error="timeout"))
    assert ledger.totals() == Totals(5, 1, 6, 200, 40, 0.75, 7.0, {"timeout": 2})
    assert ledger.totals().tokens == 240


def test_a_cost_that_is_not_known_is_none_and_not_zero():
    ledger = Ledger(Database(None), "m", "run")
    ledger.count(reply())
    assert ledger.totals().cost_usd is None
    ledger.count(reply(cost_usd=0.5))
    assert ledger.totals().cost_usd == 0.5


def test_spending_is_added_up_over_restarts_and_kept_apart_by_run(tmp_path):
    for run, cost in (("a", 1.0), ("a", 2.0), ("b", 4.0)):
        database = Database(tmp_path / "a.sqlite")
        ledger = Ledger(database, "m", run)
        one = reply(cost_usd=cost)
        database.transact(lambda c, ledger=ledger, one=one: ledger.book(c, "extraction", one))
        database.close()
    assert Ledger(Database(tmp_path / "a.sqlite"), "m", "a").spent() == (3.0, 240)
    assert Ledger(Database(tmp_path / "a.sqlite"), "m", "b").spent() == (4.0, 120)
    assert Ledger(Database(tmp_path / "a.sqlite"), "m", "c").spent() == (0.0, 0)


def test_totals_of_a_run_are_those_of_its_restarts_and_no_price_is_no_zero(tmp_path):
    for run, one in (
        ("a", reply(seconds=1.0)),
        ("a", reply(cost_usd=2.0, seconds=0.5)),
        ("a", AnalyzerReply(error="timeout", details={"requests": 3.0})),
        ("b", reply()),
    ):
        database = Database(tmp_path / "a.sqlite")
        ledger = Ledger(database, "m", run)
        database.transact(lambda c, ledger=ledger, one=one: ledger.book(c, "extraction", one))
        database.close()
    database = Database(tmp_path / "a.sqlite")
    assert Ledger(database, "m", "a").run_totals() == Totals(3, 0, 5, 200, 40, 2.0, 1.5, {"timeout": 1})
    assert Ledger(database, "m", "b").run_totals() == Totals(1, 0, 1, 100, 20, None, 0.0)
    assert Ledger(database, "m", "c").run_totals() == Totals()


def test_answer_and_cost_are_booked_together_or_not_at_all(tmp_path):
    database = Database(tmp_path / "a.sqlite")
    ledger = Ledger(database, "m", "run")

    def broken(connection: sqlite3.Connection) -> None:
        ledger.book(connection, "extraction", reply(cost_usd=1.0))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        database.transact(broken)
    assert ledger.spent() == (0.0, 0)
    database.transact(lambda c: ledger.book(c, "extraction", reply(cost_usd=1.0)))
    assert ledger.spent() == (1.0, 120)


def test_every_call_of_an_analyzer_is_booked(serve, make_analyzer, tmp_path):
    script = [Reply(NOTHING), Reply(status=500, error="x"), Reply(status=500, error="x"), Reply(NOTHING)]
    endpoint = serve(lambda received, number: script[number])
    analyzer = make_analyzer(endpoint, PRICED, api_key="sk-test", cache=tmp_path / "a.sqlite", attempts=2, run="r")
    replies = [analyzer.complete(request(number)) for number in (0, 1, 0, 2)]
    assert [one.error for one in replies] == ["", "server_error", "", ""]
    totals = analyzer.totals
    assert (totals.calls, totals.cached, totals.requests, totals.errors) == (4, 1, 4, {"server_error": 1})
    assert (totals.prompt_tokens, totals.completion_tokens) == (200, 40)
    cost = replies[0].cost_usd
    assert cost is not None and cost > 0 and totals.cost_usd == pytest.approx(2 * cost)
    rows = sqlite3.connect(tmp_path / "a.sqlite").execute(
        "SELECT run, model, stage, error, requests, prompt_tokens, cost_usd FROM calls ORDER BY created"
    )
    assert rows.fetchall() == [
        ("r", PRICED, "extraction", "", 1, 100, cost),
        ("r", PRICED, "extraction", "server_error", 2, None, None),
        ("r", PRICED, "extraction", "", 1, 100, cost),
    ]


def test_the_metrics_of_a_step_are_those_of_its_calls(serve, make_analyzer, tmp_path):
    script = [
        Reply(status=429, error="x", headers={"retry-after": "0.1"}),
        Reply(NOTHING),
        Reply(NOTHING, finish_reason="length"),
    ]
    endpoint = serve(lambda received, number: script[number])
    analyzer = make_analyzer(endpoint, PRICED, api_key="sk-test", cache=tmp_path / "a.sqlite")
    calls = [(request(number), analyzer.complete(request(number))) for number in (0, 0, 1)]
    metrics = analyzer_metrics(calls)
    expected = {
        "analyzer/calls": 3,
        "analyzer/calls_extraction": 3,
        "analyzer/cached_share": 1 / 3,
        "analyzer/requests": 3,
        "analyzer/retries": 1,
        "analyzer/tokens_prompt": 200,
        "analyzer/tokens_completion": 40,
        "analyzer/truncated": 1,
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)
    assert metrics["analyzer/cost_usd"] > 0 and metrics["analyzer/wait_seconds"] > 0.1


def test_counts_that_the_server_leaves_out_are_estimated(serve, make_analyzer):
    endpoint = serve(lambda received, number: Reply("{}" + " " * 348, usage=None))
    one = make_analyzer(endpoint, budget_tokens=10**6).complete(
        AnalyzerRequest("extraction", "json", {"trajectories": [], "task": "x" * 3500})
    )
    # A token for each 3.5 characters: 3,500 of the task and a few around it; 350 of the answer.
    assert 1000 <= one.prompt_tokens <= 1050 and one.completion_tokens == 100


@pytest.mark.parametrize("budget", [{"budget_tokens": 300}, {"budget_usd": 0.25}])
def test_a_budget_stops_new_calls_and_says_so_once(budget, serve, make_analyzer, tmp_path, caplog):
    endpoint = serve(lambda received, number: NOTHING)
    # 120 tokens and 0.1 USD a call: the third call passes both limits.
    analyzer = make_analyzer(endpoint, cache=tmp_path / "a.sqlite", prices=(1000.0, 0.0), **budget)
    errors = [analyzer.complete(request(number)).error for number in range(6)]
    assert errors == ["", "", "", "budget", "budget", "budget"]
    assert len(endpoint.received) == 3
    assert sum("budget is used up" in record.getMessage() for record in caplog.records) == 1
    assert analyzer.complete(request(0)).is_cached, "what was paid for stays available"
    assert analyzer.totals.errors == {"budget": 3}


def test_a_resumed_run_goes_on_with_what_is_left_of_its_budget(serve, make_analyzer, tmp_path):
    endpoint = serve(lambda received, number: NOTHING)
    values = {"cache": tmp_path / "a.sqlite", "budget_tokens": 300, "run": "mine"}
    first = make_analyzer(endpoint, **values)
    assert [first.complete(request(number)).error for number in range(2)] == ["", ""]
    resumed = make_analyzer(endpoint, **values)
    assert [resumed.complete(request(number)).error for number in range(2, 5)] == ["", "budget", "budget"]
    assert make_analyzer(endpoint, **{**values, "run": "another"}).complete(request(9)).error == ""
    assert make_analyzer(endpoint, **{**values, "run": None}).complete(request(10)).error == "", "counts only itself"


def full(analyzer: Any) -> None:
    """From here on the disk has no room for another page."""
    analyzer._database.transact(lambda c: None)
    analyzer._database.read(lambda c: c.execute("PRAGMA max_page_count = 1").fetchone())


def dropped(analyzer: Any) -> None:
    analyzer._database.transact(lambda c: c.execute("DROP TABLE calls"))


def overwritten(analyzer: Any) -> None:
    analyzer._database.close()
    analyzer._database.path.write_bytes(b"no database any more " * 1000)


def gone(analyzer: Any) -> None:
    """The folder has become a file."""
    analyzer._database.close()
    shutil.rmtree(analyzer._database.path.parent)
    analyzer._database.path.parent.write_text("")


@pytest.mark.parametrize("damage", [full, dropped, overwritten, gone])
@pytest.mark.parametrize("budget", [{"budget_tokens": 600}, {"budget_usd": 0.5}])
def test_a_budget_holds_when_the_file_does_not(damage, budget, serve, make_analyzer, tmp_path, caplog):
    endpoint = serve(lambda received, number: json.dumps({"evidence": ["x" * 50_000]}))
    values = {"cache": tmp_path / "folder" / "a.sqlite", "prices": (1000.0, 0.0), "run": "mine", **budget}
    before = make_analyzer(endpoint, **values)
    before.complete(request(0))
    before.close()
    analyzer = make_analyzer(endpoint, **values)
    assert analyzer.complete(request(1)).error == ""
    damage(analyzer)
    errors = [analyzer.complete(request(number)).error for number in range(2, 8)]
    # 120 tokens and 0.1 USD a call, of which two were before the damage and the fifth uses the budget up.
    assert errors == ["", "", ""] + ["budget"] * 3
    assert len(endpoint.received) == 5
    assert sum("The analyzer cache cannot be" in record.getMessage() for record in caplog.records) == 1
    assert analyzer.run_totals.calls >= 2 and analyzer.totals.calls == 7


@pytest.mark.parametrize("count", [2**63, 2**200, -1, "many", 1.5, None, True, [1]])
def test_counts_that_cannot_be_are_estimated(count, serve, make_analyzer, tmp_path):
    endpoint = serve(lambda received, number: Reply(NOTHING, usage={"prompt_tokens": count, "completion_tokens": 20}))
    analyzer = make_analyzer(endpoint, PRICED, api_key="sk-test", cache=tmp_path / "a.sqlite", budget_tokens=10**6)
    one = analyzer.complete(request())
    if not one.error:  # LiteLLM itself refuses some
        assert 0 < one.prompt_tokens < 10**9 and 0 <= one.completion_tokens <= 20
        assert one.cost_usd is None or 0 < one.cost_usd < 10**9
    assert analyzer._ledger.spent()[1] < 10**9
