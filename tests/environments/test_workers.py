"""Worker threads and the pool: instances are reused, replaced when they fail, and closed exactly once."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from taspo_trl.environments import workers
from taspo_trl.environments.base import ResetResult, StepResult, TextEnvironment
from taspo_trl.environments.workers import EnvironmentPool
from taspo_trl.errors import ConfigurationError, EnvironmentContractError

from .. import scripted
from ..playing import eventually, no_new_threads
from ..scripted import Ledger, ScriptedEnvironment, factory


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    ledger = Ledger()
    yield ledger
    ledger.let_go()


@pytest.fixture
def pool(ledger: Ledger) -> Iterator[EnvironmentPool]:
    pool = EnvironmentPool({None: factory(ledger)}, "thread")
    yield pool
    ledger.let_go()
    pool.close()


def start(pool: EnvironmentPool, **row: Any) -> workers.Worker:
    worker = pool.acquire(None)
    worker.reset(0, row).result(timeout=5)
    return worker


def test_the_probe_is_the_first_instance_and_released_ones_are_used_again(pool, ledger):
    assert ledger.counts["open"] == 1
    first, second = start(pool), start(pool)
    assert ledger.counts["open"] == 2
    pool.release(first)
    assert start(pool) is first
    pool.release(first)
    pool.release(second)
    assert ledger.counts == {"open": 2, "reset": 3}


def test_every_instance_is_closed_once_and_closing_twice_is_allowed(pool, ledger):
    busy, idle, failed = start(pool), start(pool), start(pool)
    pool.release(idle)
    pool.discard(failed)
    with no_new_threads():
        pool.close()
        pool.close()
    assert ledger.counts["close"] == ledger.counts["open"] == 3
    assert not busy.is_alive


def test_a_closed_pool_says_so(pool):
    pool.close()
    with pytest.raises(RuntimeError, match="pool is closed"):
        pool.acquire(None)


def test_instances_can_be_closed_between_runs(pool, ledger):
    start(pool)
    pool.close_instances()
    assert ledger.num_open == 0
    start(pool)
    assert ledger.num_open == 1
    assert pool.probes and pool.traits[None].max_turns == ScriptedEnvironment.max_turns
    pool.close()
    assert ledger.counts["open"] == ledger.counts["close"] == 2


def test_an_idle_instance_that_was_closed_is_not_given_out_again(pool, ledger):
    pool.release(start(pool))
    pool.close_instances()
    assert start(pool).is_alive and ledger.num_open == 1


@pytest.mark.parametrize("how", ["discard", "close_instances"])
def test_a_worker_that_has_left_is_forgotten(pool, how):
    worker = start(pool)
    left = weakref.ref(worker)
    if how == "discard":
        pool.discard(worker)
        worker.join(5)
        pool.discard(start(pool))
    else:
        pool.discard(start(pool))
        pool.close_instances()
    del worker
    assert eventually(lambda: gc.collect() is None or left() is None)


def test_close_waits_for_instances_that_are_on_their_way_out(ledger):
    class Slow(ScriptedEnvironment):
        def close(self):
            time.sleep(0.2)
            super().close()

    pool = EnvironmentPool({None: lambda: Slow(ledger)}, "thread")
    pool.discard(start(pool))
    pool.close()
    assert ledger.counts["close"] == 1


def test_a_hung_call_is_abandoned_and_closes_its_instance_when_it_returns(pool, ledger):
    worker = start(pool)
    future = worker.step("sleep")
    assert eventually(lambda: ledger.counts["step"] == 1)
    pool.discard(worker)
    assert pool.num_abandoned == 1 and not future.done()
    ledger.let_go()
    assert eventually(lambda: not worker.is_alive)
    assert ledger.counts["close"] == 1


def test_an_instance_that_was_made_too_late_is_closed_and_never_called(ledger):
    pool = EnvironmentPool({None: factory(ledger, scripted.Late)}, "thread")
    start(pool)
    late = pool.acquire(None)
    late.reset(0, {})
    assert eventually(lambda: ledger.counts["open"] == 2)
    pool.discard(late)
    assert pool.num_abandoned == 1
    ledger.let_go()
    assert eventually(lambda: not late.is_alive)
    assert ledger.counts["reset"] == 1 and ledger.counts["close"] == 1
    pool.close()


def test_a_call_that_races_with_the_stop_is_either_made_or_not_but_the_instance_is_closed_once(ledger):
    pool = EnvironmentPool({None: factory(ledger)}, "thread")
    given_up = []
    for _ in range(200):
        worker = pool.acquire(None)
        worker.reset(0, {})
        pool.discard(worker)
        given_up.append(worker)
    assert eventually(lambda: not any(worker.is_alive for worker in given_up))
    pool.close()
    assert ledger.counts["open"] == ledger.counts["close"]


def test_a_close_that_hangs_holds_up_the_end_for_a_bounded_time(ledger, monkeypatch):
    monkeypatch.setattr(workers, "_CLOSE_SECONDS", 0.3)
    pool = EnvironmentPool({None: factory(ledger, scripted.Clinging)}, "thread")
    start(pool), start(pool)
    started = time.monotonic()
    pool.close()
    assert 0.3 <= time.monotonic() - started < 5


def test_an_error_in_a_call_comes_through_its_future_and_the_thread_goes_on(pool, ledger):
    worker = start(pool)
    with pytest.raises(ValueError, match="an environment's bug"):
        worker.step("raise").result(timeout=5)
    with pytest.raises(SystemExit):
        worker.step("exit").result(timeout=5)
    assert worker.step("go").result(timeout=5).observation
    pool.discard(worker)
    assert pool.num_abandoned == 0


def test_a_row_is_copied_before_an_instance_gets_it(ledger):
    row = {"stops": ["pen", "mug"]}
    pool = EnvironmentPool({None: factory(ledger, scripted.Meddler)}, "thread")
    answers = [pool.acquire(None).reset(0, row).result(timeout=5) for _ in range(2)]
    pool.close()
    assert [answer.observation for answer in answers] == ["start of mug with 0"] * 2
    assert row == {"stops": ["pen", "mug"]}


def test_traits_are_read_before_the_probe_is_played(ledger):
    pool = EnvironmentPool({None: factory(ledger, scripted.Shrinking)}, "thread")
    start(pool)
    assert pool.probes[None].max_turns == 1, "the probe is a played instance"
    assert pool.traits[None].max_turns == 6 and pool.traits[None].action_tags == ("action",)
    pool.close()


def test_environments_are_told_apart_by_name(ledger):
    other = Ledger()
    pool = EnvironmentPool({"a": factory(ledger), "b": factory(other, scripted.Restless)}, "thread")
    workers_ = [pool.acquire(name) for name in ("a", "b", "b")]
    assert [worker.name for worker in workers_] == ["a", "b", "b"]
    for worker in workers_:
        worker.reset(0, {"word": "pen"}).result(timeout=5)
        pool.release(worker)
    assert (ledger.counts["open"], other.counts["open"]) == (1, 2)
    with pytest.raises(ConfigurationError, match=r"'c'.*'a', 'b'"):
        pool.acquire("c")
    with pytest.raises(ConfigurationError, match="None"):
        pool.acquire(None)
    pool.close()


@pytest.mark.parametrize("backend", ["fork", "", "Thread"])
def test_an_unknown_backend_is_refused(backend: str):
    with pytest.raises(ConfigurationError, match=f"got {backend!r}"):
        EnvironmentPool({None: ScriptedEnvironment}, backend)


def test_an_environment_with_an_unknown_worker_is_refused():
    class Fibre(ScriptedEnvironment):
        worker = "fibre"  # type: ignore[assignment]

    with pytest.raises(EnvironmentContractError, match="'fibre'; it must be 'thread' or 'process'"):
        EnvironmentPool({None: Fibre})


def test_a_pool_that_cannot_be_made_closes_what_it_has_opened(ledger):
    with no_new_threads(), pytest.raises(EnvironmentContractError, match="no method `step`"):
        EnvironmentPool({"good": factory(ledger), "bad": lambda: object.__new__(Lame)}, "thread")
    assert ledger.num_open == 0 and ledger.counts["close"] == 1


class Lame:
    def reset(self, **row): ...

    def close(self): ...


def _notebook_class() -> type:
    class Cell(TextEnvironment):
        """A class that lives in no module that another process could import."""

        def reset(self, *, seed, **row):
            return ResetResult("here")

        def step(self, action):
            return StepResult(threading.current_thread().name, 1.0, True, False, {"success": True})

    return Cell


def test_a_class_of_a_notebook_works_in_threads_and_is_refused_for_processes_with_a_remedy():
    kind = _notebook_class()
    pool = EnvironmentPool({None: kind})
    assert start(pool).step("x").result(timeout=5).observation == "taspo-environment"
    pool.close()
    with pytest.raises(EnvironmentContractError, match=r"defined in a notebook.*environment_backend='thread'"):
        EnvironmentPool({None: kind}, "process")


def test_auto_runs_an_environment_where_it_wants_to_be(tmp_path):
    pool = EnvironmentPool({None: factory(str(tmp_path), scripted.Separate)})
    worker = pool.acquire(None)
    worker.reset(0, {}).result(timeout=30)
    lines = scripted.FileLedger(tmp_path).lines
    assert [event for event, _ in lines] == ["open", "open", "reset"]
    assert lines[0][1] != lines[1][1] == lines[2][1]
    pool.close()
    assert [event for event, _ in scripted.FileLedger(tmp_path).lines].count("close") == 2, "the probe's too"
