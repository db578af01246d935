"""The cache under the analyzer: a second run pays nothing, other questions do, processes share."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from taspo_trl.analyzer.base import AnalyzerRequest
from taspo_trl.guidance.block import Composer
from taspo_trl.types import Guidance, TrajectoryGroup

from ...guiding import aligned_guide
from ...tokenizers import byte_bpe
from ...trajectories import outcomes
from ..endpoint import NOTHING, Reply, honest


def request(**payload: Any) -> AnalyzerRequest:
    return AnalyzerRequest("extraction", "system", payload)


def two(uid_a: str, uid_b: str, action: str = "look") -> AnalyzerRequest:
    return request(
        task="x", trajectories=[{"traj_uid": uid_a, "steps": [{"action": action}]}, {"traj_uid": uid_b, "steps": []}]
    )


def guide(analyzer: Any, group: TrajectoryGroup) -> list[Guidance]:
    construction = aligned_guide(analyzer, Composer(byte_bpe()))
    extraction = construction.prepare(group)
    return [construction.build(group, target, extraction) for target in group.trajectories[1:]]


def test_a_second_run_on_the_same_trajectories_asks_nothing(serve, make_analyzer, tmp_path):
    endpoint, group = serve(), outcomes(1, 0, 0)
    first = guide(make_analyzer(endpoint, cache=tmp_path / "a.sqlite"), group)
    # Three questions; the two targets differ in nothing but their names, so theirs is one.
    assert all(first) and len(endpoint.received) == 2
    again = make_analyzer(endpoint, cache=tmp_path / "a.sqlite")
    assert guide(again, group) == first
    assert len(endpoint.received) == 2
    assert (again.totals.calls, again.totals.cached, again.totals.requests, again.totals.tokens) == (3, 3, 0, 0)


def test_equal_trajectories_under_other_names_are_not_paid_for_again(serve, make_analyzer, tmp_path):
    endpoint = serve()
    analyzer = make_analyzer(endpoint, cache=tmp_path / "a.sqlite")
    first = guide(analyzer, outcomes(1, 0, 0, group_id="r0-g0"))
    second = guide(analyzer, outcomes(1, 0, 0, group_id="r7-g2"))
    assert len(endpoint.received) == 2
    assert [one.traj_uid for one in second] == ["r7-g2-k1", "r7-g2-k2"]
    assert [one.text for one in first] == [one.text for one in second]
    sources = {source.traj_uid for one in second for item in one.evidence for source in item.sources}
    assert sources == {"r7-g2-k0"}, "the answer is told with the present names, and holds against the present records"


def test_other_trajectories_are_asked_about_anew(serve, make_analyzer, tmp_path):
    endpoint = serve()
    analyzer = make_analyzer(endpoint, cache=tmp_path / "a.sqlite")
    for task in ("Put a mug on desk 1.", "Put a mug on desk 2."):
        group = outcomes(1, 0)
        guide(analyzer, TrajectoryGroup("g0", tuple(replace(t, task_text=task) for t in group.trajectories)))
    assert len(endpoint.received) == 4


@pytest.mark.parametrize("bad", ["sorry", "", None, Reply("", finish_reason="content_filter")])
def test_an_unreadable_answer_is_asked_for_again_by_the_next_run(bad, serve, make_analyzer, tmp_path):
    endpoint = serve(lambda received, number: bad if isinstance(bad, Reply) else Reply(bad))
    group = outcomes(1, 0)
    assert not any(guide(make_analyzer(endpoint, cache=tmp_path / "a.sqlite"), group))
    asked = len(endpoint.received)
    endpoint.script = lambda received, number: honest(received)
    again = guide(make_analyzer(endpoint, cache=tmp_path / "a.sqlite"), group)
    assert all(again) and len(endpoint.received) == asked + 2
    assert guide(make_analyzer(endpoint, cache=tmp_path / "a.sqlite"), group) == again
    assert len(endpoint.received) == asked + 2, "and what could be read is not"


def test_another_endpoint_is_another_question(serve, make_analyzer, tmp_path):
    endpoints = [serve(lambda received, number: NOTHING) for _ in range(2)]
    for endpoint in (*endpoints, endpoints[0]):
        make_analyzer(endpoint, cache=tmp_path / "a.sqlite").complete(two("a", "b"))
    assert [len(endpoint.received) for endpoint in endpoints] == [1, 1]


def test_a_closed_analyzer_holds_no_file_open(serve, make_analyzer, tmp_path):
    analyzer = make_analyzer(serve(lambda received, number: NOTHING), cache=tmp_path / "a.sqlite")
    analyzer.complete(two("a", "b"))
    assert open_files(tmp_path)
    analyzer.close()
    assert not open_files(tmp_path)
    assert analyzer.complete(two("a", "b")).error == "closed" and not open_files(tmp_path)


def open_files(folder: Path) -> list[str]:
    return [one.path for one in psutil.Process().open_files() if one.path.startswith(str(folder))]


def test_failures_are_not_kept(serve, make_analyzer, tmp_path):
    endpoint = serve(lambda received, number: Reply(status=500, error="x") if number == 0 else NOTHING)
    analyzer = make_analyzer(endpoint, cache=tmp_path / "a.sqlite", attempts=1)
    assert [analyzer.complete(two("a", "b")).error for _ in range(2)] == ["server_error", ""]


def test_without_a_cache_every_question_is_asked(serve, make_analyzer, tmp_path, monkeypatch):
    monkeypatch.setenv("TASPO_CACHE", str(tmp_path / "never"))
    endpoint = serve(lambda received, number: NOTHING)
    analyzer = make_analyzer(endpoint, cache=None)
    for _ in range(2):
        analyzer.complete(two("a", "b"))
    assert len(endpoint.received) == 2 and not (tmp_path / "never").exists()


def test_the_default_cache_lies_in_the_users_folder(serve, make_analyzer, tmp_path, monkeypatch):
    monkeypatch.setenv("TASPO_CACHE", str(tmp_path / "mine"))
    make_analyzer(serve(lambda received, number: NOTHING), cache="auto").complete(two("a", "b"))
    assert (tmp_path / "mine" / "analyzer.sqlite").exists()


def test_workers_that_ask_the_same_at_once_pay_once(serve, make_analyzer, tmp_path):
    endpoint = serve(lambda received, number: Reply(NOTHING, delay=0.2))
    analyzer = make_analyzer(endpoint, cache=tmp_path / "a.sqlite")
    replies: list[Any] = []
    threads = [threading.Thread(target=lambda: replies.append(analyzer.complete(two("a", "b")))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(endpoint.received) == 1 and sorted(reply.is_cached for reply in replies) == [False, True, True, True]


def test_a_damaged_cache_costs_calls_and_not_the_run(serve, make_analyzer, tmp_path, caplog):
    endpoint = serve(lambda received, number: NOTHING)
    analyzer = make_analyzer(endpoint, cache=tmp_path / "a.sqlite")
    analyzer._database.transact(lambda c: c.execute("DROP TABLE answers"))
    for _ in range(2):
        assert analyzer.complete(two("a", "b")).error == ""
    assert len(endpoint.received) == 2
    assert sum("cache cannot be" in record.getMessage() for record in caplog.records) == 1


ASKER = """
import sys
from pathlib import Path
from taspo_trl.analyzer import LiteLLMAnalyzer
from taspo_trl.analyzer.base import AnalyzerRequest
analyzer = LiteLLMAnalyzer("openai/fake", api_base=sys.argv[1], cache=sys.argv[2], run="both", budget_tokens=10**9)
print("ready", flush=True)
sys.stdin.readline()
for n in range(12):
    reply = analyzer.complete(AnalyzerRequest("extraction", "json", {"task": str(n), "trajectories": []}))
    assert not reply.error, reply
print(analyzer.totals.requests, analyzer.totals.cached, *analyzer._ledger.spent(), flush=True)
analyzer.close()
"""


@pytest.mark.slow
def test_two_processes_that_ask_the_same_pay_once_together(serve, tmp_path):
    endpoint = serve(lambda received, number: Reply(NOTHING, delay=0.05))
    arguments = [sys.executable, "-c", ASKER, endpoint.url, str(tmp_path / "a.sqlite")]
    askers = [
        subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(os.environ))
        for _ in range(2)
    ]
    for asker in askers:
        assert asker.stdout.readline() == "ready\n"
    for asker in askers:
        asker.stdin.write("go\n")
        asker.stdin.flush()
    results = [asker.communicate(timeout=60)[0].split() for asker in askers]
    assert [asker.returncode for asker in askers] == [0, 0]
    assert len(endpoint.received) == 12 == sum(int(result[0]) for result in results)
    assert sum(int(result[1]) for result in results) == 12
    assert max(int(result[3]) for result in results) == 12 * 120, "one budget counts what both have spent"
    assert Path(tmp_path / "a.sqlite").exists()
