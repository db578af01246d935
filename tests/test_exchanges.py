"""The one event loop: a client's end is its own, whatever other clients do, and a forked child begins anew."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from concurrent.futures import CancelledError
from typing import Any, ClassVar

import pytest

from taspo_trl.background import Exchanges, background_loop, run

from .playing import eventually


class Session:
    """What a client opens; counts."""

    made: ClassVar[list[Session]] = []

    def __init__(self) -> None:
        assert asyncio.get_running_loop() is background_loop()
        self.is_closed = False
        Session.made.append(self)

    async def close(self) -> None:
        self.is_closed = True


@pytest.fixture(autouse=True)
def none_made() -> None:
    Session.made.clear()


async def hang() -> None:
    await asyncio.sleep(60)


async def starts_more(names: list[str]) -> None:
    """What LiteLLM does: leave a task behind that nobody waits for."""

    async def left() -> None:
        try:
            await hang()
        finally:
            names.append("left")

    asyncio.get_running_loop().create_task(left())
    await hang()


def test_nothing_is_opened_before_the_first_exchange_and_one_session_serves_all():
    exchanges = Exchanges(Session)
    assert not Session.made

    async def use() -> Any:
        return exchanges.session()

    assert {exchanges.run(use()) for _ in range(3)} == set(Session.made) and len(Session.made) == 1
    exchanges.close()
    assert Session.made[0].is_closed
    assert exchanges.run(use()) is Session.made[1], "the next exchange opens another one"
    exchanges.close()
    exchanges.close()


def test_closing_one_client_ends_all_that_came_of_it_and_nothing_of_another():
    names: list[str] = []
    one, other = Exchanges(Session), Exchanges(Session)
    first, second = one.start(starts_more(names)), other.start(hang())
    assert eventually(lambda: len(asyncio.all_tasks(background_loop())) == 3)
    one.close()
    with pytest.raises(CancelledError):
        first.result(5)
    assert names == ["left"] and not second.done()
    other.close()
    assert second.cancelled() and not asyncio.all_tasks(background_loop())


def test_a_forgotten_client_ends_too():
    def use_and_forget() -> None:
        exchanges = Exchanges(Session)

        async def use() -> None:
            exchanges.session()

        exchanges.run(use())

    use_and_forget()
    gc.collect()
    assert eventually(lambda: Session.made[0].is_closed)


def test_cancelling_the_future_cancels_the_work():
    exchanges = Exchanges(Session)
    future = exchanges.start(hang())
    future.cancel()
    assert eventually(lambda: not asyncio.all_tasks(background_loop()))
    exchanges.close()


def test_closing_from_the_loop_itself_does_not_wait_for_itself():
    exchanges = Exchanges(Session)

    async def ends_itself() -> None:
        exchanges.session()
        exchanges.close()
        await hang()

    with pytest.raises(CancelledError):
        exchanges.run(ends_itself())
    assert eventually(lambda: Session.made[0].is_closed)


def test_a_forked_child_has_a_loop_of_its_own_and_leaves_the_parents_alone():
    exchanges = Exchanges(Session)

    async def number() -> int:
        exchanges.session()
        return 7

    assert exchanges.run(number()) == 7
    parent = background_loop()
    child = os.fork()
    if child == 0:
        is_right = exchanges.run(number()) == 7 and background_loop() is not parent and len(Session.made) == 2
        exchanges.close()
        os._exit(0 if is_right and not Session.made[0].is_closed else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert exchanges.run(number()) == 7 and not Session.made[0].is_closed
    exchanges.close()


def test_there_is_one_thread_for_all():
    async def name() -> str:
        return threading.current_thread().name

    assert {run(name()), Exchanges(Session).run(name())} == {"taspo-http"}
