"""Plans by replay: from every state, as far as the world repeats itself, and never from a world without plans."""

from __future__ import annotations

import dataclasses

import pytest

from taspo_trl.environments import HouseholdEnvironment, ResetResult, StepResult, TextEnvironment
from taspo_trl.environments.alfworld.oracle import rest_of_walkthrough
from taspo_trl.errors import ConfigurationError
from taspo_trl.rollout.plans import PlanOracle, WorldStates
from tests.builders import trajectory, turn


ROW = {"preset": "small", "split": "train", "index": 3}
WALK = ("go to shelf 1", "take mug 1 from shelf 1", "use desklamp 1")


def played(*actions, **values):
    """An episode of the household world, and the plans that it knew on its way."""
    environment = HouseholdEnvironment()
    seen, turns, plans = environment.reset(seed=0, **ROW).observation, [], []
    for action in actions:
        plans.append(environment.oracle_plan())
        answer = environment.step(action).observation
        turns.append(turn(action=action, observation=seen, next_observation=answer))
        seen = answer
    return trajectory(turns, task=ROW, **{"seed": 0, **values}), plans


def test_each_turn_has_the_plan_from_its_own_state():
    first = HouseholdEnvironment()
    first.reset(seed=0, **ROW)
    one, plans = played("fly away", first.oracle_plan()[0], "go to fridge 1")
    assert PlanOracle({None: HouseholdEnvironment})(one) == plans
    assert plans[0] == plans[1] != plans[2], "a refused action changes nothing, the plan's own first step does"


def test_where_the_world_answers_otherwise_there_is_no_plan():
    one, plans = played("look", "look", "look")
    turns = list(one.turns)
    turns[1] = dataclasses.replace(turns[1], observation="Another room.")
    told = PlanOracle({None: HouseholdEnvironment})(dataclasses.replace(one, turns=tuple(turns)))
    assert told == [plans[0], None, None]
    assert PlanOracle({None: HouseholdEnvironment})(dataclasses.replace(one, seed=None)) == [None] * 3


def test_a_world_that_fails_costs_its_own_plans_alone(caplog):
    class Breaking(HouseholdEnvironment):
        closed = 0

        def step(self, action):
            raise RuntimeError("gone")

        def close(self):
            Breaking.closed += 1

    one, plans = played("look", "look")
    assert PlanOracle({None: Breaking})(one) == [plans[0], None]
    assert "RuntimeError: gone" in caplog.text and Breaking.closed == 2


def test_an_environment_without_plans_is_refused_by_name():
    class Plain:
        def reset(self, *, seed, **row):
            return ResetResult("")

        def step(self, action):
            return StepResult("", 0.0, True, False)

        def close(self):
            pass

    class Derived(TextEnvironment):
        pass

    for kind in (Plain, Derived):
        with pytest.raises(ConfigurationError, match=f"`{kind.__name__}` knows none"):
            PlanOracle({"a": HouseholdEnvironment, "b": kind})


def test_states_are_the_world_s_own_and_what_is_not_known_is_nobody_s():
    states = WorldStates({None: HouseholdEnvironment})
    one, _ = played("look", "inventory", uid="a")
    other, _ = played("inventory", uid="b")
    assert states(one, 0) == states(one, 1) == states(one, 2) == states(other, 1)
    lost = dataclasses.replace(one, uid="c", seed=None)
    assert len({states(lost, t) for t in range(3)} | {states(one, 0)}) == 4
    moved, _ = played("look", one.turns[0].action, uid="d")
    assert states.of(moved)[0] == states(one, 0)
    small = WorldStates({None: HouseholdEnvironment}, most=1)
    assert [small.of(t) for t in (one, other, one)] == [states.of(t) for t in (one, other, one)]


@pytest.mark.parametrize(
    "actions, rest",
    [
        ([], WALK),
        (["Go to  shelf 1"], WALK[1:]),
        (["look", "go to shelf 1", "examine mug 1", "inventory"], WALK[1:]),
        (WALK, ()),
        ([*WALK, "look"], ()),
        (["go to shelf 2"], None),
        (["take mug 1 from shelf 1"], None),
        ([WALK[0], WALK[0]], None),
    ],
)
def test_a_walkthrough_holds_after_its_own_commands_and_idle_ones(actions, rest):
    assert rest_of_walkthrough(WALK, actions) == (None if rest is None else list(rest))
    assert rest_of_walkthrough((), actions) is None
