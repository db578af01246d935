"""The seam of the credit rules: the toy batch, GRPO's rule, needs put together."""

import pytest

from taspo_trl.credit.base import OutcomeAdvantage
from tests.credit import toy


def test_the_toy_batch_is_the_one_of_the_docs():
    batch = toy.batch()
    assert [t.uid for t in batch.trajectories] == ["a", "b", "c", "d"]
    assert [len(t.turns) for t in batch.trajectories] == [2, 2, 2, 3]
    assert batch.outcome == pytest.approx([toy.HIGH, toy.LOW, toy.LOW, toy.HIGH], abs=1e-6)
    assert [toy.observation(batch.trajectories[3], t) for t in range(4)] == ["s0", "s2", "s1", "solved"]


def test_grpo_gives_every_turn_the_outcome():
    assert OutcomeAdvantage()(toy.batch()) == toy.near([[toy.HIGH] * 2, [toy.LOW] * 2, [toy.LOW] * 2, [toy.HIGH] * 3])


def test_toy_scores_are_read_back_as_shifts():
    member = toy.t0().trajectories[0]
    batch = toy.batch(scores=toy.scores_of(member, [{"x": (0.5, -0.25)}, None]))
    assert batch.action_shifts(member, 0, "x") == (0.5, -0.25)
    assert batch.action_shifts(member, 1, "x") is None
