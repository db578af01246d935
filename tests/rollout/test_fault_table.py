"""Each fault of the table ends its own episode as it says, within its bounds, and no other."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import pytest

from taspo_trl.rollout.contexts import ChatRenderer
from taspo_trl.types import StopReason

from ..playing import ScriptedPolicy, act, open_pool, play
from ..scripted import Ledger, factory
from ..tokenizers import START, byte_bpe
from .fault_table import ENGINE, FAULTS, PAGE, PROCESS, RETRIEVER, THREAD, Fault, page_with_table


ROOT = Path(__file__).resolve().parents[2]
LIMITS = {"environment_timeout": 1.0, "max_prompt_length": 400, "max_completion_length": 64}

START_ID = byte_bpe().convert_tokens_to_ids(START)

WORLDS = [one for one in FAULTS if one.order]
ENGINES = [one for one in FAULTS if one.answer is not None]


def name_of(one: Fault) -> str:
    return f"{one.part}: {one.what}"


@pytest.fixture(scope="module")
def renderer() -> ChatRenderer:
    return ChatRenderer(byte_bpe())


def check(fault: Fault, run) -> None:
    """Play the faulty episode beside a healthy one, within the bounds."""
    if fault.megabytes is not None:
        tracemalloc.start()
    started = time.monotonic()
    try:
        failed, sibling = run()
        seconds = time.monotonic() - started
        peak = tracemalloc.get_traced_memory()[1] if fault.megabytes is not None else 0
    finally:
        tracemalloc.stop()
    assert sibling.success, "one episode never ends another"
    if isinstance(fault.ends, StopReason):
        assert failed.stop_reason is fault.ends and not failed.success
        assert 0 < len(failed.error) <= 2000 and failed.error.encode()
    else:
        assert failed.success, "it plays on"
        shown, plain = failed.turns[2].prompt_ids, sibling.turns[2].prompt_ids
        assert len(shown) <= LIMITS["max_prompt_length"]
        assert shown.count(START_ID) == plain.count(START_ID), "what it said opens no message"
    assert seconds < fault.seconds
    assert peak <= (fault.megabytes or 0) * 2**20


@pytest.mark.parametrize("fault", WORLDS, ids=name_of)
@pytest.mark.filterwarnings("ignore:.*counts as False")
def test_a_world_s_fault(renderer, tmp_path, fault):
    ledger = Ledger()
    backend, argument = ("process", str(tmp_path)) if fault.part == PROCESS else ("thread", ledger)
    replies = [act("go", fault.order, "win"), act("go", "go", "win")]
    settings = dict(LIMITS)
    if fault.kind != "hangs":  # a busy machine may take its time over ten million characters
        settings["environment_timeout"] = 30.0
    with open_pool(factory(argument), backend) as pool:
        assert all(t.success for t in play(renderer, [act("win")] * 2, pool=pool)), "the workers have started"
        check(fault, lambda: play(renderer, replies, pool=pool, settings=settings))
        assert pool.num_abandoned == (fault.part == THREAD and fault.kind == "hangs")
        again = play(renderer, [act("win")] * 2, pool=pool)
        assert all(t.success for t in again), "and the pool plays on"
        ledger.let_go()


@pytest.mark.parametrize("fault", ENGINES, ids=name_of)
def test_an_engine_s_fault(renderer, fault):
    class Faulty(ScriptedPolicy):
        def _of(self, uid, turn):
            return fault.answer() if uid.endswith("k0") and turn == 1 else super()._of(uid, turn)

        def _generation(self, answer, request):
            return answer if answer == "hello" else super()._generation(answer, request)

    policy = Faulty(renderer.tokenizer, [act("go", "win"), act("go", "win")])
    check(fault, lambda: play(renderer, [[]] * 2, policy=policy, settings=LIMITS))


CRASH = """\
from taspo_trl.environments.workers import EnvironmentPool
from tests.scripted import ScriptedEnvironment
worker = EnvironmentPool({None: ScriptedEnvironment}, "thread").acquire(None)
worker.step("die").result()
"""


def test_a_crash_in_a_thread_takes_the_program_with_it(tmp_path):
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    answer = subprocess.run([sys.executable, "-c", CRASH], timeout=60, cwd=tmp_path, env=env)
    assert answer.returncode == 7


# ---- the table ------------------------------------------------------------------------------------------------------


def test_every_part_has_every_kind_of_fault():
    kinds = {part: {one.kind for one in FAULTS if one.part == part} for part in (THREAD, PROCESS, ENGINE, RETRIEVER)}
    everything = {"raises", "hangs", "dies", "wrong type", "huge", "hostile"}
    assert kinds == dict.fromkeys(kinds, everything)
    assert {one.part for one in FAULTS} == set(kinds)


@pytest.mark.parametrize("fault", FAULTS, ids=name_of)
def test_every_row_is_checked(fault):
    assert bool(fault.order) + (fault.answer is not None) + bool(fault.tests) == 1
    for test in fault.tests:
        module, _, name = test.partition(":")
        assert callable(getattr(importlib.import_module(module), name))


def test_the_page_shows_the_table():
    page = PAGE.read_text(encoding="utf-8")
    assert page == page_with_table(page), "run `python -m tests.rollout.fault_table`"
