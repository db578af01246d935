"""Runs environment instances beside the rollout loop, so that one that hangs or dies costs one episode.

A [`Worker`] owns one instance, calls it in a thread of its own and answers `reset` and `step` with futures. An
instance that hangs in a thread can only be abandoned; one in a process (`remote.py`) is killed.
"""

from __future__ import annotations

import contextlib
import copy
import queue
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from ..errors import ConfigurationError, EnvironmentContractError
from .base import ResetResult, StepResult, Traits, attribute, call, check_environment, reset_needs, traits_of
from .remote import Factory, RemoteEnvironment, check_importable
from .tools import ToolEnvironment, adapted, adapted_object


_CLOSE_SECONDS = 10.0


class EnvironmentPool:
    """Environment instances for concurrent episodes, made on demand, reused through `reset`, closed once.

    Args:
        factories (`Mapping[str | None, Factory]`):
            Environment name -> callable that makes an instance. The single unnamed environment has the name None.
        backend (`str`, *optional*, defaults to `"auto"`):
            `"thread"`, `"process"`, or `"auto"`: what the environment's attribute `worker` says.
        success_threshold (`float`, *optional*):
            For classes written for TRL's `environment_factory`, which are adapted
            ([`~taspo_trl.environments.tools.ToolEnvironment`]): the reward that counts as a verified success.
    """

    def __init__(
        self,
        factories: Mapping[str | None, Factory],
        backend: str = "auto",
        success_threshold: float | None = None,
    ):
        if backend not in ("auto", "thread", "process"):
            raise ConfigurationError(f"The worker backend must be 'auto', 'thread' or 'process', got {backend!r}.")
        self._factories = dict(factories)
        self._success_threshold = success_threshold
        self._idle: dict[str | None, list[Worker]] = {name: [] for name in self._factories}
        self._busy: set[Worker] = set()
        self._leaving: set[Worker] = set()
        """Given up, and about to close their instances."""
        self.num_abandoned = 0
        self.probes: dict[str | None, Any] = {}
        """One instance of each environment in this process: what prompts, tags and texts are read from."""
        self.traits: dict[str | None, Traits] = {}
        self._backends: dict[str | None, str] = {}
        try:
            for name in self._factories:
                self._add(name, backend)
        except BaseException:
            self.close()
            raise

    def _add(self, name: str | None, backend: str) -> None:
        factory, probe = adapted(self._factories[name], self._success_threshold)
        self._factories[name], self.probes[name] = factory, probe
        check_environment(probe)
        self.traits[name] = traits = traits_of(probe)
        if isinstance(probe, ToolEnvironment):
            required_columns, takes_seed = reset_needs(probe.environment.reset, any_keyword=False)
            self.traits[name] = replace(traits, required_columns=required_columns, takes_seed=takes_seed)
        self._backends[name] = chosen = attribute(probe, "worker") if backend == "auto" else backend
        if chosen == "thread":
            self._idle[name].append(Worker(factory, name, probe))  # the probe is not wasted
        elif chosen == "process":
            check_importable(factory)
        else:
            raise EnvironmentContractError(
                f"`{type(probe).__name__}.worker` is {chosen!r}; it must be 'thread' or 'process'."
            )

    @property
    def factories(self) -> Mapping[str | None, Factory]:
        """Environment name -> callable that makes an instance, as the workers call it."""
        return self._factories

    @property
    def is_routed(self) -> bool:
        """Whether a row's `environment` column says which environment plays it."""
        return None not in self._factories

    def runs_in_processes(self, name: str | None) -> bool:
        """Whether instances of an environment live in processes of their own."""
        return self._backends[name] == "process"

    def acquire(self, name: str | None) -> Worker:
        """A worker with an instance of environment `name`, for one episode."""
        if not self.probes:
            raise RuntimeError("The environment pool is closed.")
        if name not in self._factories:
            known = ", ".join(repr(known) for known in self._factories if known is not None) or "the unnamed one"
            raise ConfigurationError(
                f"The row's `environment` is {name!r}, which is not among those of `environment_factory`: {known}."
            )
        if self._idle[name]:
            worker = self._idle[name].pop()
        elif self._backends[name] == "thread":
            worker = Worker(self._factories[name], name)
        else:
            factory, preload = self._factories[name], attribute(self.probes[name], "preload")
            worker = Worker(lambda: RemoteEnvironment(factory, preload), name)
        self._busy.add(worker)
        return worker

    def release(self, worker: Worker) -> None:
        """Give a healthy worker back; its instance is used again."""
        self._busy.discard(worker)
        self._idle[worker.name].append(worker)

    def discard(self, worker: Worker) -> None:
        """Give up a worker whose call failed or hangs."""
        self._busy.discard(worker)
        self._leaving = {one for one in self._leaving if one.is_alive}
        if worker.stop():
            self._leaving.add(worker)
        else:
            self.num_abandoned += 1

    def close_instances(self) -> None:
        """Close every instance, busy ones included; the pool makes new ones when it is used again."""
        workers = [*self._busy, *(worker for idle in self._idle.values() for worker in idle)]
        self._busy.clear()
        for idle in self._idle.values():
            idle.clear()
        deadline = time.monotonic() + _CLOSE_SECONDS
        for worker in workers:
            worker.stop()
        for worker in (*workers, *self._leaving):
            worker.join(max(0.0, deadline - time.monotonic()))
        self._leaving.clear()

    def close(self) -> None:
        """Close every instance and forget the probes; safe to call twice. The pool cannot be used afterwards."""
        self.close_instances()
        for name, probe in self.probes.items():
            if self._backends.get(name) != "thread":  # those of threads were instances too
                with contextlib.suppress(Exception):
                    probe.close()
        self.probes.clear()


class Worker:
    """One environment instance and the thread that alone calls it."""

    def __init__(self, factory: Factory, name: str | None, environment: Any = None):
        self.name = name
        self._factory = factory
        self._environment = environment
        self._calls: queue.SimpleQueue[tuple[str, dict[str, Any], Future] | None] = queue.SimpleQueue()
        self._is_stopped = False
        self._is_in_call = False
        self._thread = threading.Thread(target=self._run, name="taspo-environment", daemon=True)
        self._thread.start()

    def reset(self, seed: int, row: Mapping[str, Any]) -> Future[ResetResult]:
        # A copy: what an instance does to its row must not reach the other members of the group, nor the record.
        return self._submit("reset", {**copy.deepcopy(dict(row)), "seed": seed})

    def step(self, action: str) -> Future[StepResult]:
        return self._submit("step", {"action": action})

    def conclude(self) -> Future[StepResult]:
        return self._submit("conclude", {})

    @property
    def instance(self) -> Any:
        """The user's own object that this worker plays with; None while it has none."""
        return adapted_object(self._environment)

    @property
    def is_alive(self) -> bool:
        """Whether the instance is not yet closed."""
        return self._thread.is_alive()

    def stop(self) -> bool:
        """Have the instance closed once its current call returns. False when that call cannot be ended."""
        self._is_stopped = True
        self._calls.put(None)
        if self._is_in_call and isinstance(self._environment, RemoteEnvironment):
            self._environment.kill()
            return True
        return not self._is_in_call

    def join(self, seconds: float) -> None:
        """Wait for the thread to end."""
        self._thread.join(timeout=seconds)

    def _submit(self, method: str, arguments: dict[str, Any]) -> Future:
        future: Future = Future()
        self._calls.put((method, arguments, future))
        return future

    def _run(self) -> None:
        while (request := self._calls.get()) is not None:
            method, arguments, future = request
            self._is_in_call = True
            if self._is_stopped:  # read behind the flag above: either `stop` sees the call, or the call sees the stop
                break
            try:
                result = self._call(method, arguments)
            except BaseException as error:  # the episode's outcome, delivered through the future
                self._is_in_call = False
                future.set_exception(error)
            else:
                self._is_in_call = False
                future.set_result(result)
        self._is_in_call = False
        if self._environment is not None:
            with contextlib.suppress(Exception):  # an instance that cannot even close has nothing left to lose
                self._environment.close()

    def _call(self, method: str, arguments: dict[str, Any]) -> Any:
        if self._environment is None:
            self._environment = self._factory()
            if self._is_stopped:  # nobody waits any more, and a process made too late to be killed must not be called
                raise RuntimeError("The worker was given up while its environment was being made.")
        return call(self._environment, method, arguments)
