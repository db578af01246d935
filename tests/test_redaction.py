"""No secret leaves the process in a text: whatever is written or logged goes through one place."""

from __future__ import annotations

import ast
import base64
import gzip
import json
import logging
import re
import time
from pathlib import Path

import pytest

import taspo_trl
from taspo_trl.config import TASPOConfig
from taspo_trl.errors import ConfigurationError
from taspo_trl.evaluation.results import EvaluationResult, Play
from taspo_trl.records import TrajectoryRecord, read_records, write_records
from taspo_trl.redaction import (
    Secret,
    holds_secret,
    redacted,
    redactor,
    shown_address,
    without_credentials,
    without_secrets,
)
from taspo_trl.types import StopReason
from taspo_trl.viewer import write_viewer
from tests.trajectories import make_trajectory, make_turn


KEY = 'env-CANARY-"7731"\\é'
PASSED = "passed-CANARY-4242"


@pytest.fixture(autouse=True)
def secrets(monkeypatch):
    monkeypatch.setenv("SOME_SERVICE_TOKEN", KEY)
    held = Secret(PASSED)
    yield held


LEAKS = [
    f"refused: {KEY}",
    json.dumps({"key": KEY}),
    f"refused: {PASSED}",
    "http://me:CANARY@host/v1",
    "http://CANARY@host/v1",
    "http://me:CAN@ARY-CANARY@host",
    "GET /v1?api_key=CANARY&x=1",
    "http://h/v1?key=CANARY",
    "https://h/x?a=1&access_token=CANARY#b",
    "http://h/v1;token=CANARY/x",
    "Authorization: Bearer CANARY-CANARY",
    "authorization: bearer  CANARY.CANARY",
    "key sk-proj-CANARY0123456789abc",
    "hf_CANARY" + "a1" * 15,
    "ghp_CANARY" + "a1" * 15,
    "AKIA" + "CANARY7731ABCDEF",
]


@pytest.mark.parametrize("text", LEAKS)
def test_what_looks_like_a_secret_is_taken_out(text):
    shown = redacted(text)
    assert "CANARY" not in shown and "***" in shown
    assert redacted(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "You see a key 1 and a token. Press <key>.",
        "https://example.org/a/b?page=2&keyword=x#top",
        "mail me@example.org, see http://example.org/@me",
        "max_tokens=4096; key = silver",
        "class sk-estimator-doc-link and task-sk-learn",
        "bearer of news",
        "a=b" * 10,
    ],
)
def test_other_text_stays_as_it_is(text):
    assert redacted(text) == text


def test_a_secret_that_is_gone_is_no_secret(secrets):
    assert redacted(f"{PASSED} other-CANARY-1", Secret("other-CANARY-1")) == "*** ***"
    assert redacted("other-CANARY-1") == "other-CANARY-1"


def test_data_keeps_its_numbers_and_names(monkeypatch):
    monkeypatch.setenv("A_PASSWORD", "12345678")
    data = {"12345678": [0.12345678, 12345678, True, None, "pin 12345678", ("12345678",)]}
    assert without_secrets(data) == {"12345678": [0.12345678, 12345678, True, None, "pin ***", ["***"]]}


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("token", True), ("hf_token", True), ("use_auth_token", True), ("api_key", True), ("apiKey", True),
        ("X-Api-Key", True), ("Authorization", True), ("db.password", True), ("private_key", True),
        ("pad_token", False), ("decoder_start_token", False), ("max_tokens", False), ("tokenizer", False),
        ("keyword", False), ("monkey", False), (7, False),
    ],
)  # fmt: skip
def test_options_that_prove_who_one_is_are_known_by_their_name(name, is_one):
    data = {"a": [{name: "silver"}], name: None}
    assert without_credentials(data) == {"a": [{name: "***" if is_one else "silver"}], name: None}


def leaky(k: int = 0):
    text = " | ".join(LEAKS)
    turn = make_turn(f"go {text}", f"pre {text}", f"post {text}")
    return make_trajectory(k, turn, turn, task=text, stop_reason=StopReason.ENV_ERROR, error=f"raised {text}")


def test_records_and_the_viewers_page_hold_none(tmp_path, monkeypatch):
    path = tmp_path / "run" / "_trajectories" / "rollout-00000.jsonl"
    write_records(path, [TrajectoryRecord(leaky(k), "g0", 0, 0) for k in range(2)])
    assert "CANARY" not in path.read_text(encoding="utf-8")
    assert [record.trajectory.uid for record in read_records(path)] == ["g0-k0", "g0-k1"]
    # A record of before, or of elsewhere, may hold some.
    path.write_text(
        path.read_text(encoding="utf-8").replace("raised", "raised http://me:CANARY@host"), encoding="utf-8"
    )
    page = write_viewer(tmp_path / "run").read_text(encoding="utf-8")
    packed = re.findall(r'<script type="text/plain"[^>]*>([^<]+)</script>', page)
    assert packed and "CANARY" not in page
    assert not [one for one in packed if b"CANARY" in gzip.decompress(base64.b64decode(one))]


def test_evaluations_hold_none(tmp_path):
    text = " | ".join(LEAKS)
    play = Play("t", "pick", 0, False, 0.0, 1, 1, StopReason.ENV_ERROR, text)
    EvaluationResult((play,), {"analyzer": text}).save(tmp_path / "a.json")
    assert "CANARY" not in (tmp_path / "a.json").read_text(encoding="utf-8")
    assert EvaluationResult.load(tmp_path / "a.json").plays[0].stop_reason == StopReason.ENV_ERROR


def test_the_log_holds_none(caplog, capsys):
    logger = logging.getLogger("taspo_trl.somewhere")
    handler = logging.StreamHandler()
    logger.addHandler(handler)
    try:
        logger.warning("failed: %s", " | ".join(LEAKS))
        try:
            raise ValueError(f"no: {PASSED}")
        except ValueError:
            logger.exception("with a traceback")
    finally:
        logger.removeHandler(handler)
    shown = capsys.readouterr().err
    assert "failed: refused: ***" in shown and "ValueError: no: ***" in shown and "with a traceback" in shown
    assert "CANARY" not in shown + caplog.text
    other = logging.getLogger("elsewhere")
    other.warning("%s", PASSED)
    assert caplog.records[-1].getMessage() == PASSED, "another library's log is its own"


ADDRESSES = [
    "http://me:CANARY@h/v1",
    "http://CANARY@h/v1",
    "http://h/v1?key=CANARY",
    "http://h/v1#CANARY",
    "http://h/v1;CANARY/x",
    f"http://h/{PASSED}/v1",
    "http://h/sk-CANARY0123456789abcdef/v1",
]


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("name", ["analyzer_api_base", "vllm_server_base_url"])
def test_an_address_that_holds_a_secret_is_refused_by_the_configuration_and_not_echoed(name, address, tmp_path):
    assert holds_secret(address)
    values = {"use_vllm": True, "vllm_mode": "server"} if name.startswith("vllm") else {}
    with pytest.raises(ConfigurationError, match=name) as caught:
        TASPOConfig(output_dir=str(tmp_path), report_to="none", **values, **{name: address})
    assert "CANARY" not in str(caught.value)


def test_an_address_is_shown_without_its_secrets():
    assert not [url for url in ADDRESSES[:5] if "CANARY" in shown_address(url)]
    assert shown_address("http://h:1/retrieve") == "http://h:1/retrieve" and not holds_secret("http://h:1/retrieve")


def test_redacting_is_fast_where_there_is_nothing_to_take_out():
    text = "You are in the middle of a room; on the desk = 1, see http://example.org. " * 14_000  # 1 MB
    redact = redactor()
    started = time.process_time()
    assert redact(text) == text
    assert time.process_time() - started < 0.5


# ---- nobody goes past it --------------------------------------------------------------------------------------------

PACKAGE = Path(taspo_trl.__file__).parent
WITHOUT_OUTSIDE_TEXT = {
    "files": "writes what it is given",
    "redaction": "is what takes secrets out",
    "checkpoints": "reads",
    "training/lock": "a process number and a host's name",
    "training/saving": "numbers and tensors of the run",
    "training/checkpoint": "numbers and tensors of the run",
    "training/earlier_run": "moves files",
    "cli/": "prints what it has read",
    "methods/cards": "prints the docstrings of the rules",
    "environments/": "indexes and data sets that were on the disk before",
    "reporting/progress": "numbers, and the names of data sets",
    "reporting/hub": "copies files that were written",
    "viewer/write": "the text is made by viewer/page",
    "training/nonfinite": "numbers",
    "training/folder": "moves files",
    "training/publishing": "copies files that were written",
    "quickstart/policy": "weights",
}


def test_every_module_that_writes_a_text_redacts_it():
    guilty = []
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).with_suffix("").as_posix()
        tree = ast.parse(path.read_text(encoding="utf-8"))
        called = {
            getattr(node.func, "attr", getattr(node.func, "id", ""))
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
        }
        imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
        if called & {"write_text", "writelines", "write", "replacing", "dump"} and not imported & {
            "redacted",
            "redactor",
            "without_secrets",
        }:
            guilty.append(name)
    assert not [name for name in guilty if not name.startswith(tuple(WITHOUT_OUTSIDE_TEXT))], guilty
