"""Environments in processes of their own: the same answers, and every kind of death."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from taspo_trl.environments import remote
from taspo_trl.environments.base import ResetResult, StepResult
from taspo_trl.environments.remote import EnvironmentDied, RemoteEnvironment, check_importable
from taspo_trl.errors import EnvironmentContractError, ServiceError

from .. import scripted
from ..playing import eventually
from ..scripted import ScriptedEnvironment


ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def world(tmp_path):
    made = RemoteEnvironment(partial(ScriptedEnvironment, str(tmp_path)))
    made.reset(seed=3, word="pen")
    yield made
    made.close()


def is_running(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False


def test_a_remote_environment_answers_as_a_local_one(world):
    local = ScriptedEnvironment()
    assert world.reset(seed=3, word="pen") == local.reset(seed=3, word="pen")
    for action in ("go", "bad", "win"):
        assert world.step(action) == local.step(action)
    assert isinstance(world.reset(seed=1), ResetResult) and isinstance(world.step("go"), StepResult)
    assert world.pid != os.getpid()


def test_errors_keep_their_kind_and_say_where_they_arose(world):
    with pytest.raises(ServiceError, match="is down"):
        world.step("service")
    with pytest.raises(RuntimeError, match=r"ValueError: an environment's bug \(scripted\.py:\d+\)"):
        world.step("raise")
    with pytest.raises(RuntimeError, match=r"EnvironmentContractError: `ScriptedEnvironment\.step` gave an `info`"):
        world.step("nonsense info")
    assert world.step("go").observation, "none of them ended the process"


def test_an_answer_that_cannot_be_sent_is_an_error_and_not_a_death():
    world = RemoteEnvironment(scripted.Talkative)
    with pytest.raises(RuntimeError, match=r"pickle|lambda"):
        world.step("x")
    with pytest.raises(RuntimeError, match=r"pickle|lambda"):
        world.step("x")
    world.close()


@pytest.mark.parametrize("order, code", [("die", 7), ("vanish", -9)])
def test_a_death_names_the_exit_code_and_the_call(world, order, code):
    with pytest.raises(EnvironmentDied, match=f"exit code {code} during `step`"):
        world.step(order)
    with pytest.raises(EnvironmentDied):
        world.step("go")
    world.close()
    world.close()


def test_a_kill_ends_a_hung_call(world):
    caught: list[BaseException] = []

    def hang():
        try:
            world.step("sleep")
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=hang)
    thread.start()
    time.sleep(0.1)
    pid = world.pid
    world.kill()
    thread.join(timeout=10)
    assert not thread.is_alive() and isinstance(caught[0], EnvironmentDied)
    world.close()
    assert not is_running(pid)


def test_close_closes_the_environment_and_ends_the_process(tmp_path):
    world = RemoteEnvironment(partial(ScriptedEnvironment, str(tmp_path)))
    world.reset(seed=0)
    pid = world.pid
    world.close()
    world.close()
    assert not is_running(pid)
    assert [event for event, _ in scripted.FileLedger(tmp_path).lines] == ["open", "reset", "close"]


def test_an_environment_that_never_lets_go_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "_JOIN_SECONDS", 0.3)
    world = RemoteEnvironment(partial(scripted.Clinging, str(tmp_path)))
    world.reset(seed=0)
    pid = world.pid
    world.close()
    assert not is_running(pid)


def test_an_interrupt_from_the_keyboard_is_the_main_process_s_to_handle(world):
    os.kill(world.pid, signal.SIGINT)
    assert world.step("go").observation


def test_processes_can_be_started_from_many_threads_at_once(tmp_path, monkeypatch):
    main, spec = sys.modules["__main__"], ModuleSpec("main", None)
    monkeypatch.setattr(main, "__spec__", spec)
    monkeypatch.setattr(main, "__file__", __file__, raising=False)  # the main module of a test worker has none

    def one(k: int) -> str:
        world = RemoteEnvironment(partial(ScriptedEnvironment, str(tmp_path)))
        observation = world.reset(seed=k).observation
        world.close()
        return observation

    with ThreadPoolExecutor(6) as executor:
        assert list(executor.map(one, range(6))) == [f"start of mug with {k}" for k in range(6)]
    assert main.__spec__ is spec and hasattr(main, "__file__"), "no start leaves another one's hiding behind"


def test_the_main_module_is_whole_again_after_a_failed_start(monkeypatch):
    main = sys.modules["__main__"]
    before = (getattr(main, "__file__", None), main.__spec__)
    with pytest.raises(RuntimeError, match="no room"), remote._hidden_main():
        assert not hasattr(main, "__file__") and main.__spec__ is None
        raise RuntimeError("no room")
    assert (getattr(main, "__file__", None), main.__spec__) == before


SCRIPT = """\
print("RUN", flush=True)
import multiprocessing, sys
if {method!r} == "spawn":
    multiprocessing.get_all_start_methods = lambda: ["spawn"]
from functools import partial
from taspo_trl.environments.workers import EnvironmentPool
from tests.scripted import ScriptedEnvironment
pool = EnvironmentPool({{None: partial(ScriptedEnvironment, {folder!r})}}, "process")
workers = [pool.acquire(None) for _ in range(3)]
for worker in workers:
    print(worker.reset(0, {{}}).result(timeout=60).observation)
pool.close()
print(sys.modules["__main__"].__file__ is not None, "END", flush=True)
"""


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
@pytest.mark.parametrize("as_module", [False, True], ids=["as a file", "with -m"])
def test_workers_do_not_run_an_unguarded_script_again(tmp_path, method, as_module):
    (tmp_path / "unguarded.py").write_text(SCRIPT.format(method=method, folder=str(tmp_path)))
    command = ["-m", "unguarded"] if as_module else [str(tmp_path / "unguarded.py")]
    answer = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"},
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.splitlines() == ["RUN", *["start of mug with 0"] * 3, "True END"]
    assert "Traceback" not in answer.stderr


OPEN_WORLD = """\
import time
from taspo_trl.environments.remote import RemoteEnvironment
from tests.scripted import ScriptedEnvironment
world = RemoteEnvironment(ScriptedEnvironment)
world.reset(seed=0)
print(world.pid, flush=True)
"""


def test_a_program_that_closes_nothing_still_ends_and_its_workers_with_it(tmp_path):
    answer = subprocess.run(
        [sys.executable, "-c", OPEN_WORLD],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert answer.returncode == 0 and "Traceback" not in answer.stderr
    assert eventually(lambda: not is_running(int(answer.stdout)))


def test_a_worker_ends_with_the_process_that_started_it(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", OPEN_WORLD + "time.sleep(600)"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as parent:
        pid = int(parent.stdout.readline())
        assert is_running(pid)
        parent.kill()
    assert eventually(lambda: not is_running(pid))


class InMain(ScriptedEnvironment): ...


InMain.__module__ = "__main__"
InMain.__qualname__ = "InMain"


def test_what_another_process_cannot_import_is_refused(monkeypatch):
    class Local(ScriptedEnvironment): ...

    monkeypatch.setattr(sys.modules["__main__"], "InMain", InMain, raising=False)
    for factory in (lambda: None, Local, partial(Local), InMain, partial(ScriptedEnvironment, InMain)):
        with pytest.raises(EnvironmentContractError, match="cannot be sent to a worker process"):
            check_importable(factory)
        with pytest.raises(EnvironmentContractError):
            RemoteEnvironment(factory)


@pytest.mark.parametrize(
    "factory", [ScriptedEnvironment, partial(ScriptedEnvironment, "x"), partial(partial(ScriptedEnvironment), "x")]
)
def test_classes_and_partials_of_modules_are_importable(factory):
    check_importable(factory)


VARIABLES = """\
import os, queue
os.environ["TASPO_TEST_FOLDER"] = "first"
from taspo_trl.environments.workers import EnvironmentPool
from tests.environments.at_import import AtImport, Preloaded
for kind in (AtImport, AtImport, {last}):
    pool = EnvironmentPool({{None: kind}}, "process")
    try:
        print(pool.acquire(None).reset(0, {{}}).result(timeout=60).observation, flush=True)
    except Exception as error:
        print(type(error).__name__, flush=True)
    pool.close()
    os.environ["TASPO_TEST_FOLDER"] = "second"
"""


def answers_of(script: str, folder: Path) -> list[str]:
    answer = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.splitlines()


def test_a_module_that_starts_a_thread_and_reads_a_variable_at_import_works_in_every_worker(tmp_path):
    script = VARIABLES.format(last="AtImport")
    assert answers_of(script, tmp_path) == ["first and first", "second and second", "second and second"]


def test_preloading_is_for_the_first_server_and_only_on_request(tmp_path):
    # The server runs already when the class that asks for it comes: its module is imported by the worker.
    assert answers_of(VARIABLES.format(last="Preloaded"), tmp_path)[2] == "second and second"
    # Asked for at once, the server has imported the module: the worker has no thread of it. This is what `preload`
    # warns of, and the proof that the test above would see a preloaded module.
    script = VARIABLES.format(last="AtImport").replace("(AtImport, AtImport, AtImport)", "(Preloaded,)")
    assert answers_of(script, tmp_path) == ["RuntimeError"]
