"""Whatever JSON an analyzer answers: no exception, and nothing accepted that does not stand in the records."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import find, given, settings
from hypothesis import strategies as st

from taspo_trl.analyzer.quotes import collapse
from taspo_trl.analyzer.validation import validate_alignment, validate_evidence
from taspo_trl.types import Rejection

from .answers import ALLOWED, FAILURE, ITEM, OTHER, SOURCE, STATEMENT, SUCCESS, SUPPORT


EXTRACTION = {
    "evidence": [
        ITEM,
        {**ITEM, "evidence_id": "E2", "sources": [SOURCE, {**SOURCE, "traj_uid": "g0-k1"}]},
        {
            **ITEM,
            "evidence_id": "E3",
            "sources": [
                {**SOURCE, "step": 0, "pre_quote": "", "action_quote": "go to desk 1", "post_quote": "a mug 1"}
            ],
        },
    ]
}
ALIGNMENT = {
    "targets": [
        {
            "traj_uid": FAILURE.uid,
            "guidance": [
                STATEMENT,
                {
                    **STATEMENT,
                    "target_support": [SUPPORT, {"step": 2, "field": "action", "quote": "move mug 1 to desk 1"}],
                },
                {**STATEMENT, "target_support": [{"step": None, "field": "task", "quote": "Put a mug"}]},
            ],
            "abstain_reason": "",
        }
    ]
}

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
plausible = st.one_of(
    st.sampled_from(
        ["g0-k0", "g0-k1", "g0-k2", "E1", "E2", "E99", "pre", "post", "action", "task", "\ud83d", "x" * 801]
    ),
    st.sampled_from(["go to desk 1", "Nothing happens.", "You move mug 1", "a room", "made up", "No.", "mug", ""]),
    st.integers(-1, 6),
    st.sampled_from([SOURCE, SUPPORT, ITEM, STATEMENT]),
)


@st.composite
def spoiled(draw: st.DrawFn, answer: dict) -> Any:
    """`answer` with up to four of its values replaced, at any depth."""
    answer = copy.deepcopy(answer)
    for _ in range(draw(st.integers(0, 4))):
        place: Any = answer
        while True:
            keys = sorted(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            inner = place[key]
            if isinstance(inner, dict | list) and inner and draw(st.integers(0, 9)) > 0:
                place = inner
                continue
            place[key] = copy.deepcopy(draw(plausible | anything))
            break
    return answer


def writable(rejections: list[Rejection]) -> bool:
    return all(one.reason and one.item.encode() is not None for one in rejections)


@settings(max_examples=400, deadline=None)
@given(spoiled(EXTRACTION) | anything)
def test_no_extraction_raises_and_nothing_is_accepted_that_is_not_in_the_records(answer: Any):
    accepted, rejected = validate_evidence(answer, [SUCCESS, OTHER])
    by_uid = {one.uid: one for one in (SUCCESS, OTHER)}
    assert writable(rejected)
    assert len({one.evidence_id for one in accepted}) == len(accepted)
    for one in accepted:
        assert one.evidence_id.strip() and 0 < len(one.statement) <= 800
        assert one.sources
        for source in one.sources:
            turn = by_uid[source.traj_uid].turns[source.step]
            assert source.step >= 0 and type(source.step) is int and turn.valid
            assert collapse(source.action_quote) == collapse(turn.action)
            assert collapse(source.pre_quote) in collapse(turn.observation)
            assert collapse(source.post_quote) in collapse(turn.next_observation)
            assert collapse(source.pre_quote) or collapse(source.post_quote)
        json.dumps(one.statement, ensure_ascii=False).encode()


@settings(max_examples=400, deadline=None)
@given(spoiled(ALIGNMENT) | anything)
def test_no_alignment_raises_and_nothing_is_accepted_that_is_not_in_the_record(answer: Any):
    accepted, rejected, abstained = validate_alignment(answer, FAILURE, ALLOWED)
    assert writable(rejected) and len(accepted) <= 8
    abstained.encode()
    for one in accepted:
        assert set(one.evidence_ids) == {"E1"} and one.support and 0 < len(one.text) <= 800
        one.text.encode()
        for support in one.support:
            turn = FAILURE.turns[support.step]
            record = {
                "task": FAILURE.task_text,
                "pre": turn.observation,
                "action": turn.action,
                "post": turn.next_observation,
            }[support.field]
            assert collapse(support.quote) and collapse(support.quote) in collapse(record)


def test_spoiled_answers_are_partly_accepted_and_partly_rejected():
    # A property over rejects alone would prove nothing.
    effort = settings(max_examples=500, deadline=None, database=None)

    def is_mixed(accepted: list, rejected: list) -> bool:
        return bool(accepted) and bool(rejected)

    find(spoiled(EXTRACTION), lambda answer: is_mixed(*validate_evidence(answer, [SUCCESS, OTHER])), settings=effort)
    find(
        spoiled(ALIGNMENT),
        lambda answer: is_mixed(*validate_alignment(answer, FAILURE, ALLOWED)[:2]),
        settings=effort,
    )


def deep(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = [value]
    return value


def test_a_bottomless_answer_is_rejected_and_not_followed():
    _, rejected = validate_evidence({"evidence": [{**ITEM, "statement": deep(5000)}]}, [SUCCESS])
    assert [one.reason for one in rejected] == ["statement_type"]
    _, rejected = validate_evidence(deep(100_000), [SUCCESS])
    assert rejected[0].item == "(cannot be shown)"
