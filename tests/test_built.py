"""What is built from a clone installs into an empty folder and runs outside of the clone, with everything inside."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from taspo_trl import __version__
from tests.runs import write_small_run


ROOT = Path(__file__).resolve().parents[1]
PACKAGE = {
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "taspo_trl").rglob("*")
    if path.is_file() and "__pycache__" not in path.parts
}


def run(*command: str, cwd: Path, **environment: str) -> str:
    variables = {**os.environ, "PYTHONPATH": "", "PIP_NO_INDEX": "1", **environment}
    done = subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_wheel_of_the_sdist_runs_outside_of_the_clone(tmp_path):
    source, dist, target = tmp_path / "source", tmp_path / "dist", tmp_path / "installed"
    source.mkdir()
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "taspo_trl", source / "taspo_trl", ignore=shutil.ignore_patterns("__pycache__"))
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(dist), cwd=source)  # the wheel, of the sdist
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        assert {name for name in archive.namelist() if name.startswith("taspo_trl/")} == PACKAGE
    with tarfile.open(sdist) as archive:
        assert {name.split("/", 1)[1] for name in archive.getnames() if "/" in name} >= PACKAGE

    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check")
    run(*pip, "--target", str(target), str(wheel), cwd=tmp_path)
    command, here = str(target / "bin" / "taspo"), {"cwd": tmp_path, "PYTHONPATH": str(target)}
    where = "import taspo_trl; print(taspo_trl.__file__, taspo_trl.TASPOConfig.__module__)"
    assert run(sys.executable, "-c", where, **here).split() == [
        str(target / "taspo_trl/__init__.py"),
        "taspo_trl.config",
    ]
    assert __version__ in run(sys.executable, command, "--version", **here)
    assert "--score_temperature" in run(sys.executable, command, "train", "--help", **here)
    page = Path(run(sys.executable, command, "view", str(write_small_run(tmp_path / "run")), **here).split()[-1])
    assert (tmp_path / page).read_text(encoding="utf-8").count("<script") >= 2
