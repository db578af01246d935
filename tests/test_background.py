"""Worker threads that die with the process, and a guidance stage that stops waiting."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from typing import Any

import pytest

from taspo_trl.background import DaemonPool
from taspo_trl.guidance.base import Construction, GuidanceContext
from taspo_trl.guidance.stage import LATE, GuidanceStage
from taspo_trl.types import Extraction, Guidance, Trajectory, TrajectoryGroup

from .builders import guided
from .playing import eventually, no_new_threads
from .trajectories import outcomes


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    gate = threading.Event()
    yield gate
    gate.set()


# ---- the pool ------------------------------------------------------------------------------------------------------


def test_calls_run_in_the_order_of_submission():
    pool, order = DaemonPool(1, "taspo-x"), []
    futures = [pool.submit(order.append, k) for k in range(20)]
    assert [future.result(timeout=5) for future in futures] == [None] * 20 and order == list(range(20))
    pool.retire()


def test_urgent_calls_overtake_the_others_and_not_each_other(gate):
    pool, order = DaemonPool(1, "taspo-x"), []
    pool.submit(gate.wait)
    futures = [
        pool.submit(order.append, f"{'urgent' if k % 2 else 'other'} {k}", is_urgent=bool(k % 2)) for k in range(6)
    ]
    gate.set()
    for future in futures:
        future.result(timeout=5)
    assert order == ["urgent 1", "urgent 3", "urgent 5", "other 0", "other 2", "other 4"]
    pool.retire()


def test_no_more_threads_than_workers_and_none_without_work(gate):
    with no_new_threads():
        pool = DaemonPool(3, "taspo-few")
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("taspo-few")]
        for _ in range(10):
            pool.submit(gate.wait)
        threads = [thread for thread in threading.enumerate() if thread.name.startswith("taspo-few")]
        assert len(threads) == 3 and all(thread.daemon for thread in threads)
        pool.retire()
        gate.set()


def test_an_exception_belongs_to_whoever_waits():
    pool = DaemonPool(1, "taspo-x")
    assert isinstance(pool.submit(lambda: 1 / 0).exception(timeout=5), ZeroDivisionError)
    assert pool.submit(lambda: 7).result(timeout=5) == 7, "and the thread goes on"
    pool.retire()


def test_a_retired_pool_finishes_what_runs_and_cancels_the_rest(gate):
    pool = DaemonPool(1, "taspo-x")
    entered = threading.Event()
    running = pool.submit(lambda: (entered.set(), gate.wait(10))[1])
    waiting = pool.submit(lambda: 1)
    assert entered.wait(5)
    pool.retire()
    pool.retire()
    with pytest.raises(CancelledError):
        waiting.result(timeout=5)
    with pytest.raises(RuntimeError, match="no more work"):
        pool.submit(lambda: 1)
    gate.set()
    assert running.result(timeout=5) is True


def test_a_process_does_not_wait_for_what_runs():
    code = (
        "import time\n"
        "from taspo_trl.background import DaemonPool\n"
        "DaemonPool(2, 'x').submit(time.sleep, 60)\n"
        "raise KeyboardInterrupt\n"
    )
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=50)
    assert time.monotonic() - started < 30


# ---- the time budget -----------------------------------------------------------------------------------------------


class Slow(Construction):
    """Prepares and builds when its gates open; notes what it finished."""

    name = "slow"
    needs_success = True

    def __init__(self, prepare: threading.Event | None = None, build: threading.Event | None = None):
        self.gates = prepare, build
        self.finished: list[str] = []

    def prepare(self, context: GuidanceContext, group: TrajectoryGroup) -> Extraction:
        self._pass(self.gates[0], group.group_id)
        return Extraction()

    def build(self, context: GuidanceContext, group: TrajectoryGroup, target: Trajectory) -> Guidance:
        self._pass(self.gates[1] if target.uid.endswith("k1") else None, target.uid)
        return guided(target.uid, (1,), len(target.turns), name=self.name)

    def _pass(self, gate: threading.Event | None, name: str) -> None:
        if gate is not None:
            assert gate.wait(10)
        self.finished.append(name)


def reasons(batch: Any) -> dict[str, str]:
    return {uid: one.abstain_reason for uid, one in batch.guidance.items()}


def test_trajectories_that_are_late_do_without_and_the_others_keep_theirs(gate):
    stage = GuidanceStage(Slow(build=gate), time_budget=1.0)
    started = time.monotonic()
    stage.submit(outcomes(1, 0, 0))
    batch = stage.collect()
    assert 0.9 < time.monotonic() - started < 8
    assert reasons(batch) == {"g0-k0": "no_other_success", "g0-k1": LATE, "g0-k2": ""}
    assert batch.guidance["g0-k2"] and batch.visible_seconds < 8 and batch.work_seconds >= batch.visible_seconds
    stage.close()


def test_a_late_preparation_makes_its_group_late_and_no_other(gate):
    construction = Slow()
    stage = GuidanceStage(construction, time_budget=1.0, max_workers=2)
    stage.submit(outcomes(1, 0))
    assert eventually(lambda: len(construction.finished) == 2)
    construction.gates = gate, None
    stage.submit(outcomes(1, 0, group_id="g1"))
    batch = stage.collect()
    assert reasons(batch)["g0-k1"] == "" and reasons(batch)["g1-k1"] == LATE
    assert batch.extractions["g1"].fault == LATE and batch.extractions["g0"].fault == ""
    stage.close()


def test_work_under_way_ends_in_its_own_time_and_nothing_more_is_started(gate):
    construction = Slow(prepare=gate)
    stage = GuidanceStage(construction, time_budget=0.1, max_workers=1)
    for k in range(3):
        stage.submit(outcomes(1, 0, group_id=f"g{k}"))
    assert set(reasons(stage.collect()).values()) == {"no_other_success", LATE}
    gate.set()
    assert eventually(lambda: construction.finished == ["g0"]), "its answer is not wasted"
    time.sleep(0.1)
    assert construction.finished == ["g0"]
    stage.close()


def test_the_next_batch_does_not_wait_for_the_late_one(gate):
    construction = Slow(prepare=gate)
    stage = GuidanceStage(construction, time_budget=1.0, max_workers=1)
    stage.submit(outcomes(1, 0))
    stage.collect()
    construction.gates = None, None
    stage.submit(outcomes(1, 0, group_id="g1"))
    assert reasons(stage.collect()) == {"g1-k0": "no_other_success", "g1-k1": ""}
    stage.close()


def test_a_budget_that_suffices_changes_nothing():
    stage = GuidanceStage(Slow(), time_budget=10.0)
    stage.submit(outcomes(1, 0, 0))
    batch = stage.collect()
    assert all(batch.guidance[f"g0-k{k}"] for k in (1, 2)) and batch.visible_seconds < 5
    stage.close()


def test_the_last_group_is_prepared_before_the_targets_of_the_others(gate):
    construction = Slow(prepare=gate)
    stage = GuidanceStage(construction, max_workers=1)
    stage.submit(outcomes(1, 0, 0, 0))
    stage.submit(outcomes(1, 0, group_id="g1"))
    gate.set()
    stage.collect()
    stage.close()
    assert construction.finished == ["g0", "g1", "g0-k1", "g0-k2", "g0-k3", "g1-k1"]


def test_being_late_is_said_once(gate, caplog):
    stage = GuidanceStage(Slow(prepare=gate), time_budget=0.05)
    with caplog.at_level(logging.WARNING):
        for k in range(3):
            stage.submit(outcomes(1, 0, group_id=f"g{k}"))
            stage.collect()
    assert sum("analyzer_time_budget" in record.getMessage() for record in caplog.records) == 1
    stage.close()
