"""Nothing that an analyzer extracts is believed: each rule of docs/method.md, section 4, from both sides."""

from __future__ import annotations

from typing import Any

import pytest

from taspo_trl.analyzer.validation import supported_by_others, validate_evidence
from taspo_trl.types import Evidence, Source

from ..trajectories import make_trajectory, make_turn
from .answers import FAILURE, ITEM, LONG_ACTION, OTHER, SOURCE, SUCCESS


def extract(*items: Any, **kwargs: Any) -> tuple[list[Evidence], list[str]]:
    accepted, rejected = validate_evidence({"evidence": list(items)}, [SUCCESS, OTHER], **kwargs)
    assert all(one.stage == "extraction" for one in rejected)
    return accepted, [one.reason for one in rejected]


def item(**changes: Any) -> dict:
    return {key: value for key, value in {**ITEM, **changes}.items() if value is not ...}


def source(**changes: Any) -> dict:
    """An item whose only source is changed."""
    return item(sources=[{key: value for key, value in {**SOURCE, **changes}.items() if value is not ...}])


# ---- extraction ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [None, "ok", 3, [], [ITEM], {}, {"evidence": None}, {"evidence": {}}, {"evidence": "x"}, {"items": [ITEM]}],
    ids=repr,
)
def test_an_answer_without_a_list_of_evidence_is_rejected_whole(answer: Any):
    accepted, rejected = validate_evidence(answer, [SUCCESS])
    assert accepted == [] and [one.reason for one in rejected] == ["no_evidence_list"]


def test_a_good_item_becomes_evidence_with_its_words_as_they_were_said():
    [evidence], reasons = extract(item(statement="  Move it\n with  move. "))
    assert reasons == []
    assert evidence == Evidence(
        "E1",
        "progress",
        "Move it with move.",
        (Source("g0-k0", 2, "Nothing happens.", "move mug 1 to desk 1", "You move mug 1"),),
    )


def test_no_evidence_is_an_answer():
    assert extract() == ([], [])


@pytest.mark.parametrize("kind", ["requirement", "progress", "constraint", "alternative"])
def test_the_four_kinds_are_known(kind: str):
    assert extract(item(kind=kind))[1] == []


GOOD_ITEMS = {
    "statement of 800 characters": item(statement="x" * 800),
    "800 characters outside ASCII": item(statement="é" * 800),
    "an id of one letter": item(evidence_id="1"),
    "a statement of one letter": item(statement="x"),
    "extra keys": item(weights=[1, 2], advantage=9, confidence="high"),
    "extra keys in a source": source(score=1.0),
    "pre only": source(post_quote=""),
    "post only": source(pre_quote=""),
    "pre missing": source(pre_quote=...),
    "post null": source(post_quote=None),
    "a blank quote counts as empty": source(pre_quote=" \n "),
    "a quote of four characters": source(post_quote="You "[:3] + " m"),
    "a short record as a whole": source(step=3, pre_quote="", action_quote=LONG_ACTION, post_quote="No."),
    "white space": source(pre_quote="", post_quote="You  move\u00a0mug\n1 to desk 1."),
    "a part of a long action": source(step=3, pre_quote="A search", action_quote=LONG_ACTION[:40], post_quote=""),
    "two sources": item(sources=[SOURCE, {**SOURCE, "traj_uid": "g0-k1"}]),
    "the first step": source(step=0, pre_quote="a room", action_quote="go to desk 1", post_quote=""),
}


@pytest.mark.parametrize("good", GOOD_ITEMS.values(), ids=GOOD_ITEMS)
def test_a_correct_item_is_accepted(good: dict):
    accepted, reasons = extract(good)
    assert reasons == [] and len(accepted) == 1


BAD_ITEMS = {
    "not an object": ("x", "item_not_an_object"),
    "null": (None, "item_not_an_object"),
    "a list": ([ITEM], "item_not_an_object"),
    "no id": (item(evidence_id=...), "evidence_id_missing"),
    "empty id": (item(evidence_id=""), "evidence_id_empty"),
    "blank id": (item(evidence_id=" \t"), "evidence_id_empty"),
    "id of another type": (item(evidence_id=1), "evidence_id_type"),
    "no kind": (item(kind=...), "kind_missing"),
    "unknown kind": (item(kind="opinion"), "kind_unknown"),
    "kind in capitals": (item(kind="Progress"), "kind_unknown"),
    "no statement": (item(statement=...), "statement_missing"),
    "empty statement": (item(statement=""), "statement_empty"),
    "blank statement": (item(statement=" \n\u00a0"), "statement_empty"),
    "statement of 801 characters": (item(statement="x" * 801), "statement_too_long"),
    "statement null": (item(statement=None), "statement_type"),
    "statement as a list": (item(statement=["Move it."]), "statement_type"),
    "half a surrogate pair": (item(statement="move \ud83d"), "statement_not_unicode"),
    "half a surrogate pair as id": (item(evidence_id="\ud83d"), "evidence_id_not_unicode"),
    "half a surrogate pair as a quote": (source(pre_quote="\ud83d"), "quote_not_found"),
    "no sources": (item(sources=...), "sources_missing"),
    "empty sources": (item(sources=[]), "sources_empty"),
    "sources as an object": (item(sources={}), "sources_type"),
    "a source that is no object": (item(sources=["g0-k0"]), "sources_type"),
    "no uid": (source(traj_uid=...), "traj_uid_missing"),
    "an unknown trajectory": (source(traj_uid="g0-k9"), "source_not_a_success"),
    "a trajectory of another group": (source(traj_uid="g1-k0"), "source_not_a_success"),
    "a trajectory that failed": (source(traj_uid="g0-k2"), "source_not_a_success"),
    "no step": (source(step=...), "step_missing"),
    "step as text": (source(step="2"), "step_type"),
    "step true": (source(step=True), "step_type"),
    "step 2.0": (source(step=2.0), "step_type"),
    "step NaN": (source(step=float("nan")), "step_type"),
    "step null": (source(step=None), "step_type"),
    "step -1": (source(step=-1), "step_out_of_range"),
    "step too far": (source(step=5), "step_out_of_range"),
    "step huge": (source(step=10**30), "step_out_of_range"),
    "an invalid action": (
        source(step=1, pre_quote="", action_quote="put mug 1 in/on desk 1", post_quote="Nothing happens."),
        "source_action_invalid",
    ),
    "no action quote": (source(action_quote=...), "action_quote_missing"),
    "action quote null": (source(action_quote=None), "action_quote_type"),
    "action quote empty": (source(action_quote=""), "quote_empty"),
    "action quote cut": (source(action_quote="move mug 1"), "action_quote_incomplete"),
    "another step's action": (source(action_quote="go to desk 1"), "quote_not_found"),
    "39 characters of a long action": (
        source(step=3, pre_quote="A search", action_quote=LONG_ACTION[:39], post_quote=""),
        "quote_too_short",
    ),
    "no observation quote": (source(pre_quote="", post_quote=""), "no_observation_quote"),
    "both null": (source(pre_quote=None, post_quote=None), "no_observation_quote"),
    "both blank": (source(pre_quote=" ", post_quote="\n"), "no_observation_quote"),
    "a quote of three characters": (source(post_quote="You"), "quote_too_short"),
    "pre and post exchanged": (source(pre_quote="You move mug 1", post_quote="Nothing happens."), "quote_not_found"),
    "another turn's observation": (source(pre_quote="", post_quote="you see a mug 1"), "quote_not_found"),
    "one good and one made-up quote": (source(pre_quote="Everything happens."), "quote_not_found"),
    "other letter case": (source(pre_quote="", post_quote="you move mug 1"), "quote_not_found"),
    "stitched": (source(pre_quote="", post_quote="You move desk 1."), "quote_not_found"),
    "across a gap": (source(pre_quote="", post_quote="You move ... desk 1."), "quote_not_found"),
    "one bad source of two": (item(sources=[SOURCE, {**SOURCE, "step": 7}]), "step_out_of_range"),
    "quote as a list": (source(pre_quote=["Nothing happens."]), "pre_quote_type"),
}


@pytest.mark.parametrize("bad, reason", BAD_ITEMS.values(), ids=BAD_ITEMS)
def test_a_fault_drops_its_own_item_and_no_other(bad: Any, reason: str):
    before, after = item(evidence_id="before"), item(evidence_id="after")
    accepted, reasons = extract(before, bad, after)
    assert reasons == [reason]
    assert [one.evidence_id for one in accepted] == ["before", "after"]


def test_typography_is_counted_apart():
    turn = make_turn("open it", "The mug's lid.", "It opens.")
    bad = source(step=0, pre_quote="The mug’s lid", action_quote="open it", post_quote="")
    _, rejected = validate_evidence({"evidence": [bad]}, [make_trajectory(0, turn, success=True)])
    assert [one.reason for one in rejected] == ["quote_typography"]


def test_of_items_with_one_id_the_first_good_one_stays():
    accepted, reasons = extract(
        item(statement=""), item(statement="first"), item(statement="second"), item(evidence_id="E1 ")
    )
    assert reasons == ["statement_empty", "duplicate_id"]
    assert [(one.evidence_id, one.statement) for one in accepted][:1] == [("E1", "first")]
    assert len(accepted) == 2, "ids are compared as they are"


def test_items_beyond_the_limit_are_rejected_and_rejected_ones_do_not_count():
    items = [item(evidence_id=f"E{k}") for k in range(5)]
    accepted, reasons = extract(items[0], "x", *items[1:], max_items=3)
    assert [one.evidence_id for one in accepted] == ["E0", "E1", "E2"]
    assert reasons == ["item_not_an_object", "over_max_items", "over_max_items"]
    assert len(extract(*(item(evidence_id=str(k)) for k in range(13)))[0]) == 12


def test_a_trajectory_without_verified_success_is_no_source_even_when_it_was_passed():
    answer = {"evidence": [source(traj_uid="g0-k2")]}
    _, rejected = validate_evidence(answer, [SUCCESS, FAILURE])
    assert [one.reason for one in rejected] == ["source_not_a_success"]


def test_a_rejection_keeps_a_readable_and_writable_piece_of_what_was_said():
    _, [rejected] = validate_evidence({"evidence": [item(statement="x\ud83d" * 5000)]}, [SUCCESS])
    assert len(rejected.item) == 600 and '"evidence_id": "E1"' in rejected.item
    rejected.item.encode()
    _, [rejected] = validate_evidence({"evidence": ["größer 🙂"]}, [SUCCESS])
    assert rejected.item == '"größer 🙂"'


# ---- evidence for a target -----------------------------------------------------------------------------------------


def test_a_target_may_draw_on_what_another_success_supports():
    def evidence(name: str, *uids: str) -> Evidence:
        return Evidence(name, "progress", "s", tuple(Source(uid, 0, "", "a", "b") for uid in uids))

    every = [evidence("own", "k0", "k0"), evidence("shared", "k0", "k1"), evidence("other", "k1")]
    kept = supported_by_others(every, "k0")
    assert [one.evidence_id for one in kept] == ["shared", "other"]
    assert all(source.traj_uid != "k0" for one in kept for source in one.sources)
    assert supported_by_others(every, "k2") == every
