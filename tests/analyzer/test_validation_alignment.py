"""Nothing that an analyzer aligns is believed: each rule of docs/method.md, section 4, from both sides."""

from __future__ import annotations

from typing import Any

import pytest

from taspo_trl.analyzer.validation import supported_by_others, validate_alignment

from .answers import ALLOWED, FAILURE, STATEMENT, SUCCESS, SUPPORT


def align(*statements: Any, target: Any = FAILURE, allowed: Any = ALLOWED, **kwargs: Any) -> tuple[list, list[str]]:
    entry = {"traj_uid": target.uid, "guidance": list(statements), "abstain_reason": ""}
    accepted, rejected, _ = validate_alignment({"targets": [entry]}, target, allowed, **kwargs)
    assert all(one.stage == "alignment" for one in rejected)
    return accepted, [one.reason for one in rejected]


def statement(**changes: Any) -> dict:
    return {key: value for key, value in {**STATEMENT, **changes}.items() if value is not ...}


def support(**changes: Any) -> dict:
    return statement(target_support=[{k: v for k, v in {**SUPPORT, **changes}.items() if v is not ...}])


# ---- alignment -----------------------------------------------------------------------------------------------------

ENTRY = {"traj_uid": FAILURE.uid, "guidance": [STATEMENT], "abstain_reason": ""}

BAD_ALIGNMENTS = {
    "text": ("ok", "no_targets_list"),
    "a list": ([ENTRY], "no_targets_list"),
    "no key": ({}, "no_targets_list"),
    "null": ({"targets": None}, "no_targets_list"),
    "an object": ({"targets": ENTRY}, "no_targets_list"),
    "no target": ({"targets": []}, "not_one_target"),
    "two targets": ({"targets": [ENTRY, ENTRY]}, "not_one_target"),
    "a second, other target": ({"targets": [ENTRY, {**ENTRY, "traj_uid": "g0-k0"}]}, "not_one_target"),
    "an entry that is no object": ({"targets": ["g0-k2"]}, "item_not_an_object"),
    "another uid": ({"targets": [{**ENTRY, "traj_uid": "g0-k0"}]}, "unknown_target"),
    "a padded uid": ({"targets": [{**ENTRY, "traj_uid": "g0-k2 "}]}, "unknown_target"),
    "no uid": ({"targets": [{"guidance": [STATEMENT]}]}, "traj_uid_missing"),
    "uid of another type": ({"targets": [{**ENTRY, "traj_uid": 2}]}, "traj_uid_type"),
    "no guidance": ({"targets": [{"traj_uid": FAILURE.uid}]}, "guidance_missing"),
    "guidance null": ({"targets": [{**ENTRY, "guidance": None}]}, "guidance_type"),
    "guidance as an object": ({"targets": [{**ENTRY, "guidance": STATEMENT}]}, "guidance_type"),
}


@pytest.mark.parametrize("answer, reason", BAD_ALIGNMENTS.values(), ids=BAD_ALIGNMENTS)
def test_an_alignment_without_exactly_one_entry_for_the_target_is_rejected_whole(answer: Any, reason: str):
    accepted, rejected, abstained = validate_alignment(answer, FAILURE, ALLOWED)
    assert (accepted, [one.reason for one in rejected], abstained) == ([], [reason], "")


def test_a_good_statement_is_accepted_with_its_support():
    [accepted], reasons = align(statement(statement=" Move\n the mug. "))
    assert reasons == []
    assert accepted.text == "Move the mug." and accepted.evidence_ids == ("E1",)
    assert [(one.step, one.field, one.quote) for one in accepted.support] == [(0, "post", "you see a mug 1")]


GOOD_STATEMENTS = {
    "one letter": statement(statement="x"),
    "800 characters": statement(statement="x" * 800),
    "extra keys": statement(weight=3.0, verified_success=True),
    "task": support(field="task", quote="Put a mug"),
    "task without a step": support(step=..., field="task", quote="Put a mug"),
    "task with a null step": support(step=None, field="task", quote="Put a mug on desk 1."),
    "pre": support(field="pre", quote="a room"),
    "whole action": support(field="action", quote="go to desk 1"),
    "an invalid action of the target's own": support(step=1, field="action", quote="put mug 1 in/on desk 1"),
    "a whole short record": support(step=3, field="post", quote="No."),
}


@pytest.mark.parametrize("good", GOOD_STATEMENTS.values(), ids=GOOD_STATEMENTS)
def test_a_correct_statement_is_accepted(good: dict):
    accepted, reasons = align(good)
    assert reasons == [] and len(accepted) == 1


def test_a_quote_of_the_task_belongs_to_no_step():
    [accepted], _ = align(support(step=99, field="task", quote="Put a mug"))
    assert accepted.support[0].step == 0


BAD_STATEMENTS = {
    "not an object": ("Move it.", "item_not_an_object"),
    "empty": (statement(statement=""), "statement_empty"),
    "blank": (statement(statement=" \n"), "statement_empty"),
    "801 characters": (statement(statement="x" * 801), "statement_too_long"),
    "half a surrogate pair": (statement(statement="\udfff"), "statement_not_unicode"),
    "no ids": (statement(evidence_ids=[]), "evidence_ids_empty"),
    "ids missing": (statement(evidence_ids=...), "evidence_ids_missing"),
    "id as text": (statement(evidence_ids="E1"), "evidence_ids_type"),
    "id of another type": (statement(evidence_ids=[1]), "evidence_ids_type"),
    "an unknown id": (statement(evidence_ids=["E99"]), "evidence_id_not_allowed"),
    "a known and an unknown id": (statement(evidence_ids=["E1", "E99"]), "evidence_id_not_allowed"),
    "no support": (statement(target_support=[]), "target_support_empty"),
    "support missing": (statement(target_support=...), "target_support_missing"),
    "support null": (statement(target_support=None), "target_support_type"),
    "unknown field": (support(field="reward"), "field_unknown"),
    "no field": (support(field=...), "field_missing"),
    "no step": (support(step=...), "step_missing"),
    "step null": (support(step=None), "step_missing"),
    "step true": (support(step=True), "step_type"),
    "step 0.0": (support(step=0.0), "step_type"),
    "step as text": (support(step="0"), "step_type"),
    "step -1": (support(step=-1), "step_out_of_range"),
    "step too far": (support(step=5), "step_out_of_range"),
    "no quote": (support(quote=...), "quote_missing"),
    "quote null": (support(quote=None), "quote_type"),
    "quote empty": (support(quote=""), "quote_empty"),
    "quote too short": (support(quote="mug"), "quote_too_short"),
    "another field": (support(field="pre"), "quote_not_found"),
    "another turn": (support(step=2), "quote_not_found"),
    "the task's text as an observation": (support(quote="Put a mug"), "quote_not_found"),
    "an observation as the task": (support(field="task", quote="you see a mug 1"), "quote_not_found"),
    "three characters of the task": (support(field="task", quote="Put"), "quote_too_short"),
    "a part of an action": (support(field="action", quote="desk 1"), "action_quote_incomplete"),
    "an action that was not": (support(step=4, field="action", quote="move"), "quote_not_found"),
    "an empty action": (support(step=4, field="action", quote=""), "quote_empty"),
    "one bad support of two": (
        statement(target_support=[SUPPORT, {**SUPPORT, "quote": "made up"}]),
        "quote_not_found",
    ),
}


@pytest.mark.parametrize("bad, reason", BAD_STATEMENTS.values(), ids=BAD_STATEMENTS)
def test_a_fault_drops_its_own_statement_and_no_other(bad: Any, reason: str):
    accepted, reasons = align(statement(statement="before"), bad, statement(statement="after"))
    assert reasons == [reason]
    assert [one.text for one in accepted] == ["before", "after"]


def test_only_the_first_candidates_are_looked_at():
    statements = [statement(statement=f"s{k}") for k in range(10)]
    accepted, reasons = align("x", *statements)
    assert [one.text for one in accepted] == [f"s{k}" for k in range(7)], "a rejected candidate takes its place"
    assert reasons == ["item_not_an_object"] + ["over_max_items"] * 3
    assert len(align(*statements, max_items=2)[0]) == 2


def test_evidence_that_only_the_target_supports_cannot_be_cited():
    allowed = supported_by_others(ALLOWED, "g0-k0")
    accepted, reasons = align(STATEMENT, target=SUCCESS, allowed=allowed)
    assert (accepted, reasons) == ([], ["evidence_id_not_allowed"])


@pytest.mark.parametrize(
    "reason, kept",
    [(" does not\n apply ", "does not apply"), (None, ""), (..., ""), (False, ""), (["no"], ""), ("\ud83d", "?")],
)
def test_the_reason_for_abstaining_is_kept_and_costs_nothing(reason: Any, kept: str):
    entry = {key: value for key, value in {**ENTRY, "abstain_reason": reason}.items() if value is not ...}
    accepted, rejected, abstained = validate_alignment({"targets": [entry]}, FAILURE, ALLOWED)
    assert (len(accepted), rejected, abstained) == (1, [], kept)
