"""What a method may know of the simulator: where it comes from, and which worlds are refused by name."""

from __future__ import annotations

import dataclasses

import pytest

from taspo_trl import TASPOConfig
from taspo_trl.environments import HouseholdEnvironment, ResetResult
from taspo_trl.environments.workers import EnvironmentPool
from taspo_trl.errors import ConfigurationError
from taspo_trl.rollout.plans import progress_told
from taspo_trl.training.simulator import check_simulator
from tests.truth.worlds import LENGTH, Corridor, Planned, Play


class Silent(Corridor):
    def reset(self, *, seed, **row):
        return ResetResult(super().reset(seed=seed, **row).observation)


class Quiet(Planned):
    """Tells progress by its plans alone."""

    def reset(self, *, seed, **row):
        return ResetResult(super().reset(seed=seed, **row).observation)

    def step(self, action):
        answer = super().step(action)
        return dataclasses.replace(answer, info={"success": answer.info["success"]})


class Broken(Corridor):
    def reset(self, *, seed, **row):
        raise RuntimeError("no power")


def check(world, rows=({"task_id": "walk"},), **values):
    pool = EnvironmentPool(world if isinstance(world, dict) else {None: world})
    try:
        check_simulator(TASPOConfig("out", use_cpu=True, bf16=False, **values), pool, rows)
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
