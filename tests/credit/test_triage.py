"""TRIAGE's two rule judges: which turn has which role, and what a role is worth."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taspo_trl.credit.triage import ROLE_CREDIT, Triage
from taspo_trl.errors import ConfigurationError
from tests.builders import trajectory, turn
from tests.credit import drawn, toy


def steps(*pairs, task="Put a clean mug in a cabinet."):
    """An episode of (action, answer); each answer is what the next action sees."""
    turns, seen = [], "You are in the kitchen."
    for action, answer in pairs:
        turns.append(turn(action=action, observation=seen, next_observation=answer, valid=answer != "Refused."))
        seen = answer
    return trajectory(turns, task_text=task)


def roles(episode):
    return [Triage().role(toy.batch(toy.group(episode)), episode, t) for t in range(len(episode.turns))]


def test_the_text_judge_reads_an_episode():
    episode = steps(
        ("go to shelf 1", "You are at shelf 1. You see a mug 1, a plate 1."),
        ("take plate 1 from shelf 1", "You take the plate 1."),
        ("move plate 1 to shelf 1", "You move the plate 1."),
        ("take mug 1 from shelf 1", "You take the mug 1."),
        ("open mug 1", "Nothing happens."),
        ("look", "You carry a mug 1."),
        ("look", "You carry a mug 1."),
        ("inventory", "You carry a mug 1."),
        ("clean mug 1 with sink 1", "You clean the mug 1."),
        ("go to cabinet 1", "It is closed."),
    )
    assert roles(episode) == [
        "exploration",  # a place and a text that are new
        "exploration",  # nothing that the task names, but a new answer
        "exploration",
        "decisive",
        "regression",  # Nothing happens.
        "exploration",
        "regression",  # the same action with the same answer
        "no_progress",  # an answer that was there already
        "decisive",
        "exploration",
    ]


def test_what_the_task_names_as_a_place_decides_nothing():
    assert roles(steps(("move plate 1 to cabinet 1", "You move the plate 1."))) == ["exploration"]
    assert roles(steps(("move mug 1 to shelf 1", "You move the mug 1."))) == ["decisive"]
    assert roles(steps(("turn on lamp 1", "It shines."), task="Examine a mug under a lit lamp.")) == ["decisive"]
    assert roles(steps(("take mug 2 from shelf 1", "Taken."), task="Put two mugs in a box.")) == ["decisive"]


def test_a_refused_action_decides_nothing():
    assert roles(steps(("take mug 1 from shelf 1", "Refused."), ("", "Refused."))) == ["exploration", "no_progress"]


def test_the_window_is_five_pairs():
    filler = [(f"take thing{i} 1 from shelf 1", f"Text {i}.") for i in range(5)]
    again = ("look", "You see a shelf 1.")
    assert roles(steps(again, *filler[:4], again))[-1] == "regression"
    assert roles(steps(again, *filler, again))[-1] == "exploration"


def test_the_oracle_judges_by_the_progress():
    episode = steps(("A", "x"), ("B", "x"), ("C", "y"), ("D", "z"), ("E", "w"), ("F", "v"))
    told = {("t", 0): 1.0, ("t", 1): 0.0, ("t", 2): 0.0, ("t", 3): -2.0}
    batch, rule = toy.batch(toy.group(episode), progress=told), Triage(judge="oracle")
    found = [rule.role(batch, episode, t) for t in range(6)]
    assert found == ["decisive", "no_progress", "exploration", "regression", None, None]
    assert rule(batch) == [pytest.approx([0.5, -0.05, 0.25, -0.25, 0.0, 0.0], abs=1e-12)]
    assert rule.needs.progress and not Triage().needs.progress


@pytest.mark.parametrize(
    ("outcome", "role", "expected"),
    [(0.865875, "regression", 0.615875), (-0.865875, "decisive", -0.365875), (0.0, "no_progress", -0.05)],
)
def test_a_role_moves_the_advantage(monkeypatch, outcome, role, expected):
    monkeypatch.setattr(Triage, "role", lambda self, batch, trajectory, t: role)
    batch = toy.batch(toy.group(toy.play("a", ("s0", "A", "s1"))), outcome=(outcome,))
    assert Triage()(batch) == [[pytest.approx(expected, abs=1e-12)]]
    assert Triage(strength=0.0)(batch) == [[outcome]]


@given(one=drawn.groups(), strength=st.floats(0, 3))
def test_a_role_moves_by_at_most_the_strength(one, strength):
    batch = toy.batch(one)
    for t, row in zip(batch.trajectories, Triage(strength=strength)(batch), strict=True):
        assert all(-strength / 2 - 1e-9 <= a - batch.outcome_of[t.uid] <= strength + 1e-9 for a in row)


def test_roles_move_groups_without_contrast():
    group = toy.group(toy.play("a", ("s0", "A", "s1")), toy.play("b", ("s0", "A", "s0")))
    assert Triage()(toy.batch(group)) == [[0.25], [-0.05]]


def test_the_judge_does_not_see_the_outcome():
    paths = toy.PATHS.values()
    lost, won = ([toy.play("a", path, reward) for path in paths] for reward in (0.0, 1.0))
    assert [roles(t) for t in lost] == [roles(t) for t in won]


def test_report_counts_roles_of_usable_episodes():
    group = toy.group(toy.play("a", ("s0", "A", "s1", "B", "s1")), toy.play("b", ("s0", "A", "s1"), usable=False))
    report = Triage().report(toy.batch(group))
    assert report == {f"credit/role/{role}": 0.5 * (role in ("exploration", "no_progress")) for role in ROLE_CREDIT}
    assert set(Triage().report(toy.batch(toy.group())).values()) == {0.0}


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"judge": "llm"}, "`judge` must be one of 'text', 'oracle', got 'llm'"),
        ({"strength": math.inf}, "strength"),
    ],
)
def test_impossible_options_are_refused(options, match):
    with pytest.raises(ConfigurationError, match=match):
        Triage(**options)
