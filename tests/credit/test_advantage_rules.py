"""What every advantage rule promises, whatever the batch: order, unusable episodes, other groups, flat groups."""

import dataclasses
import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taspo_trl.credit.base import OutcomeAdvantage
from taspo_trl.credit.gigpo import GiGPO
from taspo_trl.credit.graphgpo import GraphGPO
from taspo_trl.credit.grpo import GRPO
from taspo_trl.credit.hcapo import HCAPO
from taspo_trl.credit.hgpo import HGPO
from taspo_trl.credit.rloo import RLOO
from taspo_trl.credit.triage import Triage
from taspo_trl.errors import InvariantError
from taspo_trl.types import StopReason
from tests.credit import drawn, toy


def progress(batch):
    """What a made-up plan tells that hangs on the state alone, not known in one of them."""
    lengths = {"s0": 3.0, "s1": 2.0, "s2": 1.0}
    found = {}
    for t in (one for one in batch.trajectories if one.is_usable):
        states = [lengths.get(toy.observation(t, k)) for k in range(len(t.turns) + 1)]
        for k, (before, after) in enumerate(itertools.pairwise(states)):
            if before is not None and after is not None:
                found[t.uid, k] = before - after
    return found


RULES = {
    "outcome": OutcomeAdvantage(),
    "grpo": GRPO(),
    "grpo rows": GRPO(stats="rows"),
    "rloo": RLOO(),
    "reinforce++": RLOO(scale="batch"),
    "gigpo": GiGPO(),
    "gigpo mean": GiGPO(normalisation="mean_norm"),
    "gigpo similar": GiGPO(similarity=0.5),
    "pace_q": GiGPO(peers="action"),
    "hgpo": HGPO(),
    "hgpo mean": HGPO(normalisation="mean_norm", history_length=0),
    "hgpo base": HGPO(base_group=True, alpha=2.0),
    "graphgpo": GraphGPO(),
    "graphgpo difference": GraphGPO(step_return="difference", gamma=0.5),
    "hcapo": HCAPO(),
    "hcapo smooth": HCAPO(smoothing=True),
    "triage text": Triage(),
    "triage oracle": Triage(judge="oracle"),
}
MAY_FLIP = {name for name in RULES if name.startswith(("gigpo", "pace_q", "hgpo", "graphgpo", "hcapo", "triage"))}
MOVES_FLAT = MAY_FLIP
GROUP_BOUND = sorted(set(RULES) - {"reinforce++"})

rules = pytest.mark.parametrize("name", sorted(RULES))
few = settings(max_examples=40, deadline=None)


def run(name, *groups, **fields):
    """uid -> A_it of each turn."""
    batch = drawn.hindsight(toy.batch(*groups, **fields))
    batch = dataclasses.replace(batch, progress=progress(batch))
    values = RULES[name](batch)
    return {t.uid: row for t, row in zip(batch.trajectories, values, strict=True)}


def close(row):
    return pytest.approx(row, abs=1e-9, rel=1e-9)


@rules
@few
@given(one=drawn.groups())
def test_one_finite_value_for_each_turn_and_zero_for_the_unusable(name, one):
    found = run(name, one)
    for member in one.trajectories:
        assert len(found[member.uid]) == len(member.turns)
        assert all(math.isfinite(a) for a in found[member.uid])
        if not member.is_usable:
            assert set(found[member.uid]) <= {0.0}


@rules
@few
@given(one=drawn.groups(), seed=st.integers(0, 1000))
def test_the_order_of_the_trajectories_does_not_count(name, one, seed):
    shuffled = random.Random(seed).sample(one.trajectories, len(one.trajectories))
    found, again = run(name, one), run(name, toy.group(*shuffled))
    for uid, row in found.items():
        assert again[uid] == close(row)


@rules
@few
@given(one=drawn.groups(), path=drawn.paths(), reward=drawn.rewards)
def test_unusable_trajectories_change_nobody(name, one, path, reward):
    broken = toy.play("broken", path, reward, usable=False)
    unusable_success = dataclasses.replace(broken, uid="odd", success=True, stop_reason=StopReason.REWARD_ERROR)
    found, again = run(name, one), run(name, toy.group(broken, *one.trajectories, unusable_success))
    assert set(again["broken"]) <= {0.0}
    assert {uid: again[uid] for uid in found} == found


@pytest.mark.parametrize("name", GROUP_BOUND)
@few
@given(one=drawn.groups(), other=drawn.groups("h"))
def test_another_group_changes_nothing(name, one, other):
    alone, after, before = run(name, one), run(name, one, other), run(name, other, one)
    assert {uid: after[uid] for uid in alone} == alone
    assert {uid: before[uid] for uid in alone} == alone


def test_the_batch_scale_alone_sees_other_groups():
    other = toy.group(toy.play("e", ("s", "A", "t"), 5.0), toy.play("f", ("s", "A", "t"), 0.0), group_id="h")
    alone, beside = run("reinforce++", toy.t0()), run("reinforce++", toy.t0(), other)
    assert abs(beside["a"][0]) < abs(alone["a"][0])


@pytest.mark.parametrize("name", sorted(name for name in RULES if not name.startswith("triage")))
@few
@given(played=st.lists(drawn.paths(), max_size=4))
def test_a_group_without_success_and_reward_stays_at_zero(name, played):
    members = [toy.play(f"g{i}", one, 0.0) for i, one in enumerate(played)]
    assert all(set(row) <= {0.0} for row in run(name, toy.group(*members)).values())


@pytest.mark.parametrize("name", sorted(set(RULES) - MOVES_FLAT - {"grpo rows"}))
@few
@given(one=drawn.groups(values=st.just(1.0)))
def test_a_flat_group_stays_at_zero(name, one):
    assert all(set(row) <= {0.0} for row in run(name, one).values())


def all_success():
    return toy.group(
        toy.play("a", ("s0", "A", "s1", "B", "solved"), 1.0),
        toy.play("b", ("s0", "C", "s0", "A", "s1", "B", "solved"), 1.0),
    )


@pytest.mark.parametrize("name", sorted(MOVES_FLAT))
def test_a_group_of_successes_moves_where_the_table_says_so(name):
    assert any(a != 0 for row in run(name, all_success()).values() for a in row)


@pytest.mark.parametrize("name", sorted(set(RULES) - MAY_FLIP - {"grpo rows"}))
@few
@given(one=drawn.groups())
def test_the_sign_is_that_of_the_outcome(name, one):
    batch = toy.batch(one)
    for uid, row in run(name, one).items():
        assert all(a * batch.outcome_of[uid] >= 0 for a in row)


@pytest.mark.parametrize(
    ("name", "uid", "turn"),
    [
        ("gigpo", "c", None),
        ("hgpo", "c", None),
        ("graphgpo", "c", 0),
        ("triage text", "a", None),
    ],
)
def test_signs_turn_where_the_table_says_so(name, uid, turn):
    members = {
        # c takes a good first step and fails all the same; many peers do worse from the same state.
        "gigpo": [("a", "s0 A s1 B x", 1.0), ("c", "s0 A s1 B x", 0.0), ("d", "s1 B x", 0.9), ("e", "s9 B x", -9.0)],
        "hgpo": [("a", "s0 A s1 B x", 1.0), ("c", "s0 A s2 B x", 0.4), ("d", "s2 B x", 0.0)],
        "graphgpo": [(u, " ".join(p), float(u in "ad")) for u, p in toy.PATHS.items()],
        "triage text": [("a", "s0 A s1 A s0 A s1", 0.6), ("b", "s0 A s1", 0.0), ("c", "s0 A s1", 1.0)],
    }[name]
    group = toy.group(*(toy.play(u, path.split(), reward) for u, path, reward in members))
    sign = toy.batch(group).outcome_of[uid]
    row = run(name, group)[uid]
    flipped = [a for a in row if a * sign < 0]
    assert flipped
    if turn is not None:
        assert row[turn] * sign < 0


@pytest.mark.parametrize("name", ["gigpo", "hgpo", "graphgpo"])
def test_a_rule_of_states_says_so(name):
    assert RULES[name].needs.state_key
    with pytest.raises(InvariantError, match="no state key"):
        RULES[name](toy.batch(state_key=None))


@rules
def test_only_hindsight_needs_scores(name):
    needs = RULES[name].needs
    assert bool(needs.blocks) == needs.final_scores == needs.flat_groups == name.startswith("hcapo")
    assert needs.scope == ("action" if needs.blocks else "none")
