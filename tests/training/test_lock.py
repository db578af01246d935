"""One live run in a folder; the lock dies with its holder, however that ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from taspo_trl.errors import ConfigurationError
from taspo_trl.training.lock import LOCK, if_abandoned, only_run_in


ROOT = Path(__file__).resolve().parents[2]
HOLD = (
    "import os, sys, time\nfrom taspo_trl.training.lock import only_run_in\n"
    "with only_run_in(sys.argv[1]):\n    {fork}print('held', flush=True)\n    time.sleep(60)"
)


def holder(folder, fork=""):
    """A process that holds the lock of `folder`."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD.format(fork=fork), str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout.readline().strip() == "held"
    return process


def test_second_run_is_refused_and_told_who_holds_the_folder(tmp_path):
    process = holder(tmp_path)
    try:
        with (
            pytest.raises(ConfigurationError, match=rf"still alive \(process {process.pid} on "),
            only_run_in(tmp_path),
        ):
            raise AssertionError
        assert str(process.pid) in (tmp_path / LOCK).read_text(), "a refused run leaves the holder's name"
        with only_run_in(tmp_path / "other"):
            pass
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    with only_run_in(tmp_path):
        assert str(os.getpid()) in (tmp_path / LOCK).read_text()


def test_forked_child_does_not_keep_the_lock_of_a_killed_run(tmp_path):
    """A worker of a data loader outlives its trainer for some seconds."""
    fork = "child = os.fork()\n    if not child:\n        os.close(1); time.sleep(30); os._exit(0)\n    "
    process = holder(tmp_path, fork)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    started = time.monotonic()
    while True:  # on a busy machine the child may not have let go yet; it lives for 30 seconds
        try:
            with only_run_in(tmp_path):
                break
        except ConfigurationError:
            assert time.monotonic() - started < 20
            time.sleep(0.05)


def test_lock_is_free_after_the_run_whether_it_failed_or_not(tmp_path):
    with pytest.raises(RuntimeError), only_run_in(tmp_path):
        raise RuntimeError
    with only_run_in(tmp_path), pytest.raises(ConfigurationError), only_run_in(tmp_path):
        pass


def test_file_system_without_locks_costs_a_warning_only(tmp_path, monkeypatch, caplog):
    import fcntl

    monkeypatch.setattr(fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError(37, "No locks available")))
    with only_run_in(tmp_path):
        assert "cannot be locked" in caplog.text


def test_a_folder_is_abandoned_when_its_run_is_dead_and_only_then(tmp_path, monkeypatch):
    def is_abandoned(folder):
        with if_abandoned(folder) as answer:
            if answer:  # nobody else gets it meanwhile
                with pytest.raises(ConfigurationError), only_run_in(folder):
                    pass
            return answer

    process = holder(tmp_path / "run")
    try:
        assert is_abandoned(tmp_path / "run") is False
    finally:
        process.kill()
        process.wait()
    assert is_abandoned(tmp_path / "run") is True
    assert is_abandoned(tmp_path / "none") is False and not (tmp_path / "none").exists()
    (tmp_path / "begins").mkdir()
    (tmp_path / "begins" / LOCK).touch()
    assert is_abandoned(tmp_path / "begins") is False, "a run has made the file, and is about to lock it"
    import fcntl

    monkeypatch.setattr(fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError(37, "No locks available")))
    assert is_abandoned(tmp_path / "run") is False, "it cannot be known"
