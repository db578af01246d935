"""What the analyzer is shown: all turns, within the character budget, and nothing about outcomes."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taspo_trl.analyzer.payloads import GAP, alignment_payload, extraction_payload, shorten
from taspo_trl.analyzer.quotes import collapse
from taspo_trl.types import Evidence, Source, StopReason

from ..trajectories import make_trajectory, make_turn


def walk(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key, inner
            yield from walk(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from walk(inner)


def observations(trace: dict) -> list[str]:
    return [step[name] for step in trace["steps"] for name in ("pre", "post") if name in step]


def chain(*texts: str, **fields: Any):
    """A trajectory whose turn t goes from text t to text t + 1."""
    turns = [make_turn(f"go {t}", pre, post) for t, (pre, post) in enumerate(pairwise(texts))]
    return make_trajectory(0, *turns, **fields)


# ---- shortening ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, limit, expected",
    [
        ("a b", 3, "a b"),
        (" a \n b ", 3, "a b"),
        ("abcdefghij", 10, "abcdefghij"),
        ("abcdefghijk", 10, "abc" + GAP + "jk"),  # 10 - 5 = 5 kept: 3 of the head, 2 of the tail
        ("abcdefghijk", 9, "ab" + GAP + "jk"),
    ],
)
def test_an_overlong_text_keeps_head_and_tail_around_a_gap(text: str, limit: int, expected: str):
    assert shorten(text, limit) == expected


@given(st.text(), st.integers(10, 60))
def test_a_shortened_text_fits_and_consists_of_the_record(text: str, limit: int):
    short = shorten(text, limit)
    assert len(short) <= limit
    if len(collapse(text)) > limit:
        head, tail = short[: limit - 5 - (limit - 5) // 2], short[limit - (limit - 5) // 2 :]
        assert head + GAP + tail == short
        assert collapse(text).startswith(head) and collapse(text).endswith(tail)
    else:
        assert short == collapse(text)


# ---- traces --------------------------------------------------------------------------------------------------------


def test_every_turn_is_kept_with_its_index_and_its_acceptance():
    turns = [make_turn(f"go {t}", valid=t % 3 != 0) for t in range(50)]
    payload = extraction_payload("task", [make_trajectory(0, *turns)], 300)
    steps = payload["trajectories"][0]["steps"]
    assert [step["step"] for step in steps] == list(range(50))
    assert [step["valid"] for step in steps] == [t % 3 != 0 for t in range(50)]
    assert [step["action"] for step in steps] == [f"go {t}" for t in range(50)]


def test_an_invalid_step_is_marked():
    # ENV-2
    turns = [
        make_turn("put mug 1 in/on desk 1", post="Nothing happens.", valid=False),
        make_turn("move mug 1 to desk 1"),
    ]
    payload = extraction_payload("task", [make_trajectory(0, *turns, success=True)])
    assert [step["valid"] for step in payload["trajectories"][0]["steps"]] == [False, True]


def test_an_observation_that_repeats_the_answer_before_it_is_told_once():
    turns = [make_turn("a", "one", "two"), make_turn("b", "two", "three"), make_turn("c", "another", "four")]
    steps = alignment_payload(make_trajectory(0, *turns), [])["target"]["steps"]
    assert [sorted(step) for step in steps] == [
        ["action", "post", "pre", "step", "valid"],
        ["action", "post", "step", "valid"],
        ["action", "post", "pre", "step", "valid"],
    ]
    assert [step.get("pre") for step in steps] == ["one", None, "another"]


def test_task_and_actions_have_caps_of_their_own():
    turn = make_turn("x" * 1000)
    payload = extraction_payload("y" * 5000, [make_trajectory(0, turn)])
    assert len(payload["task"]) == 1200 and GAP in payload["task"]
    assert len(payload["trajectories"][0]["steps"][0]["action"]) == 320
    target = alignment_payload(make_trajectory(0, make_turn("x" * 320), task="y" * 1200), [])
    assert GAP not in target["task"] and GAP not in target["target"]["steps"][0]["action"]


@given(
    st.lists(st.lists(st.integers(0, 3000), min_size=2, max_size=30), min_size=1, max_size=4),
    st.integers(100, 12000),
)
def test_observations_share_what_task_and_actions_leave(lengths: list[list[int]], max_chars: int):
    successes = [chain(*(f"{k}" * n for k, n in enumerate(one))) for one in lengths]
    payload = extraction_payload("the task", successes, max_chars)
    share = (max_chars - len("the task")) // len(successes)
    for trace in payload["trajectories"]:
        shown = observations(trace)
        actions = sum(len(step["action"]) for step in trace["steps"])
        used, cut = actions + sum(map(len, shown)), [len(text) for text in shown if GAP in text]
        assert len(set(cut)) <= 1, "what is cut is cut to one length"
        if cut and cut[0] > 40:
            assert used <= share < used + len(cut), "no larger length would fit"
        assert used <= share or cut == [] or cut[0] == 40
        assert cut or len(shown) == 0 or used <= share or max(map(len, shown)) <= 40


def test_short_observations_leave_their_room_to_long_ones():
    # 1000 characters; task 4, actions "go 0" and "go 1" 4 each: 988 for "a" * 10, "b" * 2000 and "c" * 2000.
    # The short one takes 10, the long ones share 978: 489 each.
    target = chain("a" * 10, "b" * 2000, "c" * 2000, task="task")
    shown = observations(alignment_payload(target, [], 1000)["target"])
    assert [len(text) for text in shown] == [10, 489, 489]
    assert shown[1] == "b" * 242 + GAP + "b" * 242


def test_what_fits_its_share_exactly_still_leaves_its_remainder_to_others():
    # 194 characters; task 4, actions 8: 182 for 60, 60 and 1000. A third of it is 60, and 62 are left for the last.
    shown = observations(alignment_payload(chain("a" * 60, "b" * 60, "c" * 1000, task="task"), [], 194)["target"])
    assert [len(text) for text in shown] == [60, 60, 62]


def test_the_budget_s_default_is_the_method_s():
    for function in (extraction_payload, alignment_payload):
        assert inspect.signature(function).parameters["max_chars"].default == 12_000


def test_forty_characters_of_each_observation_are_always_shown():
    target = chain(*("x" * 500 for _ in range(9)), task="y" * 1200)
    shown = observations(alignment_payload(target, [], 50)["target"])
    assert [len(text) for text in shown] == [40] * len(shown)


def test_the_budget_is_split_equally_over_the_traces():
    long = [chain("a" * 9000, "b" * 9000) for _ in range(3)]
    traces = extraction_payload("task", long, 3004)["trajectories"]
    assert [sum(map(len, observations(trace))) for trace in traces] == [996] * 3  # 1000 less the action's 4, even


def test_a_payload_fits_the_default_budget_with_its_frame_beside_it():
    successes = [chain(*("z" * 4000 for _ in range(20))) for _ in range(4)]
    payload = extraction_payload("t" * 3000, successes)
    texts = sum(len(value) for key, value in walk(payload) if key in ("task", "pre", "post", "action"))
    assert 11_500 < texts <= 12_000


def test_white_space_is_collapsed_everywhere():
    target = chain("a\n\n b", "c\t d\u00a0e", task="do \n it")
    payload = alignment_payload(target, [])
    assert payload["task"] == "do it"
    assert observations(payload["target"]) == ["a b", "c d e"]


# ---- nothing about outcomes ----------------------------------------------------------------------------------------

ALLOWED_KEYS = {
    "task",
    "trajectories",
    "target",
    "allowed_evidence",
    "traj_uid",
    "steps",
    "step",
    "pre",
    "action",
    "valid",
    "post",
    "evidence_id",
    "kind",
    "statement",
    "sources",
    "pre_quote",
    "action_quote",
    "post_quote",
}


def test_a_payload_holds_only_agreed_keys_and_is_plain_json():
    evidence = [Evidence("E1", "progress", "Do it.", (Source("g0-k1", 0, "", "go", "You go."),))]
    target = chain("a", "b", "c")
    for payload in (extraction_payload("task", [target]), alignment_payload(target, evidence)):
        assert {key for key, _ in walk(payload)} <= ALLOWED_KEYS
        assert json.loads(json.dumps(payload)) == payload


def test_an_outcome_changes_no_payload():
    texts = ("a", "b", "c")
    won = chain(*texts, success=True, reward=3.5, rewards={"success": 1.0}, seconds=1.0)
    lost = chain(*texts, stop_reason=StopReason.MAX_TURNS, reward=-1.0, error="oops", family="other")
    assert alignment_payload(won, []) == alignment_payload(lost, [])
    assert extraction_payload("task", [won]) == extraction_payload("task", [lost])
