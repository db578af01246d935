"""One environment in a process of its own, called like a local one.

Processes are forked from a clean server process where the platform has one; else they are spawned. Each imports the
environment's module itself, with the environment variables that are set when it starts: a module that starts a thread
or reads a variable at import works as it does in the main process. A class whose import is slow and starts nothing may
ask for more (`preload`): the server then imports its module once, for all. A hang is ended by killing the process; a
dead process is an [`EnvironmentDied`].
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

from ..errors import EnvironmentContractError, ServiceError
from .answers import message_of, worded
from .base import ResetResult, StepResult, call


Factory = Callable[[], Any]

_JOIN_SECONDS = 5.0
_MAIN_LOCK = threading.Lock()


class EnvironmentDied(RuntimeError):
    """The process that held an environment ended."""


class RemoteEnvironment:
    """Proxy of an environment that lives in a worker process.

    Args:
        factory (`Callable`):
            Makes the environment; must be importable (a class or function of a module, or a `functools.partial`).
        preload (`bool`, *optional*, defaults to `False`):
            Fork from a server that has imported the factory's module, if no server runs yet. What the module reads
            or starts at import is then the server's: threads are lost, variables set later are not seen.

    Raises:
        EnvironmentContractError: `factory` cannot be sent to another process.
    """

    def __init__(self, factory: Factory, preload: bool = False):
        check_importable(factory)
        method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
        context: Any = multiprocessing.get_context(method)
        if method == "forkserver":
            context.set_forkserver_preload([__name__, *([_module_of(factory)] if preload else [])])
        self._connection, theirs = context.Pipe()
        # As bytes: what is unpickled before `_serve` runs would be imported before the variables are set.
        arguments = (theirs, pickle.dumps(factory), dict(os.environ))
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        with _hidden_main():
            self._process.start()
        theirs.close()
        self._is_closed = False

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def reset(self, **arguments: Any) -> ResetResult:
        return self._ask("reset", arguments)

    def step(self, action: str) -> StepResult:
        return self._ask("step", {"action": action})

    def conclude(self) -> StepResult:
        return self._ask("conclude", {})

    def kill(self) -> None:
        """End the process now; a call in flight raises [`EnvironmentDied`]."""
        self._process.kill()

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        with contextlib.suppress(OSError, ValueError):
            self._connection.send(None)
        self._process.join(timeout=_JOIN_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(timeout=_JOIN_SECONDS)
        self._connection.close()
        self._process.close()

    def _ask(self, method: str, arguments: dict[str, Any]) -> Any:
        try:
            self._connection.send((method, arguments))
            kind, payload = self._connection.recv()
        except (EOFError, OSError) as error:
            self._process.join(timeout=1.0)
            raise EnvironmentDied(
                f"The environment's process ended with exit code {self._process.exitcode} during `{method}`."
            ) from error
        if kind == "result":
            return payload
        if kind == "interrupt":
            raise payload
        raise (ServiceError if kind == "service" else RuntimeError)(payload)


def _serve(connection: Connection, factory: bytes, variables: dict[str, str]) -> None:
    """The loop of a worker process."""
    os.environ.clear()  # the server's are those of its own start
    os.environ.update(variables)
    gc.freeze()  # what the fork server imported stays shared: a collection here would touch, and so copy, its pages
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the main process's to handle; it closes the pipe
    environment = None
    try:
        while True:
            try:
                request = connection.recv()
            except (EOFError, OSError):
                break
            if request is None:
                break
            method, arguments = request
            answer: tuple[str, Any]
            try:
                if environment is None:
                    environment = pickle.loads(factory)()
                answer = ("result", call(environment, method, arguments))
                pickle.dumps(answer)
            except ServiceError as error:
                answer = ("service", message_of(error))
            except KeyboardInterrupt:
                answer = ("interrupt", KeyboardInterrupt())
            except SystemExit as error:
                answer = ("interrupt", SystemExit(error.code if isinstance(error.code, int) else message_of(error)))
            except BaseException as error:
                answer = ("error", worded(error))
            with contextlib.suppress(OSError):  # nobody is left to answer; the next `recv` says so
                connection.send(answer)
    finally:
        if environment is not None:
            with contextlib.suppress(Exception):
                environment.close()


@contextlib.contextmanager
def _hidden_main() -> Iterator[None]:
    """Keep `multiprocessing` from importing the user's script in the worker.

    It would run the training script again, once for each worker, unless the script guards its top level. The workers
    need nothing from it: factories are importable.
    """
    main = sys.modules["__main__"]
    with _MAIN_LOCK:  # read inside as well: another thread's start may be hiding them now
        hidden = {name: getattr(main, name) for name in ("__file__", "__spec__") if hasattr(main, name)}
        try:
            if "__file__" in hidden:
                del main.__file__
            main.__spec__ = None
            yield
        finally:
            for name, value in hidden.items():
                setattr(main, name, value)


def _module_of(factory: Factory) -> str:
    target = getattr(factory, "func", factory)  # functools.partial
    return getattr(target, "__module__", None) or "__main__"


def check_importable(factory: Factory) -> None:
    """Raise [`~taspo_trl.errors.EnvironmentContractError`] unless another process can import `factory`."""
    try:
        # A reference into the main module stands in the pickle by name; workers never import that module.
        is_importable = b"__main__" not in pickle.dumps(factory)
    except Exception:
        is_importable = False
    if not is_importable:
        raise EnvironmentContractError(
            f"{factory!r} cannot be sent to a worker process: it is defined in a notebook, in `__main__` or inside a "
            "function. Move the class into a module (use `functools.partial` for arguments), or run it in threads "
            "with `environment_backend='thread'`."
        )
