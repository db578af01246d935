"""Files appear whole or not at all, and a full disk costs a file, not the run."""

import errno
import json
import logging
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from taspo_trl import files
from taspo_trl.files import remove_folder, replacing, spared, write_text


ROOT = Path(__file__).resolve().parents[1]


def test_file_has_the_old_content_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "made" / "file.txt"
    write_text(path, "old")
    with replacing(path) as file:
        file.write("new")
        file.flush()
        assert path.read_text() == "old"
    assert path.read_text() == "new" and os.listdir(path.parent) == ["file.txt"]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file.txt"
    write_text(path, "old")
    with pytest.raises(RuntimeError), replacing(path) as file:
        file.write("half")
        raise RuntimeError
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["file.txt"]


def test_content_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    order = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(files.os, "fsync", lambda handle: (order.append("flush"), fsync(handle))[1])
    monkeypatch.setattr(files.os, "replace", lambda *names: (order.append("rename"), replace(*names))[1])
    write_text(tmp_path / "file", "text")
    assert order == ["flush", "rename", "flush"], "the file, its name, the folder's list of names"


def test_half_a_surrogate_pair_and_line_ends_are_kept_as_they_are(tmp_path):
    write_text(tmp_path / "file", "a\ud800b\r\n")
    assert (tmp_path / "file").read_bytes() == b"a\\ud800b\r\n"


def test_folder_is_gone_at_once_for_its_readers(tmp_path, monkeypatch):
    folder = tmp_path / "checkpoint-1"
    folder.mkdir()
    (folder / "file").write_text("x")
    seen = []
    rmtree = files.shutil.rmtree
    monkeypatch.setattr(files.shutil, "rmtree", lambda *a, **k: (seen.append(folder.exists()), rmtree(*a, **k))[1])
    remove_folder(folder, tmp_path / "trash")
    assert not folder.exists() and not any((tmp_path / "trash").iterdir())
    assert seen[-1] is False, "its files go after its name"
    remove_folder(folder, tmp_path / "trash")


def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_full_disk_is_said_once_for_each_kind_and_ends_nothing(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(files, "_told", set())
    monkeypatch.setattr(files.os, "fsync", full)
    for k in range(3):
        for what in ("the records", "the evaluations"):
            with spared(what, tmp_path / str(k)):
                write_text(tmp_path / str(k), "text")
    assert [r.getMessage().split(" cannot")[0] for r in caplog.records] == ["The records", "The evaluations"]
    assert all(r.levelno >= logging.WARNING and "No space left" in r.getMessage() for r in caplog.records)
    assert not list(tmp_path.iterdir()), "half a file would only be in the way"
    with pytest.raises(KeyError), spared("the records", tmp_path / "x"):
        raise KeyError("what is not the disk's fault")


def test_a_real_limit_of_the_system_is_spared(tmp_path):
    """RLIMIT_FSIZE: the kernel itself refuses to write on."""
    code = (
        "import json, sys\nfrom pathlib import Path\nfrom taspo_trl.files import spared, write_text\n"
        "path = Path(sys.argv[1])\nwrite_text(path, 'old')\n"
        "with spared('the records', path):\n    write_text(path, 'x' * 100_000)\nprint(json.dumps(path.read_text()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "file")],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000)),
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == "old"
    assert "The records cannot be written" in done.stderr and "Traceback" not in done.stderr
    assert os.listdir(tmp_path) == ["file"]
