"""What a method may know of the simulator: where it comes from, and which worlds are refused by name."""

from __future__ import annotations

import dataclasses

import pytest

from taspo_trl import TASPOConfig
from taspo_trl.credit.base import Batch
from taspo_trl.environments import HouseholdEnvironment, ResetResult
from taspo_trl.environments.workers import EnvironmentPool
from taspo_trl.errors import ConfigurationError
from taspo_trl.methods import METHODS, recipe_for
from taspo_trl.rollout.groups import Collector
from taspo_trl.rollout.plans import progress_told
from taspo_trl.rollout.rewards import RewardSettings, score_group
from taspo_trl.training.simulator import Simulator, check_simulator
from taspo_trl.types import TrajectoryGroup
from tests.truth.worlds import LENGTH, Corridor, Moody, Planned, Play, Quiet, value


class Silent(Corridor):
    def reset(self, *, seed, **row):
        return ResetResult(super().reset(seed=seed, **row).observation)


def raising():
    raise OSError("no license for another instance")


class Broken(Corridor):
    def reset(self, *, seed, **row):
        raise RuntimeError("no power")


def check(world, rows=({"task_id": "walk"},), has_reward_functions=False, **values):
    pool = EnvironmentPool(world if isinstance(world, dict) else {None: world})
    try:
        args = TASPOConfig("out", use_cpu=True, bf16=False, **values)
        check_simulator(recipe_for(args), pool, rows, has_reward_functions)
    finally:
        pool.close()


def test_an_oracle_is_refused_by_name_where_the_world_knows_nothing():
    for world in (Corridor, Planned, HouseholdEnvironment):
        check(world, method="oracle")
    check(Silent, method="grpo")
    for values in ({"method": "placebo"}, {"method": "triage", "method_options": {"judge": "oracle"}}):
        with pytest.raises(ConfigurationError, match=f"`method='{values['method']}'`.*`Silent` knows none"):
            check(Silent, **values)
    with pytest.raises(ConfigurationError, match=r"`Broken` was begun .* failed: RuntimeError: no power"):
        check(Broken, method="oracle")


def test_of_several_worlds_each_must_know():
    rows = [{"task_id": "a", "environment": "a"}, {"task_id": "b", "environment": "b"}]
    check({"a": Corridor, "b": Planned}, rows, method="oracle")
    with pytest.raises(ConfigurationError, match="`Silent` knows none"):
        check({"a": Corridor, "b": Silent}, rows, method="oracle")


def test_what_answers_told_is_taken_and_plans_where_they_told_nothing():
    with Play(Planned) as play:
        episodes = play.episodes(6)
    assert any(turn.action == "left" for one in episodes for turn in one.turns)
    for one in episodes:
        assert progress_told(one, Broken) == [turn.progress for turn in one.turns], "no replay"
    with Play(Quiet) as play:
        quiet = play.episodes(6)
    for one in quiet:
        assert {turn.progress for turn in one.turns} == {None}
        first = next((t for t, turn in enumerate(one.turns) if turn.action == "left"), LENGTH)
        # Astray there is no plan, so nothing is known of the step that led there either.
        assert progress_told(one, Quiet) == [1.0 if t < first else None for t in range(LENGTH)]
    assert progress_told(quiet[0], raising) == [None] * LENGTH, "a world that cannot be made costs no step"


def test_states_and_continuations_are_refused_by_name_where_they_cannot_be_had():
    world = {"method": "gigpo", "method_options": {"state_key": "world"}}
    check(HouseholdEnvironment, **world)
    with pytest.raises(ConfigurationError, match=r"`state_key='world'`.*`Corridor` has no `world_state\(\)`"):
        check(Corridor, **world)
    values = {"method": "factor", "method_options": {"value": "continuations"}}
    check(Corridor, **values)
    with pytest.raises(ConfigurationError, match="`reward_funcs` are called with whole groups"):
        check(Corridor, has_reward_functions=True, **values)


def told(play, episodes, **options):
    """What FACTOR is told of these episodes."""
    method = METHODS["factor"].make(value="continuations", **options)
    given = dict(play.arguments)
    sampling = given.pop("sampling")
    collector = Collector(
        **given, rewards=RewardSettings(), guidance=None, num_generations=len(episodes), gather=lambda found: found
    )
    group = score_group(TrajectoryGroup("r0-g0", tuple(episodes)), RewardSettings())
    batch = Batch((group,), (0.0,) * len(episodes))
    return Simulator(method).told(batch, collector, sampling, 0)


def test_continuations_tell_the_values_of_states():
    with Play(Corridor) as play:
        episodes = play.episodes(3)
        batch, metrics = told(play, episodes, continuations=16)
    assert {(uid, t) for uid, t in batch.values if t < LENGTH} == {(one.uid, t) for one in episodes for t in (1, 2)}
    for one in episodes:
        for t in (1, 2, LENGTH):
            expected = value(t, [turn.action for turn in one.turns])
            assert batch.values[one.uid, t] == pytest.approx(expected, abs=0.3 if 0 < expected < 1 else 0)
    assert metrics == {
        "simulator/continued_replies": 3 * 16 * (2 + 1),
        "simulator/dropped_continuations": 0.0,
        "simulator/lost_share": 0.0,
    }


def test_a_world_that_never_comes_back_is_refused_and_one_lost_episode_is_not():
    with Play(Corridor) as play:
        episodes = play.episodes(3)
        lost = dataclasses.replace(episodes[0], seed=None)
        batch, metrics = told(play, [lost, *episodes[1:]], continuations=2)
        assert metrics["simulator/lost_share"] == pytest.approx(1 / 3)
        assert {uid for uid, _ in batch.values} == {one.uid for one in episodes[1:]}
    with Play(Moody) as play:
        episodes = play.episodes(2)
        with pytest.raises(ConfigurationError, match=r"`Moody` does not come back to any.*value='siblings'"):
            told(play, episodes, continuations=2)
