"""Which turns stand in one state, by each key; and a replay that is not there."""

from dataclasses import replace

import pytest

from taspo_trl.credit.gigpo import GiGPO
from taspo_trl.credit.states import STATE_KEYS, state_key
from taspo_trl.errors import ConfigurationError
from tests.credit import toy


def test_observation_is_the_text_before_the_action_and_after_the_last():
    member = toy.t0().trajectories[3]
    key = state_key("observation")
    assert [key(member, t) for t in range(4)] == ["s0", "s2", "s1", "solved"]


def test_observation_actions_tells_apart_what_reads_the_same():
    member = toy.play(
        "a", ("Nothing happens.", "A", "Nothing happens.", "B", "Nothing happens.", "C", "Nothing happens.")
    )
    listed = (("look", "take mug 1"), ("take mug 1", "look"), ("look",))
    turns = [replace(turn, admissible_actions=one) for turn, one in zip(member.turns, listed, strict=True)]
    member = replace(member, turns=tuple(turns))
    key = state_key("observation_actions")
    first, second, third, after = (key(member, t) for t in range(4))
    assert first == second == ("Nothing happens.", frozenset({"look", "take mug 1"}))
    assert len({first, third, after}) == 3
    assert after == ("Nothing happens.", None)
    assert len({state_key("observation")(member, t) for t in range(4)}) == 1


def test_world_is_what_the_replay_found():
    member = toy.t0().trajectories[0]
    key = state_key("world", {("a", 0): ("mug", 1), ("a", 1): ("mug", 2), ("a", 2): None})
    assert [key(member, t) for t in range(3)] == [("mug", 1), ("mug", 2), None]


def test_world_without_a_replay_is_refused():
    with pytest.raises(ConfigurationError, match=r"`state_key` \('world'\).*needs a replay.*'observation_actions'"):
        state_key("world")
    key = state_key("world", {("a", 0): 0})
    with pytest.raises(ConfigurationError, match="no state of trajectory 'a' before turn 1"):
        key(toy.t0().trajectories[0], 1)


def test_an_unknown_key_is_refused():
    with pytest.raises(ConfigurationError, match=r"`state_key` must be one of 'observation', .*, got 'observations'"):
        state_key("observations")


@pytest.mark.parametrize("name", STATE_KEYS)
def test_every_key_serves_a_rule(name):
    batch = toy.batch()
    states = {(m.uid, t): toy.observation(m, t) for m in batch.trajectories for t in range(len(m.turns) + 1)}
    keyed = toy.batch(state_key=state_key(name, states if name == "world" else None))
    assert GiGPO()(keyed) == GiGPO()(batch)
