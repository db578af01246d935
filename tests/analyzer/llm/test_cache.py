"""Paid answers: found again by content, whole after a kill, asked for by one at a time."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from taspo_trl.analyzer.base import AnalyzerRequest, FailedAnswer
from taspo_trl.analyzer.llm.cache import AnswerCache, Claims, Question, question_of, retold
from taspo_trl.analyzer.llm.database import Database
from taspo_trl.analyzer.llm.transport import RawAnswer
from taspo_trl.errors import ConfigurationError


PARAMETERS = {"max_tokens": 4096, "temperature": 0.0}


def request(**payload: Any) -> AnalyzerRequest:
    return AnalyzerRequest("extraction", "system", payload)


def two(uid_a: str, uid_b: str, action: str = "look") -> AnalyzerRequest:
    return request(
        task="x", trajectories=[{"traj_uid": uid_a, "steps": [{"action": action}]}, {"traj_uid": uid_b, "steps": []}]
    )


def key(one: AnalyzerRequest, model: str = "m", parameters: Any = PARAMETERS) -> str:
    return question_of(model, parameters, one).key


@pytest.fixture
def cache(tmp_path) -> AnswerCache:
    return AnswerCache(Database(tmp_path / "a.sqlite"), "m")


def put(cache: AnswerCache, question: Question, text: str = '{"evidence": []}', **values: Any) -> None:
    cache._database.transact(lambda c: cache.put(c, question, "extraction", RawAnswer(text, **values)))


# ---- what makes two questions one -----------------------------------------------------------------------------------


def test_equal_content_under_other_uids_is_the_same_question():
    assert key(two("r0-g0-k0", "r0-g0-k1")) == key(two("r9-g3-k0", "r9-g3-k1"))


def test_the_order_of_keys_in_a_payload_is_no_content():
    assert key(request(a=1, b=2)) == key(request(b=2, a=1))


@pytest.mark.parametrize(
    "other",
    [
        two("a", "a"),
        two("a", "b", "go"),
        two("b", "b", "look"),
        request(task="x", trajectories=[]),
        replace(two("a", "b"), system="another prompt"),
        replace(two("a", "b"), stage="alignment"),
        replace(two("a", "b"), failed=FailedAnswer("text", "fault")),
    ],
)
def test_other_content_is_another_question(other):
    assert key(other) != key(two("a", "b"))


def test_model_and_parameters_are_part_of_the_question():
    keys = {
        key(two("a", "b")),
        key(two("a", "b"), model="n"),
        key(two("a", "b"), parameters={**PARAMETERS, "temperature": 1.0}),
        key(two("a", "b"), parameters={**PARAMETERS, "max_tokens": 1}),
    }
    assert len(keys) == 4


def test_the_prompt_version_is_part_of_the_question(monkeypatch):
    before = key(two("a", "b"))
    monkeypatch.setattr("taspo_trl.analyzer.llm.cache.PROMPT_VERSION", "another")
    assert key(two("a", "b")) != before


def test_a_uid_is_told_from_content_by_its_field():
    # An evidence id that happens to be called like a trajectory stays what it is.
    answer = json.dumps({"evidence": [{"evidence_id": "a", "statement": "a", "sources": [{"traj_uid": "a"}]}]})
    told = json.loads(retold(answer, ("a", "b"), ("x", "y")))
    assert told == {"evidence": [{"evidence_id": "a", "statement": "a", "sources": [{"traj_uid": "x"}]}]}


def test_uids_may_change_places():
    answer = json.dumps({"evidence": [{"sources": [{"traj_uid": "a"}, {"traj_uid": "b"}, {"traj_uid": "?"}]}]})
    told = json.loads(retold(answer, ("a", "b"), ("b", "a")))
    assert [source["traj_uid"] for source in told["evidence"][0]["sources"]] == ["b", "a", "?"]


@pytest.mark.parametrize(
    "text", ["", " ", "no json at all", "null", "{}", '{"evidence": null}', '{"evidence": [', "[]"]
)
def test_an_answer_that_cannot_be_read_is_not_kept_and_not_found_where_one_was(cache, text):
    question = question_of("m", PARAMETERS, two("a", "b"))
    put(cache, question, text)
    assert cache.get(question) is None
    assert cache._database.read(lambda c: c.execute("SELECT COUNT(*) FROM answers").fetchone()) == (0,)
    # A file of before may hold one.
    data = json.dumps({"text": text, "uids": question.uids, "answer": {}})
    row = (question.key, "m", "extraction", 0.0, data)
    cache._database.transact(lambda c: c.execute("INSERT INTO answers VALUES (?, ?, ?, ?, ?)", row))
    assert cache.get(question) is None
    put(cache, question)
    assert cache.get(question) is not None


def test_a_whole_answer_that_the_server_calls_cut_is_kept(cache):
    question = question_of("m", PARAMETERS, two("a", "b"))
    put(cache, question, '{"evidence": [', finish_reason="length")
    assert cache.get(question) is None
    put(cache, question, finish_reason="length")
    assert cache.get(question).finish_reason == "length"


def test_an_answer_comes_back_as_it_was(cache):
    question = question_of("m", PARAMETERS, two("a", "b"))
    answer = RawAnswer('{"evidence": ["é \N{SNOWMAN}\u2028"]}', "length", 10, 20, 0.5, True)
    cache._database.transact(lambda c: cache.put(c, question, "extraction", answer))
    assert cache.get(question) == answer
    assert cache.get(question_of("n", PARAMETERS, two("a", "b"))) is None


def test_answers_lie_there_as_json_and_nothing_is_pickled(cache, tmp_path):
    put(cache, question_of("m", PARAMETERS, two("a", "b")), '{"evidence": []}')
    cache._database.close()
    rows = sqlite3.connect(tmp_path / "a.sqlite").execute("SELECT answer FROM answers").fetchall()
    assert [json.loads(row[0])["text"] for row in rows] == ['{"evidence": []}']


# ---- the file -------------------------------------------------------------------------------------------------------


def test_a_file_that_is_no_cache_is_refused_with_a_remedy(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("these are my notes, " * 100)
    with pytest.raises(ConfigurationError, match=r"cannot be used.*analyzer_cache"):
        Database(path).check()
    assert path.read_text().startswith("these are my notes"), "it is not touched"


def test_a_cache_of_another_version_is_refused(tmp_path):
    path = tmp_path / "a.sqlite"
    Database(path).check()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(ConfigurationError, match="version 99"):
        Database(path).check()


def test_a_cache_can_be_closed_twice_and_opens_again(cache):
    question = question_of("m", PARAMETERS, two("a", "b"))
    put(cache, question)
    cache._database.close()
    cache._database.close()
    assert cache.get(question) is not None


def test_many_threads_share_one_file(cache):
    def work(k: int) -> None:
        for n in range(20):
            put(cache, Question(f"{k}-{n}", ()), f'{{"evidence": [{k}]}}')
            assert cache.get(Question(f"{k}-{n}", ())).text == f'{{"evidence": [{k}]}}'

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache._database.read(lambda c: c.execute("SELECT COUNT(*) FROM answers").fetchone()) == (80,)


WRITER = """
import sys
from taspo_trl.analyzer.llm.cache import AnswerCache, Question
from taspo_trl.analyzer.llm.database import Database
from taspo_trl.analyzer.llm.transport import RawAnswer
cache = AnswerCache(Database(__import__("pathlib").Path(sys.argv[1])), "m")
for n in range(10**6):
    key = f"{sys.argv[2]}-{n}"
    answer = RawAnswer('{"evidence": [%d]}' % n)
    cache._database.transact(lambda c: cache.put(c, Question(key, ()), "extraction", answer))
    print(n, flush=True)
"""


def test_a_kill_at_any_moment_loses_no_answer_that_was_filed(tmp_path):
    path, rng = tmp_path / "a.sqlite", random.Random(0)
    for attempt in range(2):
        # Two writers at a time: the killed one must not block the other either.
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", WRITER, path, f"{attempt}{name}"], stdout=subprocess.PIPE, text=True
            )
            for name in "ab"
        ]
        for writer in writers:
            writer.stdout.readline()
        time.sleep(rng.uniform(0.0, 0.2))
        for writer in writers:
            os.kill(writer.pid, signal.SIGKILL)
        cache = AnswerCache(Database(path), "m")
        for writer, name in zip(writers, "ab", strict=True):
            last = int((writer.communicate()[0].split() or ["0"])[-1])
            for n in range(last + 1):
                assert cache.get(Question(f"{attempt}{name}-{n}", ())).text == f'{{"evidence": [{n}]}}'
        assert cache._database.read(lambda c: c.execute("PRAGMA integrity_check").fetchone()) == ("ok",)
        cache._database.close()


# ---- one asker at a time --------------------------------------------------------------------------------------------


def test_threads_take_turns_on_one_question_and_not_on_two(tmp_path):
    claims, closed = Claims(tmp_path / "lock"), threading.Event()
    inside: list[str] = []
    most = [0]

    def work(name: str) -> None:
        with claims.claim(name, closed):
            inside.append(name)
            most[0] = max(most[0], len(inside))
            assert inside.count(name) == 1
            time.sleep(0.02)
            inside.remove(name)

    threads = [threading.Thread(target=work, args=(name * 64,)) for name in "aaabbb"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most[0] == 2


def test_whoever_gives_up_waiting_takes_nothing_away(tmp_path):
    claims, open_event, closed = Claims(tmp_path / "lock"), threading.Event(), threading.Event()
    closed.set()
    with claims.claim("a" * 64, open_event):
        with claims.claim("a" * 64, closed):
            pass  # let through because everything is closing
        assert claims._take("a" * 64) is None, "the first claim still holds"
    assert claims._take("a" * 64) is not None


HOLDER = """
import sys, threading, pathlib, time
from taspo_trl.analyzer.llm.cache import Claims
with Claims(pathlib.Path(sys.argv[1])).claim("a" * 64, threading.Event()):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_claim_of_another_process_holds_until_that_process_dies(tmp_path):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, tmp_path / "lock"], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    claims = Claims(tmp_path / "lock")
    assert claims._take("a" * 64) is None and claims._take("b" * 64) is not None
    os.kill(holder.pid, signal.SIGKILL)
    holder.communicate()
    assert claims._take("a" * 64) is not None
