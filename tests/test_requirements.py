"""What is locked is what is installed and tested; an audit that reaches nothing says so."""

from __future__ import annotations

import configparser
import importlib.util
import json
import re
import subprocess
from pathlib import Path

import pytest


ROOT = Path(__file__).parents[1]
EXTRAS = ("dev", "webshop", "search", "quantization", "notebooks")


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(name: str) -> dict[str, str]:
    lines = (ROOT / "requirements" / name).read_text(encoding="utf-8").splitlines()
    found = [re.match(r"([\w.-]+)==([^\s;\\]+)", line) for line in lines]
    return {canonical(match.group(1)): match.group(2) for match in found if match}


def script(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / "requirements" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def declared(*extras: str) -> set[str]:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    texts = [setup["options"]["install_requires"], *(setup["options.extras_require"][one] for one in extras)]
    lines = [line.strip() for text in texts for line in text.splitlines()]
    return {canonical(re.match(r"[\w.-]+", line).group()) for line in lines if line and not line.startswith("#")}


def test_the_lock_holds_everything_that_the_suite_needs_but_torch_in_the_versions_of_the_constraints():
    locked, wanted = pins("lock.txt"), pins("constraints.txt")
    remedy = "run `make lock` after a change of setup.cfg or constraints.txt"
    assert declared(*EXTRAS) - set(locked) == {"torch"}, remedy
    assert declared("alfworld") - set(locked) - set(pins("lock-alfworld.txt")) == {"torch"}, remedy
    assert not {name for name in locked if name in wanted and locked[name] != wanted[name]}, remedy
    assert not [name for name in locked if name.startswith(("torch", "nvidia", "cuda", "triton"))]


def test_every_locked_file_has_a_hash():
    for name in ("lock.txt", "lock-alfworld.txt"):
        text = (ROOT / "requirements" / name).read_text(encoding="utf-8")
        blocks = re.split(r"\n(?=[\w])", text)
        assert all("--hash=sha256:" in block for block in blocks if "==" in block)


CLEAN = {"name": "a", "version": "1", "vulns": []}
BAD = {"name": "b", "version": "2", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2.1"]}]}
SKIPPED = {"name": "c", "skip_reason": "Dependency not found on PyPI"}


@pytest.mark.parametrize(
    "answer, code, words",
    [
        ("requests.exceptions.ConnectionError: HTTPSConnectionPool", 2, "NOTHING WAS CHECKED"),
        ("No module named pip_audit", 2, "pip-audit is not installed"),
        ("a bug", 2, "pip-audit failed: NOTHING WAS CHECKED. a bug"),
        ([CLEAN], 0, "0 of 1 checked"),
        ([CLEAN, BAD], 1, "vulnerable: b 2: PYSEC-1, mended in 2.1"),
        ([CLEAN, SKIPPED], 2, "NOT CHECKED: c"),
        ([BAD, SKIPPED], 1, "NOT CHECKED: c"),
        ([SKIPPED], 2, "NOTHING WAS CHECKED"),  # a mirror that knows nothing: pip-audit itself calls that clean
        ([], 2, "NOTHING WAS CHECKED"),
    ],
)
def test_an_audit_that_reaches_nothing_is_none(answer, code, words, monkeypatch, capsys):
    audit = script("audit")
    said = ("", answer) if isinstance(answer, str) else (json.dumps({"dependencies": answer}), "")
    monkeypatch.setattr(audit.subprocess, "run", lambda *args, **values: subprocess.CompletedProcess([], 1, *said))
    assert audit.vulnerabilities(ROOT / "requirements" / "lock.txt") == code
    assert words in " ".join(capsys.readouterr().out.split())


def test_no_installation_brings_a_copyleft_package_unasked(capsys):
    audit = script("audit")
    assert {"trl", "transformers", "litellm", "pydantic-core"} <= audit.base_packages()
    assert not audit.base_packages() & set(audit.OPTIONAL)
    assert audit.licences() == 0, capsys.readouterr().out
