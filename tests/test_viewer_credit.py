"""What the viewer says of a turn's credit: the arithmetic ends at the recorded weight, whatever the rule."""

import dataclasses
import json
from collections import Counter

import pytest

from taspo_trl.credit.agentopsd import AgentOPSD
from taspo_trl.credit.factor import HTA
from taspo_trl.credit.gigpo import GiGPO
from taspo_trl.credit.grsd import GRSD
from taspo_trl.credit.opid import OPID
from taspo_trl.credit.rlsd import RLSD
from taspo_trl.credit.serl import SERL
from taspo_trl.credit.stepopsd import StepOPSD
from taspo_trl.credit.taspo import TurnWeights, credit_weights
from taspo_trl.credit.taspo_factor import TASPOFactor
from taspo_trl.credit.token_level import TokenWeights
from taspo_trl.credit.triage import Triage
from taspo_trl.credit.turnsight import TurnSight
from taspo_trl.loss.distillation import SDAR
from taspo_trl.methods import METHODS, Recipe
from taspo_trl.methods.facts import facts_of
from taspo_trl.records import TrajectoryRecord, from_json, to_json
from taspo_trl.types import Credit
from taspo_trl.viewer.arithmetic import LINES, lines_of_group
from taspo_trl.viewer.groups import group_data
from taspo_trl.viewer.index import row_of, tilts_of
from taspo_trl.viewer.method import load_facts, shown_method, usual_facts
from taspo_trl.viewer.movers import mover_of
from taspo_trl.viewer.numbers import less, signed
from tests.credit import scored
from tests.credit.scored import Episode, Reply
from tests.runs import METHOD, small_group, write_method


# ---- from support to weight -------------------------------------------------------------------------------------

RULES = {
    "taspo": TurnWeights(),
    "taspo kappa": TurnWeights(threshold=0.2),
    "taspo bound": TurnWeights(step_size=3.0),
    "taspo capped": TurnWeights(cap_refused=True),
    "token": TokenWeights(),
    "rlsd": RLSD(),
    "rlsd blame": RLSD(blame_only=True),
    "serl": SERL(),
    "stepopsd": StepOPSD(),
    "stepopsd raw": StepOPSD(normalise=False, kernel="exp"),
    "agentopsd": AgentOPSD(),
    "grsd": GRSD(),
    "turnsight": TurnSight(),
    "opid": OPID(),
    "factor turn": HTA(zero_at=0, warmup=0, outside="turn"),
    "taspo_factor": TASPOFactor(zero_at=0, warmup=0),
}


def recorded(rule, step=7):
    """(raw records of a group that the rule weighed, its facts)."""
    blocks = rule.needs.blocks

    def reply(k):
        mask = (False, True, True, False) if k % 2 else (True, True, True)
        return Reply(mask, {name: tuple(0.4 * k - 0.3 * i + 0.1 * b for i in range(len(mask)))
                            for b, name in enumerate(blocks)})  # fmt: skip

    group = [
        Episode("won", 0.9, tuple(reply(k) for k in (0, 1, 2)), success=True),
        Episode("lost", -0.9, tuple(reply(k) for k in (1, -2, -1, 3))),
    ]
    batch = scored.batch(group, scope=rule.needs.scope, step=step, num_steps=60)
    recipe = Recipe("test", weight=rule)
    credits = recipe.assign(batch).credits
    records = [to_json(TrajectoryRecord(t, "g", 0, step, credit=credits[t.uid])) for t in batch.trajectories]
    return json.loads(json.dumps(records)), facts_of(recipe, 60)


@pytest.mark.parametrize("name", RULES)
def test_every_weight_rule_has_a_line_that_ends_at_the_recorded_weight(name):
    records, facts = recorded(RULES[name])
    moved = 0
    for record, lines in zip(records, lines_of_group(records, facts), strict=True):
        for weight, line in zip(record["credit"]["weights"], lines, strict=True):
            assert line and "the rule" not in [what for what, *_ in line], line
            moved += abs(weight - 1) > 1e-3
            if name == "opid":
                assert line[-1][2] == f"A~ {signed(weight * record['credit']['advantage'], 5)}"
            elif name != "factor turn":  # it moves tokens, not turns
                assert line[-1][2].removeprefix("mean ") == f"w {weight:.3f}"
    assert moved > 2 or name in ("opid", "factor turn")


def test_no_weight_rule_is_without_a_line():
    rules = {type(method.usual.weight).__name__ for method in METHODS.values()} - {"NoWeights"}
    assert rules <= set(LINES), "viewer/arithmetic.py says how a rule's support becomes a weight"


def test_line_of_taspo_by_hand():
    """d = ±0.5 beside a mean of 0: q = tanh(±1) = ±0.762, w = 1 ± 0.2 · 0.762."""
    record = to_json(small_group()[1])
    record["turns"] = record["turns"][:2]
    record["credit"] |= {
        "advantage": 1.0,
        "supports": [0.5, -0.5],
        "weights": credit_weights([0.5, -0.5], 1.0),
    }
    (first, second), = lines_of_group([record], METHOD)  # fmt: skip
    assert [how for _, how, _ in first] == [
        "mean of 2 shifts inside ±2", "+0.500 − 0.000", "tanh(+0.500 / 0.5)", "1 + 0.2 · (+0.762 − 0.000)",
    ]  # fmt: skip
    assert [result for *_, result in first] == ["d +0.500", "+0.500", "q +0.762", "w 1.152"]
    assert second[-1][2] == "w 0.848"


def test_a_placebo_has_no_line_of_its_own_turn():
    record = to_json(small_group()[1])
    supports = [1.0, -1.0, 0.0]
    record["credit"] |= {"supports": supports, "weights": credit_weights(supports, -0.7)}
    facts = facts_of(METHODS["oracle"].usual)
    assert lines_of_group([record], facts)[0][0][0] == [
        "progress",
        "actions of the plan that it came nearer",
        "p +1.000",
    ]
    record["credit"]["weights"] = record["credit"]["weights"][::-1]
    assert lines_of_group([record], facts)[0][0][0][0] == "the rule"


def test_other_options_than_the_runs_leave_the_rules_own_line():
    records, facts = recorded(TurnWeights())
    facts["weight"]["options"]["temperature"] = 0.7
    lines = lines_of_group(records, facts)[0]
    assert [line[0][0] for line in lines] == ["the rule"] * 3
    assert lines[0][0][2] == f"w {records[0]['credit']['weights'][0]:.3f}"
    assert lines_of_group(records, {}) == [[[]] * 3, [[]] * 4]


def test_advantage_rules_tell_their_term():
    facts = facts_of(Recipe("gigpo", advantage=GiGPO()))
    record = to_json(small_group()[1])
    record["credit"] |= {"advantage": 0.5, "turn_advantages": [0.75, 0.5, -0.25], "supports": [None] * 3}
    lines = lines_of_group([record], facts)[0]
    what = "against others in the same state"
    assert lines == [
        [[what, f"A +0.500 + 0.250 ({what})", "A_it +0.750"]],
        [],
        [[what, f"A +0.500 − 0.750 ({what})", "A_it −0.250"]],
    ]
    roles = lines_of_group([record], facts_of(Recipe("triage", advantage=Triage())))[0]
    assert roles[0][0][1] == "A +0.500 + 0.5 · (+0.5, exploration)"


def test_distilling_methods_show_their_coefficient():
    facts = facts_of(Recipe("sdar", distill=SDAR()))
    record = to_json(small_group()[1])
    record["credit"] |= {"supports": [None] * 3, "distill": [0.0125, 0.0, 0.0125]}
    lines = lines_of_group([record], facts)[0]
    assert lines[0] == [["distilled", "0.01 · m on each of 3 reply tokens, m = 0.0125", "0.000375 of the term"]]
    assert lines[1] == [["distilled", "no teacher's score of this turn", "0"]]
    facts["distill"]["policy_share"] = 0.0
    assert lines_of_group([record], facts)[0][1][0] == ["outcome", "nothing is learned from A: its share is 0", ""]
    facts["distill"]["policy_share"] = 1.0
    shown = shown_method(facts, Counter({"sdar": 1}))
    assert shown["distill"] == {"share": "0.01", "policy_share": "1.0", "reduction": "token_mean"}


def test_coefficients_of_distillation_come_back_from_a_record():
    record = small_group()[1]
    credit = dataclasses.replace(record.credit, distill=(0.5, 0.0, 0.25))
    assert from_json(to_json(dataclasses.replace(record, credit=credit))).credit.distill == (0.5, 0.0, 0.25)
    assert from_json(to_json(record)).credit.distill is None


def test_small_numbers_keep_a_digit():
    assert [signed(0.00012), signed(-0.25), signed(0.0), signed(-1e-7)] == ["+0.0001", "−0.250", "0.000", "0.000"]
    assert [less(0.25), less(-0.25)] == [" − 0.250", " + 0.250"]


# ---- credit and blame -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("advantage", "weights", "own", "tilts"),
    [
        (0.5, [1.25, 0.75], None, (0.25, -0.25)),  # a success: above 1 is credit
        (-0.5, [1.25, 0.75], None, (-0.25, 0.25)),  # a failure: above 1 is blame
        (0.0, [1.0, 1.0], [0.5, -0.5], (0.5, -0.5)),  # no outcome, but turns that differ
        (0.0, [1.0, 1.0], None, (0.0, 0.0)),
        (None, [None, "x"], None, (0.0, 0.0)),
    ],
)
def test_tilt_of_a_turn_is_credit_or_blame(advantage, weights, own, tilts):
    credit = {"advantage": advantage, "weights": weights, "turn_advantages": own}
    assert tilts_of({"turns": [{}, {}], "credit": credit}) == tilts


def test_refused_actions_that_a_success_credits_are_flagged():
    record = to_json(small_group()[1])  # its second turn was refused
    record["credit"] |= {"advantage": 0.7, "weights": [0.9, 1.2, 0.9]}
    assert row_of(record).flagged == 1
    assert row_of(record | {"credit": record["credit"] | {"advantage": -0.7}}).flagged == 0  # more blame is right
    assert row_of(record | {"credit": record["credit"] | {"weights": [1.2, 0.9, 0.9]}}).flagged == 0


# ---- which statement --------------------------------------------------------------------------------------------


def guided(*statements):
    """Guidance of (text, action of a success, quote of the own episode)."""
    evidence = [
        {"evidence_id": f"E{k}", "sources": [{"traj_uid": "win", "step": k, "action_quote": action}]}
        for k, (_, action, _) in enumerate(statements)
    ]
    lines = [
        {"text": text, "evidence_ids": [f"E{k}"], "support": [quote] if quote else []}
        for k, (text, _, quote) in enumerate(statements)
    ]
    return {"statements": lines, "evidence": evidence}


def test_statement_nearest_to_an_action():
    quote = {"step": 3, "field": "action", "quote": "wait"}
    given = guided(("Go to the desk.", "go to desk 1", None), ("Take the mug.", "take mug 1 from desk 1", quote))
    same = mover_of(0, "Go to  desk 1", given)
    assert (same.statement, same.how, same.mark, same.uid, same.turn) == (0, "same", "e0.0.action", "win", 0)
    named = mover_of(0, "take mug 2 from shelf 1", given)
    assert (named.statement, named.how, named.quote) == (1, "names", "take mug 1 from desk 1")
    quoting = mover_of(3, "wait", given)
    assert (quoting.statement, quoting.how, quoting.mark, quoting.quote) == (1, "quotes", "s1.0", "wait")
    assert mover_of(0, "open the fridge", given) is None  # the block as a whole
    only = mover_of(0, "open the fridge", guided(("Go to the desk.", "go to desk 1", None)))
    assert (only.statement, only.how) == (0, "only")
    assert mover_of(0, "look", {}) is None


def test_turns_without_a_score_have_no_statement():
    data = group_data([to_json(record) for record in small_group()], lambda token: None, METHOD)
    winner, loser, _ = data["members"]
    assert [turn["mover"] for turn in winner["turns"]] == [None, None]
    assert loser["turns"][2]["mover"]["how"] == "same"
    assert loser["turns"][0]["carried"] == pytest.approx(-0.7 * 1.125, abs=1e-4)


# ---- the method -------------------------------------------------------------------------------------------------


def test_facts_of_every_method_are_plain():
    for name, method in METHODS.items():
        facts = json.loads(json.dumps(facts_of(method.usual, 60)))
        assert facts["name"] == name and facts["line"] and facts["equations"]
        assert [paper["address"] for paper in facts["papers"]] == [paper.address for paper in method.papers]
        assert (facts["distill"] is None) == (method.usual.distill is None)


def test_method_of_a_run_is_read_and_nothing_in_it_is_believed(tmp_path):
    facts = METHOD | {"papers": [{"reference": "x", "address": "javascript:alert(1)"}, 3, {"address": "https://a b"}]}
    write_method(tmp_path, facts | {"weight": {"rule": ["x"], "options": [1]}, "distill": "y"})
    told, notes = load_facts(tmp_path)
    shown = shown_method(told, Counter({"taspo": 2}))
    assert notes == [] and shown["names"] == [("taspo", 2)]
    assert shown["papers"] == [["x", ""], ["", ""], ["", ""]]
    (tmp_path / "method.json").write_text("{")
    told, (note,) = load_facts(tmp_path)
    assert told == {} and note.startswith("method.json tells no method")
    assert load_facts(None) == load_facts(tmp_path / "none") == ({}, [])


def test_records_without_a_file_of_their_method_are_told_by_its_name():
    facts = usual_facts("serl")
    assert facts["assumed"] is True and facts["weight"]["rule"] == "SERL"
    assert usual_facts("nobody's") == {"name": "nobody's"}
    credit = Credit("t", 1.0, (1.0,), method="serl")
    assert row_of(to_json(dataclasses.replace(small_group()[1], credit=credit))).method == "serl"
