"""Scripted replies and the ways to play them: a policy whose replies are given for each (episode, turn)."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from taspo_trl.environments.workers import EnvironmentPool
from taspo_trl.generation import Generation, GenerationRequest, SamplingSettings
from taspo_trl.rollout.contexts import ChatRenderer
from taspo_trl.rollout.loop import RolloutSettings, play_episodes
from taspo_trl.rollout.tasks import EpisodeSpec, plan_groups
from taspo_trl.types import FinishReason, Trajectory

from .scripted import Ledger, ScriptedEnvironment, factory


Reply = str | Sequence[int] | Generation | BaseException


class ScriptedPolicy:
    """Answers each request from a script, when `flush` is called; keeps all requests.

    Args:
        tokenizer:
            Encodes replies given as text; the end token follows.
        reply (`Callable` or `Mapping[int, Sequence[Reply]]`):
            (episode uid, turn) -> reply; or the index of an episode in its group -> its replies, of which the last is
            repeated. An exception is delivered through the future.
        is_continuous (`bool`, *optional*, defaults to `False`):
            Answer at once, as an engine that serves continuously does.
    """

    def __init__(self, tokenizer: Any, reply: Any, is_continuous: bool = False):
        self.tokenizer = tokenizer
        self._reply = reply
        self._is_continuous = is_continuous
        self._queue: list[tuple[GenerationRequest, Future]] = []
        self.requests: list[GenerationRequest] = []
        self.flushes: list[list[str]] = []
        """Uids of each flush that had something to do."""
        self.begun: list[tuple[SamplingSettings, int]] = []
        self._turns: Counter[str] = Counter()

    def begin(self, sampling: SamplingSettings, seed: int) -> None:
        self.begun.append((sampling, seed))
        self._queue.clear()
        self._turns.clear()

    def submit(self, request: GenerationRequest) -> Future:
        self.requests.append(request)
        future: Future = Future()
        self._queue.append((request, future))
        if self._is_continuous:
            self._answer()
        return future

    def flush(self) -> None:
        if self._queue:
            self.flushes.append([request.episode_uid for request, _ in self._queue])
            self._answer()

    def prompts(self, uid: str) -> list[str]:
        """The prompts of an episode as text."""
        return [self.tokenizer.decode(r.prompt_ids) for r in self.requests if r.episode_uid == uid]

    def _answer(self) -> None:
        waiting, self._queue = self._queue, []
        for request, future in waiting:
            turn = self._turns[request.episode_uid]
            self._turns[request.episode_uid] += 1
            answer = self._of(request.episode_uid, turn)
            if isinstance(answer, BaseException):
                future.set_exception(answer)
            else:
                future.set_result(self._generation(answer, request))

    def _of(self, uid: str, turn: int) -> Reply:
        if callable(self._reply):
            return self._reply(uid, turn)
        replies = self._reply[int(uid.rsplit("-k", 1)[1])]
        return replies[min(turn, len(replies) - 1)]

    def _generation(self, answer: Any, request: GenerationRequest) -> Generation:
        if isinstance(answer, Generation):
            return answer
        end = self.tokenizer.eos_token_id
        ids = [*self.tokenizer.encode(answer, add_special_tokens=False), end] if isinstance(answer, str) else answer
        ids = tuple(ids)[: request.max_new_tokens]
        return Generation(ids, FinishReason.STOP if ids and ids[-1] == end else FinishReason.LENGTH)


class SteppedPolicy(ScriptedPolicy):
    """Answers the oldest request at every step, as an engine does that decodes in the loop's thread."""

    is_stepped = True

    def __init__(self, tokenizer: Any, reply: Any):
        super().__init__(tokenizer, reply)
        self.steps: list[list[str]] = []
        """Uids that waited at each step that had something to do."""
        self.forgotten: list[str] = []

    def step(self) -> bool:
        if not self._queue:
            return False
        self.steps.append([request.episode_uid for request, _ in self._queue])
        later, self._queue = self._queue[1:], self._queue[:1]
        self._answer()
        self._queue = later
        return True

    def forget(self, episode_uid: str) -> None:
        self.forgotten.append(episode_uid)


def act(*orders: str) -> list[str]:
    """Replies that give these orders."""
    return [f"<action>{order}</action>" for order in orders]


def one_group(num_generations: int, seed: int = 0, **row: Any) -> list[EpisodeSpec]:
    return plan_groups([{"task_id": "t0", **row}], num_generations, seed, 0, prefix="r0")


@contextmanager
def open_pool(made_by: Any, backend: str = "thread") -> Iterator[EnvironmentPool]:
    pool = EnvironmentPool({None: made_by}, backend)
    try:
        yield pool
    finally:
        pool.close()


def play(
    renderer: ChatRenderer,
    replies: Any,
    *,
    specs: list | None = None,
    pool: EnvironmentPool | None = None,
    kind: type = ScriptedEnvironment,
    ledger: Ledger | None = None,
    policy: ScriptedPolicy | None = None,
    settings: dict[str, Any] | None = None,
    **kwargs: Any,
) -> list[Trajectory]:
    """Play; without `specs` one group with an episode for each script of `replies`."""
    policy = policy or ScriptedPolicy(renderer.tokenizer, replies)
    policy.begin(None, 0)  # type: ignore[arg-type]
    arguments = {
        "engine": policy,
        "renderer": renderer,
        "settings": RolloutSettings(**{"environment_timeout": 30.0, **(settings or {})}),
        **kwargs,
    }
    specs = one_group(len(replies)) if specs is None else specs
    if pool is not None:
        return play_episodes(specs, pool=pool, **arguments)
    with open_pool(factory(ledger, kind)) as own:
        return play_episodes(specs, pool=own, **arguments)


# ---- the process ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Footprint:
    """What a process holds on to."""

    threads: int
    children: int
    temp_files: int
    handles: int


def footprint(temp_folder: str | os.PathLike) -> Footprint:
    return Footprint(
        threads=threading.active_count(),
        children=len(multiprocessing.active_children()),
        temp_files=len(os.listdir(temp_folder)),
        handles=len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0,
    )


def eventually(condition: Callable[[], Any], seconds: float = 10.0) -> bool:
    """Whether `condition` comes true in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return bool(condition())


@contextmanager
def no_new_threads(prefix: str = "taspo-") -> Iterator[None]:
    """No thread whose name starts with `prefix` outlives the block."""
    before = set(threading.enumerate())
    yield

    def left() -> list[str]:
        return [t.name for t in threading.enumerate() if t not in before and t.name.startswith(prefix)]

    assert eventually(lambda: not left()), f"threads left behind: {left()}"


@dataclass
class Recorder:
    """Collects what callbacks are given."""

    items: list[Any] = field(default_factory=list)

    def __call__(self, item: Any) -> None:
        self.items.append(item)
