"""A weight update without progress ends the process: nothing else ends a wait inside NCCL."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from taspo_trl.generation.sync_watch import watched


def threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name == "taspo-vllm-watch"]


def test_progress_in_time_is_left_alone_however_long_it_goes_on():
    ended = []
    with watched(1.5, "gone", ended.append) as progress:
        for _ in range(25):
            time.sleep(0.08)
            progress()
    assert not ended and not threads()


def test_a_body_without_any_progress_is_ended_once():
    ended, is_over = [], threading.Event()
    with watched(0.1, "gone", lambda reason: ended.append(reason) or is_over.set()):
        assert is_over.wait(10)
        time.sleep(0.3)
    assert ended == ["gone"]


def test_the_wait_after_the_last_progress_is_bounded_too():
    ended, is_over = [], threading.Event()
    with watched(0.2, "gone", lambda reason: ended.append(reason) or is_over.set()) as progress:
        progress()
        progress()
        assert is_over.wait(10)
    assert ended == ["gone"]


def test_a_body_that_raises_ends_the_watch():
    ended = []
    with pytest.raises(ValueError, match="out of memory"), watched(30, "gone", ended.append):
        raise ValueError("out of memory")
    assert not ended and not threads()


def test_a_process_that_hangs_ends_with_the_reason_in_its_log():
    script = (
        "import threading; from taspo_trl.generation.sync_watch import watched\n"
        "with watched(0.2, 'the server at http://a:1 is gone'):\n    threading.Event().wait()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and "the server at http://a:1 is gone" in done.stderr
