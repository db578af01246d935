"""Hostile answers and records take time in proportion to their length: the process reads them and goes on."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from taspo_trl.analyzer.answers import MAX_CHARS, MAX_REPAIR_CHARS, read_answer
from taspo_trl.analyzer.extractive import ExtractiveAnalyzer
from taspo_trl.analyzer.llm.cache import question_of, retold
from taspo_trl.analyzer.payloads import alignment_payload, extraction_payload
from taspo_trl.analyzer.quotes import MAX_QUOTES
from taspo_trl.analyzer.validation import validate_alignment, validate_evidence
from taspo_trl.redaction import redactor

from ..trajectories import make_trajectory, make_turn
from .answers import ALLOWED, ITEM, SOURCE, STATEMENT, SUPPORT


def assert_linear(work: Callable[[int], object], size: int) -> None:
    """Twice the size takes about twice the time; what a busy machine adds is not added three times in a row."""
    for _ in range(3):
        half, whole = _seconds(work, size // 2), _seconds(work, size)
        if whole < 3 * half + 0.05 and whole < 3:
            return
    raise AssertionError(f"{half:.3f} s for {size // 2} characters, {whole:.3f} s for {size}")


def _seconds(work: Callable[[int], object], n: int) -> float:
    started = time.process_time()
    work(n)
    return time.process_time() - started


def filled(text: str, piece: str, length: int) -> str:
    return text.replace("%", piece * ((length - len(text)) // len(piece)))


@pytest.mark.parametrize(
    "text",
    [
        "%",
        "```json\n%",
        "```json\n%```",
        '```json\n{"a": 1}%x\n```',
        '```json\n{"a": 1}\n```%',
        '{"a": 1}\n```%x',
        "{%}",
        '{"a": [%]}',
        '{"a": "%',
        "{'a': '%'}",
        '<think>%{"a": 1}',
        '%</think>{"a": 1}',
        '{"a": 1} %',
        '{"a": 1,}%',
    ],
)
@pytest.mark.parametrize(
    "piece",
    [
        " ",
        "\n",
        "```",
        "``` \n",
        "<think>",
        "</think>",
        "{",
        "[",
        '"',
        "\\",
        "'",
        "a ",
        "a",
        "<|",
        '{"a":',
        "1,",
        "a:",
    ],
)
def test_reading_an_answer(text, piece):
    for size in (MAX_REPAIR_CHARS, MAX_CHARS):
        assert_linear(lambda n: read_answer(filled(text, piece, n)), size)


@pytest.mark.parametrize("piece", [" ", "a", "{", "```\n"])
def test_an_answer_of_a_megabyte_is_not_even_looked_at(piece):
    assert_linear(lambda n: read_answer(piece * (n // len(piece))), 10**6)


WORDS = "On the desk 1, you see a mug’s lid… "


@pytest.mark.parametrize("piece", [WORDS, " ", "a", "\u00a0", "’", "…", "ab " * 20])
def test_looking_up_wrong_quotes_in_a_long_record(piece):
    def work(n: int) -> None:
        text = piece * (n // len(piece))
        record = make_trajectory(0, make_turn("look", text, text), task=text, success=True)
        quote = "you see a mug's lid, but no"
        sources = [{**SOURCE, "step": 0, "action_quote": "look", "pre_quote": quote, "post_quote": quote}]
        supports = [{**SUPPORT, "field": field, "quote": quote} for field in ("pre", "post", "task")]
        evidence = [{**ITEM, "evidence_id": f"E{k}", "sources": sources} for k in range(MAX_QUOTES)]
        validate_evidence({"evidence": evidence}, [record])
        guidance = [{**STATEMENT, "target_support": supports}] * 50
        validate_alignment({"targets": [{"traj_uid": record.uid, "guidance": guidance}]}, record, ALLOWED)

    assert_linear(work, 10**6)


@pytest.mark.parametrize("item", [{}, ITEM, {"a": "x" * 1000}, {**ITEM, "sources": [SOURCE] * 50}, [], 1])
def test_checking_many_items(item):
    record = make_trajectory(0, make_turn("look", "a", "b"), success=True)

    def work(n: int) -> None:
        items = [item] * max(1, n // len(json.dumps(item)))
        _, rejected = validate_evidence({"evidence": items}, [record])
        assert len(rejected) <= 201 and sum(len(one.item) for one in rejected) < 150_000
        validate_alignment({"targets": [{"traj_uid": record.uid, "guidance": items}]}, record, ALLOWED)

    assert_linear(work, 10**6)


@pytest.mark.parametrize("piece", [WORDS, " ", "a", "<a>", "<a> ", ". ", "mug ", '"', "\\"])
def test_asking_about_a_long_record(piece):
    def work(n: int) -> None:
        text = piece * (n // len(piece))
        turns = [make_turn(text, text, text)] + [make_turn("take mug 1", text, WORDS)] * 3
        record = make_trajectory(0, *turns, task=text, success=True)
        payload = extraction_payload(text, [record])
        request = _request("extraction", payload)
        question_of("m", {}, request)
        evidence, _ = validate_evidence(json.loads(ExtractiveAnalyzer().complete(request).text), [record])
        request = _request("alignment", alignment_payload(record, evidence))
        ExtractiveAnalyzer().complete(request)

    assert_linear(work, 10**6)


def _request(stage, payload):
    from taspo_trl.analyzer.base import AnalyzerRequest

    return AnalyzerRequest(stage, "json", payload)


@pytest.mark.parametrize("piece", ["{", '{"traj_uid": "a"}, ', " "])
def test_retelling_a_filed_answer(piece):
    assert_linear(lambda n: retold(f'{{"a": [{piece * (n // len(piece))}1]}}', ("a",), ("b",)), MAX_CHARS)


@pytest.mark.parametrize(
    "piece", ["http://", "://a", "?key", "key=", "a:a@", "https://a:", "sk-", "hf_", "a", "?&key=", "Bearer "]
)
def test_taking_secrets_out_of_a_text(piece, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "aaaaaaaaaaaaaaab")
    redact = redactor()
    assert_linear(lambda n: redact(piece * (n // len(piece))), 10**6)
