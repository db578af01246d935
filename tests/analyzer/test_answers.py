"""Answers to objects: what can be read in one way only is read, everything else is rejected with a reason."""

from __future__ import annotations

import json

import pytest

from taspo_trl.analyzer.answers import MAX_CHARS, MAX_DEPTH, read_answer


OBJECT = '{"evidence": [{"evidence_id": "E1", "statement": "open it first"}]}'
VALUE = {"evidence": [{"evidence_id": "E1", "statement": "open it first"}]}
DECOY = '{"evidence": []}'


@pytest.mark.parametrize(
    "text",
    [
        OBJECT,
        f"\n\n  {OBJECT}\t\n",
        f"\ufeff{OBJECT}",
        json.dumps(VALUE, indent=4),
        f"```json\n{OBJECT}\n```",
        f"```\n{OBJECT}\n```",
        f"```JSON\n{OBJECT}\n```  ",
        f"  ```json\n{OBJECT}```",
        f"Here it is:\n{OBJECT}",
        f"{OBJECT}\n\nI hope this helps.",
        f"Sure.\n```json\n{OBJECT}\n```\nDone.",
        f"<think>first {DECOY} then</think>{OBJECT}",
        f"<think>\n{DECOY}\n</think>\n\n```json\n{OBJECT}\n```",
        f"<THINK>hm</THINK>{OBJECT}",
        f"<thinking>hm</thinking>\nAnswer: {OBJECT}",
        f"the template opened the block, {DECOY}\n</think>\n{OBJECT}",
        f"Analysis of the records: {OBJECT} I think that is all, <b>really</b> [1].",
    ],
)
def test_one_object_is_found(text):
    read = read_answer(text)
    assert (read.value, read.fault, read.is_repaired) == (VALUE, "", False)


@pytest.mark.parametrize(
    "text, value",
    [
        ("{'a': 'it\\'s', \"b\": [1, 2,],}", {"a": "it's", "b": [1, 2]}),
        ('{"a": 1 "b": 2}', {"a": 1, "b": 2}),
        ('{"a": True, "b": None, "c": False}', {"a": True, "b": None, "c": False}),
        ('{a: "x", b: []}', {"a": "x", "b": []}),
        ('Answer:\n```json\n{"a": "x",}\n```', {"a": "x"}),
    ],
)
def test_a_slip_that_leaves_one_reading_is_repaired(text, value):
    read = read_answer(text)
    assert (read.value, read.fault, read.is_repaired) == (value, "", True)


def test_raw_line_breaks_in_strings_stand_for_themselves():
    assert read_answer('{"a": "x\ny\tz"}').value == {"a": "x\ny\tz"}


@pytest.mark.parametrize(
    "text, fault",
    [
        ("", "empty_answer"),
        (" \n\ufeff", "empty_answer"),
        ("<think>only thoughts</think>", "empty_answer"),
        ("I cannot help with that.", "not_json"),
        ('"ok"', "not_an_object"),
        ("null", "not_an_object"),
        ("3", "not_an_object"),
        ('[{"evidence_id": "E1"}]', "not_an_object"),
        (f"[{OBJECT}]", "not_an_object"),
        (f"Result: [{OBJECT}]", "not_an_object"),
        (f"{OBJECT}{OBJECT}", "several_objects"),
        (f"{DECOY}\n{OBJECT}", "several_objects"),
        (f"The set {{a, b}} is meant. {OBJECT}", "several_objects"),
        (f"{OBJECT} or maybe {DECOY}", "several_objects"),
        (f"```json\n{DECOY}\n```\n```json\n{OBJECT}\n```", "several_objects"),
        (f"Sure:\n```python\n{OBJECT}\n```", "foreign_fence"),
        (f"<think>still thinking {OBJECT}", "unclosed_thought"),
        (f"Sure.\n<think>{DECOY}\nwrong, so", "thought_around"),
        (f"{DECOY}\n</think>", "thought_around"),
        (f"{DECOY}\nwrong, so </think>", "thought_around"),
        (f"<think>hm</think>\n{DECOY}\n</think>", "thought_around"),
        (f"<think>a<think>b</think>{DECOY}</think>", "thought_around"),
        (f"```json\n<think>{DECOY}\n```", "thought_around"),
        (f"[THINK]{DECOY}", "thought_around"),
        (f"[THINK]{DECOY}[/THINK]", "thought_around"),
        (f"<seed:think>{DECOY}", "thought_around"),
        (f"◁think▷{DECOY}", "thought_around"),
        (f"<|START_THINKING|>{DECOY}", "thought_around"),
        (f"<｜begin▁of▁thought｜>{DECOY}", "thought_around"),
        (f"<scratchpad>{DECOY}", "thought_around"),
        (f"<|channel|>analysis<|message|>{DECOY}", "thought_around"),
        (
            f"<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>{DECOY}",
            "thought_around",
        ),
        (f"analysisWe might say {DECOY}", "thought_around"),
        (f"analysisWe are sure.assistantfinal{DECOY}", "thought_around"),
        ('{"evidence":[{"evidence_id":"E1","sta', "cut_json"),
        (OBJECT[:-1], "cut_json"),
        (OBJECT[:-3], "cut_json"),
        ('{"a": "x}', "cut_json"),
        ('```json\n{"evidence": [{"evidence_id": "E1"', "cut_json"),
        ('{"evidence": [{"evidence_id": "E1"]}', "not_json"),
        ('{"a": NaN}', "not_finite"),
        ('{"a": -Infinity}', "not_finite"),
        ('{"a": 1e999}', "not_finite"),
        ('{"a": 1, "a": 2}', "duplicate_key"),
        ('{"a": {"b": 1, "b": 1}}', "duplicate_key"),
        ('{"a": "x" // a comment\n}', "not_json"),
        ('{"a": .5}', "not_json"),
        ('{"a": "1" + "2"}', "not_json"),
        ('{"a": "He said "go" now"}', "not_json"),
        ("{'a': 'it's'}", "not_json"),
        ('{"a": "1" "2"}', "not_json"),
        ('{"a": 01}', "not_json"),
        ('{"a": b}', "not_json"),
        ('{"a": ...}', "not_json"),
        ('{"a":' * (MAX_DEPTH + 1) + "1" + "}" * (MAX_DEPTH + 1), "too_deep"),
        ('{"a":' * 100_000, "answer_too_long"),
        ("[" * 50_000, "not_json"),
        ("x" * (MAX_CHARS + 1), "answer_too_long"),
        ('{"a": ' + "9" * 5000 + "}", "not_json"),
    ],
)
def test_anything_else_is_rejected_with_its_reason(text, fault):
    read = read_answer(text)
    assert (read.value, read.fault) == (None, fault)


def test_every_prefix_of_an_answer_is_a_reject():
    # ANA-2: never half an item, whatever the server says about why the answer ended.
    for end in range(len(OBJECT)):
        for is_cut in (False, True):
            assert read_answer(OBJECT[:end], is_cut).value is None, OBJECT[:end]


def test_a_cut_answer_is_read_as_it_stands_or_not_at_all():
    assert read_answer(OBJECT, is_cut=True).value == VALUE
    assert read_answer(f"```json\n{OBJECT}\n```", is_cut=True).value == VALUE
    assert read_answer(OBJECT.replace("]}", "],}"), is_cut=True).fault == "not_json"
