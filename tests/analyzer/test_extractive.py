"""The embedded analyzer: exact quotes only, believed by the same validation, and no knowledge of any environment."""

from __future__ import annotations

import ast
import codecs
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import taspo_trl.analyzer.extractive as extractive
from taspo_trl.analyzer.base import AnalyzerRequest
from taspo_trl.analyzer.extractive import ExtractiveAnalyzer
from taspo_trl.analyzer.payloads import alignment_payload, extraction_payload
from taspo_trl.analyzer.quotes import collapse
from taspo_trl.analyzer.validation import supported_by_others, validate_alignment, validate_evidence
from taspo_trl.environments import HouseholdEnvironment
from taspo_trl.environments.household import solve
from taspo_trl.guidance.base import verified_successes
from taspo_trl.guidance.block import Composer
from taspo_trl.types import Trajectory, TrajectoryGroup, Turn

from ..guiding import aligned_guide
from ..tokenizers import byte_bpe
from ..trajectories import make_group, make_trajectory, make_turn


def ask(stage: str, payload: dict[str, Any]) -> dict[str, Any]:
    reply = ExtractiveAnalyzer().complete(AnalyzerRequest(stage, "", payload))  # type: ignore[arg-type]
    assert reply.error == "" and reply.finish_reason == "stop" and reply.cost_usd is None
    return json.loads(reply.text)


# ---- real groups ---------------------------------------------------------------------------------------------------


def play_household(idx: int, row: dict, noise: float, rng: random.Random) -> Trajectory:
    """Follow the oracle's plan, with other actions (invalid ones among them) thrown in."""
    environment = HouseholdEnvironment()
    start = environment.reset(seed=0, **row)
    plan, observation, admissible = solve(row), start.observation, start.info["admissible_actions"]
    turns: list[Turn] = []
    while True:
        action = plan.pop(0) if plan and rng.random() >= noise else rng.choice([*admissible, "sing", "take moon 1"])
        result = environment.step(action)
        turns.append(make_turn(action, observation, result.observation, valid=result.info["valid"]))
        observation, admissible = result.observation, result.info["admissible_actions"]
        if result.terminated or result.truncated:
            break
    return make_trajectory(
        idx, *turns, success=result.info["success"], task=start.info["task"], family=start.info["family"]
    )


def household_groups() -> list[TrajectoryGroup]:
    rng = random.Random(7)
    rows = [{"preset": "standard", "split": "train", "index": index} for index in range(12)]  # each family twice
    groups = []
    for row in rows:
        members = [play_household(k, row, noise, rng) for k, noise in enumerate((0.0, 0.3, 0.2, 0.6, 0.8, 0.5))]
        groups.append(make_group(*members))
    return groups


@pytest.fixture(scope="module")
def groups() -> list[TrajectoryGroup]:
    return household_groups()


@pytest.mark.parametrize("max_chars", [12000, 3000, 500])
def test_all_that_it_says_about_real_episodes_is_believed(groups, max_chars):
    num_targets = num_guided = 0
    for group in groups:
        successes = verified_successes(group)
        assert successes
        answer = ask("extraction", extraction_payload(group.task_text, successes, max_chars))
        evidence, rejected = validate_evidence(answer, successes)
        assert rejected == [] and 0 < len(evidence) <= 12
        for target in group.trajectories:
            allowed = supported_by_others(evidence, target.uid)
            answer = ask("alignment", alignment_payload(target, allowed, max_chars))
            statements, rejected, _ = validate_alignment(answer, target, allowed)
            assert rejected == [] and len(statements) <= 8
            num_targets += 1
            num_guided += bool(statements)
    assert num_targets == 12 * 6
    assert num_guided > 0.8 * num_targets, "households have words enough for most targets"


def test_each_statement_is_an_action_that_the_environment_accepted_from_another_success(groups):
    construction = aligned_guide(ExtractiveAnalyzer(), Composer(byte_bpe()))
    num_blocks = 0
    for group in groups:
        extraction = construction.prepare(group)
        for target in group.trajectories:
            guidance = construction.build(group, target, extraction)
            accepted = {
                turn.action
                for other in verified_successes(group)
                if other.uid != target.uid
                for turn in other.turns
                if turn.valid
            }
            assert {statement.text for statement in guidance.statements} <= accepted
            num_blocks += bool(guidance)
            assert len(guidance.block_ids) <= 256
    assert num_blocks > 50


def test_what_the_goal_needs_is_kept_and_idle_steps_are_left_out():
    turns = [
        make_turn("go to shelf 1", "You are in the kitchen.", "You are at shelf 1. You see a vase 1."),
        make_turn("look", "You are at shelf 1.", "You see a vase 1."),
        make_turn("go to drawer 1", "You see a vase 1.", "You are at drawer 1."),
        make_turn("go to drawer 2", "You are at drawer 1.", "You are at drawer 2."),
        make_turn("go to fridge 1", "You are at drawer 2.", "You are at fridge 1. It is closed."),
        make_turn("open fridge 1", "It is closed.", "You open fridge 1. You see an apple 1."),
        make_turn("sing", "You open fridge 1.", "Nothing happens.", valid=False),
        make_turn("take apple 1 from fridge 1", "Nothing happens.", "You take apple 1."),
        make_turn("go to table 1", "You take apple 1.", "You are at table 1."),
        make_turn("move apple 1 to table 1", "You are at table 1.", "You move apple 1. Done."),
    ]
    success = make_trajectory(0, *turns, success=True, task="Put an apple on a table.")
    answer = ask("extraction", extraction_payload(success.task_text, [success]))
    assert [item["statement"] for item in answer["evidence"]] == [
        "go to fridge 1",
        "open fridge 1",
        "take apple 1 from fridge 1",
        "go to table 1",
        "move apple 1 to table 1",
    ], "`go` and `to` stand in more than half of the actions and link nothing"


def test_what_several_successes_did_is_one_item_with_several_sources():
    turns = [make_turn("open box", "A box.", "It opens: a key."), make_turn("take key", "A key.", "Taken: key.")]
    successes = [make_trajectory(k, *turns, success=True, task="Take the key.") for k in range(3)]
    answer = ask("extraction", extraction_payload("Take the key.", successes))
    sources = {item["statement"]: [one["traj_uid"] for one in item["sources"]] for item in answer["evidence"]}
    assert sources["take key"] == ["g0-k0", "g0-k1", "g0-k2"]


def test_more_than_twelve_links_are_ranked_by_how_many_share_them_and_told_in_order_of_play():
    def success(idx: int, *actions: str) -> Trajectory:
        turns = [make_turn(action, "Before it.", f"After {action}.") for action in actions]
        return make_trajectory(idx, *turns, success=True, task="key")

    alone = [f"use key {letter}" for letter in "abcdefghijklmnop"]
    successes = [success(0, *alone, "turn key z"), success(1, "turn key z")]
    answer = ask("extraction", extraction_payload("a b c d e f g h i j k l m n o p", successes))
    statements = [item["statement"] for item in answer["evidence"]]
    assert statements == [*alone[:11], "turn key z"], "the shared one stays, at its place"
    assert [item["evidence_id"] for item in answer["evidence"]] == [f"E{k}" for k in range(1, 13)]


@pytest.mark.parametrize(
    "num_with_word, num_actions, is_rare",
    # A word links unless it stands in more than half of the actions, and in more than two.
    [(2, 3, True), (2, 4, True), (3, 4, False), (3, 5, False), (3, 6, True), (4, 6, False)],
)
def test_a_word_of_more_than_half_of_the_actions_links_nothing(num_with_word, num_actions, is_rare):
    rest = [f"other{k}" for k in range(num_actions - num_with_word)]
    actions = [*(f"press a{k}" for k in range(num_with_word)), *rest]
    success = make_trajectory(0, *(make_turn(action, "Before.", "After.") for action in actions), success=True)
    answer = ask("extraction", extraction_payload("press", [success]))
    linked = [item["statement"] for item in answer["evidence"]]
    assert linked == ([*actions[:num_with_word], rest[-1]] if is_rare else [rest[-1]])


@pytest.mark.parametrize("length, is_quoted", [(320, True), (321, False)])
def test_an_action_that_was_shortened_is_no_evidence(length, is_quoted):
    turns = [make_turn("x" * length, "Before.", "After."), make_turn("end", "After.", "Over.")]
    success = make_trajectory(0, *turns, success=True)
    answer = ask("extraction", extraction_payload("x" * length, [success]))
    assert [item["statement"] for item in answer["evidence"]] == (["x" * length] if is_quoted else []) + ["end"]


def test_a_long_answer_is_quoted_from_its_beginning_to_a_whole_word():
    # 40 words of four letters: the first 160 characters end behind the 32nd word and a blank.
    long = " ".join(f"w{k:03}" for k in range(40))
    success = make_trajectory(0, make_turn("end", "Before.", long), success=True)
    [item] = ask("extraction", extraction_payload("x", [success]))["evidence"]
    assert item["sources"][0]["post_quote"] == " ".join(f"w{k:03}" for k in range(32))
    exact = "z" * 160
    success = make_trajectory(0, make_turn("end", "Before.", exact), success=True)
    [item] = ask("extraction", extraction_payload("x", [success]))["evidence"]
    assert item["sources"][0]["post_quote"] == exact


def test_without_an_answer_the_state_before_is_quoted():
    success = make_trajectory(0, make_turn("end", "Before.", ""), success=True)
    [item] = ask("extraction", extraction_payload("x", [success]))["evidence"]
    assert (item["sources"][0]["pre_quote"], item["sources"][0]["post_quote"]) == ("Before.", "")


def supports(statement: str, *turns: Turn, task: str = "Nothing to see.") -> list[dict]:
    """What of the target an item is tied to."""
    target = make_trajectory(0, *turns, task=task)
    item = {"evidence_id": "E1", "kind": "progress", "statement": statement, "sources": []}
    [entry] = ask("alignment", {**alignment_payload(target, []), "allowed_evidence": [item]})["targets"]
    return [one for guidance in entry["guidance"] for one in guidance["target_support"]]


def test_the_sentence_with_most_of_the_words_is_cited_and_the_first_of_equals():
    turns = [
        make_turn("a", "A room.", "A mug. No."),
        make_turn("b", "See.", "See the red mug. Go."),
        make_turn("c", "x", "The red mug."),
    ]
    assert supports("take red mug", *turns) == [{"step": 1, "field": "post", "quote": "See the red mug."}]
    assert supports("take mug 1", *turns) == [{"step": 0, "field": "post", "quote": "A mug."}]


def test_a_sentence_of_four_characters_is_cited_and_one_of_three_is_not():
    assert supports("take mug", make_turn("a", "x", "Mug. More.")) == [{"step": 0, "field": "post", "quote": "Mug."}]
    assert supports("take mug", make_turn("a", "x", "Mug More")) == [{"step": 0, "field": "post", "quote": "Mug More"}]
    assert supports("go up", make_turn("a", "x", "Up. More.")) == []


def test_the_task_is_cited_when_no_observation_names_what_an_item_is_about():
    turn = make_turn("a", "x", "y")
    assert supports("take mug 1", turn, task="Find a mug.") == [{"step": 0, "field": "task", "quote": "Find a mug."}]
    assert supports("take 1", turn, task="Find 1 mug.") == [], "numbers are no names"


# ---- edges ---------------------------------------------------------------------------------------------------------


def test_a_success_without_accepted_actions_says_nothing():
    success = make_trajectory(0, make_turn("x", valid=False), make_turn("", valid=False), success=True)
    assert ask("extraction", extraction_payload("x", [success])) == {"evidence": []}


def test_a_target_that_met_nothing_of_the_evidence_gets_a_reason():
    evidence = [
        {"evidence_id": "E1", "kind": "progress", "statement": "polish the zither", "sources": []},
    ]
    target = make_trajectory(0, make_turn("go", "A room.", "A hall."), task="Find a mug.")
    payload = {**alignment_payload(target, []), "allowed_evidence": evidence}
    [entry] = ask("alignment", payload)["targets"]
    assert entry["guidance"] == [] and entry["abstain_reason"]


def test_a_short_sentence_is_no_quote_unless_it_is_the_whole_record():
    success = make_trajectory(1, make_turn("up", "x y z.", "You go up now."), success=True, task="up")
    [target] = [make_trajectory(0, make_turn("down", "Up. Or not.", "Up"), task="Climb the hill.")]
    answer = ask("extraction", extraction_payload("up", [success]))
    evidence, _ = validate_evidence(answer, [success])
    answer = ask("alignment", alignment_payload(target, evidence))
    statements, rejected, _ = validate_alignment(answer, target, evidence)
    assert rejected == [] and [(one.field, one.quote) for one in statements[0].support] == [("post", "Up")]


texts = st.text(alphabet="ab .!?\n\u00a0é…’", max_size=60) | st.sampled_from(
    ["x ... y", "mug " * 120, "Mug.", "", "…"]
)
actions = st.sampled_from(["go", "take mug", "a b", "", "b " * 200, "look ... up", "<action>go</action>"])
turns = st.builds(make_turn, actions, texts, texts, valid=st.booleans())
trajectories = st.lists(turns, min_size=1, max_size=5)


@settings(max_examples=200, deadline=None)
@given(st.lists(trajectories, min_size=1, max_size=3), trajectories, texts, st.integers(100, 2000))
def test_all_that_it_says_about_anything_is_believed(successes: list, target: list, task: str, max_chars: int):
    won = [make_trajectory(k, *one, success=True, task=task) for k, one in enumerate(successes)]
    lost = make_trajectory(9, *target, task=task)
    answer = ask("extraction", extraction_payload(task, won, max_chars))
    evidence, rejected = validate_evidence(answer, won)
    assert rejected == []
    for one in (*won, lost):
        allowed = supported_by_others(evidence, one.uid)
        statements, rejected, _ = validate_alignment(
            ask("alignment", alignment_payload(one, allowed, max_chars)), one, allowed
        )
        assert rejected == []
        assert all(collapse(statement.text) == statement.text for statement in statements)


# ---- no knowledge --------------------------------------------------------------------------------------------------


def disguise(value: Any) -> Any:
    """Other words of the same length: every letter moves by thirteen."""
    if isinstance(value, dict):
        return {
            key: inner if key in ("traj_uid", "kind", "evidence_id") else disguise(inner)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [disguise(inner) for inner in value]
    return codecs.encode(value, "rot13") if isinstance(value, str) else value


def test_other_words_change_nothing_but_the_words(groups):
    # Whatever knows an environment knows its words. The answers about disguised records are the disguised answers.
    for group in groups:
        payload = extraction_payload(group.task_text, verified_successes(group), 4000)
        answer = ask("extraction", payload)
        assert answer["evidence"]
        assert ask("extraction", disguise(payload)) == disguise(answer)
        evidence, _ = validate_evidence(answer, verified_successes(group))
        for target in group.trajectories:
            payload = alignment_payload(target, supported_by_others(evidence, target.uid), 4000)
            [entry] = ask("alignment", payload)["targets"]
            [disguised] = ask("alignment", disguise(payload))["targets"]
            assert len(disguised["guidance"]) == len(entry["guidance"])
            for item, other in zip(entry["guidance"], disguised["guidance"], strict=True):
                quotes = [{**one, "quote": disguise(one["quote"])} for one in item["target_support"]]
                assert other["target_support"] == quotes
                assert other["evidence_ids"] == item["evidence_ids"]


def test_it_imports_no_environment():
    tree = ast.parse(Path(extractive.__file__).read_text())
    modules = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert not any("environment" in module for module in modules)


def test_it_may_be_closed_twice():
    analyzer = ExtractiveAnalyzer()
    analyzer.close()
    analyzer.close()


def test_statement_of_a_tagged_action_holds_no_tags():
    """Search-QA's actions carry their tags; a statement with one would be rejected in composition."""
    search = make_turn("<search>herons of the river</search>", "Ask.", "Herons nest here.")
    success = make_trajectory(0, search, make_turn("<answer>a</answer>", "Herons nest here.", ""), success=True)
    evidence = ask("extraction", extraction_payload("Where do herons nest?", [success]))["evidence"]
    assert evidence[0]["statement"] == "search: herons of the river"
    assert evidence[0]["sources"][0]["action_quote"] == "<search>herons of the river</search>"
