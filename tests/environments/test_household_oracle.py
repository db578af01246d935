"""Players of the household world: the plan that knows everything and the search that sees only texts."""

from __future__ import annotations

import copy
import dataclasses
import random
from collections import defaultdict

import pytest

from taspo_trl.environments.household import (
    FAMILIES,
    PRESETS,
    SPLITS,
    HouseholdEnvironment,
    SearchingOracle,
    plan,
    solve,
)
from taspo_trl.environments.household.catalogue import CONDITIONS
from taspo_trl.environments.household.tasks import DEFAULT_SIZES, Goal, capacity, family_of, make_task
from taspo_trl.environments.household.world import World

from .household_play import play_actions, play_oracle, row, snapshot


EVERY_SPLIT = [(preset, split) for preset in PRESETS for split in SPLITS]


@pytest.mark.parametrize(("preset", "split"), EVERY_SPLIT)
def test_solve_solves_every_task_with_its_last_action(preset, split):
    environment, rng = HouseholdEnvironment(preset), random.Random(0)
    sampled = [rng.randrange(capacity(preset, split)) for _ in range(500)]
    for index in [*range(DEFAULT_SIZES[split]), *sampled]:
        task_row = row(preset, split, index)
        actions = solve(task_row)
        results = play_actions(environment, task_row, actions)
        assert len(actions) <= PRESETS[preset].max_turns
        assert [result.terminated for result in results] == [False] * (len(actions) - 1) + [True]
        assert results[-1].info["success"] is True
        assert all(result.info["valid"] for result in results)


def fewest_actions(start: World, at_most: int) -> int | None:
    """Length of the shortest solution, by trying everything breadth first."""
    frontier, met = [start], {snapshot(start)}
    for length in range(1, at_most + 1):
        following = []
        for state in frontier:
            for action in state.actions():
                if action.verb in ("look", "inventory", "close"):
                    continue
                after = copy.copy(state)
                after.contents = {place: list(things) for place, things in state.contents.items()}
                after.closed, after.lit = set(state.closed), set(state.lit)
                after.conditions = dict(state.conditions)
                after.apply(action)
                if after.is_solved():
                    return length
                if (mark := snapshot(after)) not in met:
                    met.add(mark)
                    following.append(after)
        frontier = following
    return None


@pytest.mark.parametrize("index", [*range(5), 6, 7, 8, 9, 10, 13, 19])
def test_solutions_are_as_short_as_any(index):
    """On small worlds; tasks of the family `two` are too long to try everything."""
    actions = solve(row("small", "train", index))
    assert fewest_actions(World(make_task("small", "train", index)), at_most=len(actions)) == len(actions)


@pytest.mark.parametrize("index", [0, 1, 2, 3, 4, 6, 7, 8, 9, 10])
def test_plans_on_the_way_are_as_short_as_any(index):
    environment, rng = HouseholdEnvironment("small"), random.Random(index)
    admissible = environment.reset(**row("small", "train", index)).info["admissible_actions"]
    for _ in range(4):
        busy = [text for text in admissible if not text.startswith(("go to", "look", "inventory"))]
        admissible = environment.step(rng.choice(busy or admissible)).info["admissible_actions"]
    assert not environment.world.is_solved()
    actions = plan(environment.world)
    assert fewest_actions(environment.world, at_most=len(actions)) == len(actions)


def test_plan_takes_the_nearest_of_several_things_and_places():
    task = make_task("standard", "train", 0)
    layout = ("cabinet 1", "shelf 1", "shelf 2", "desk 1", "fridge 1")
    contents = dict.fromkeys(layout, ()) | {"cabinet 1": ("mug 1",), "desk 1": ("mug 2",), "fridge 1": ("mug 3",)}
    world = World(
        dataclasses.replace(
            task, layout=layout, goal=Goal("pick", "mug", "shelf"), contents=contents, closed=("cabinet 1", "fridge 1")
        )
    )
    assert plan(world) == ["go to desk 1", "take mug 2 from desk 1", "go to shelf 1", "move mug 2 to shelf 1"]
    follow(world, ["go to desk 1", "take mug 2 from desk 1", "go to shelf 2"])
    assert plan(world) == ["move mug 2 to shelf 2"]


@pytest.mark.parametrize("preset", PRESETS)
def test_plan_solves_from_wherever_random_play_has_led(preset):
    environment, rng = HouseholdEnvironment(preset), random.Random(3)
    for index in range(240):
        admissible = environment.reset(**row(preset, "train", index)).info["admissible_actions"]
        result = None
        for _ in range(10):
            busy = [text for text in admissible if not text.startswith(("go to", "look", "inventory"))]
            result = environment.step(rng.choice(busy if busy and rng.random() < 0.6 else admissible))
            admissible = result.info["admissible_actions"]
            if result.terminated:
                break
        world = copy.deepcopy(environment.world)
        before = snapshot(world)
        actions = plan(world)
        assert snapshot(world) == before
        assert (actions == []) is result.terminated
        follow(world, actions)
        assert world.is_solved()


def follow(world: World, actions: list[str]) -> None:
    from taspo_trl.environments.household.wording import action_text

    for text in actions:
        world.apply({action_text(action): action for action in world.actions()}[text])


@pytest.mark.parametrize("preset", PRESETS)
def test_searching_solves_nearly_every_task_within_the_limit(preset):
    environment, solved = HouseholdEnvironment(preset), defaultdict(list)
    for split in SPLITS:
        for index in range(300):
            results = play_oracle(environment, row(preset, split, index), SearchingOracle())
            assert all(result.info["valid"] for result in results)
            solved[family_of(index)].append(results[-1].info["success"])
    for family in FAMILIES:
        assert sum(solved[family]) / len(solved[family]) >= (0.95 if preset == "small" else 0.99), family


@pytest.mark.parametrize("preset", PRESETS)
def test_searching_goes_nowhere_twice_in_vain_and_takes_only_what_it_needs(preset):
    environment = HouseholdEnvironment(preset)
    for index in range(600):
        results = play_oracle(environment, row(preset, "valid_unseen", index), SearchingOracle())
        texts = [result.observation for result in results]
        needed = 2 if family_of(index) == "two" else 1
        assert sum(text.startswith("You take") for text in texts) <= needed
        assert len(texts) - len(set(texts)) <= 1  # back at a place with one more thing delivered or fetched
        assert results[-1].info["success"] is False or sum(text.startswith("You take") for text in texts) == needed


@pytest.mark.parametrize("preset", PRESETS)
def test_careless_search_fails_just_where_a_condition_is_asked_for(preset):
    environment, believed = HouseholdEnvironment(preset), []
    for index in range(300):
        oracle = SearchingOracle(careless=True)
        results = play_oracle(environment, row(preset, "train", index), oracle)
        if family_of(index) in CONDITIONS:
            assert not results[-1].info["success"]
            believed.append(oracle.believes_done)
        else:
            careful = play_oracle(environment, row(preset, "train", index), SearchingOracle())
            assert [r.observation for r in results] == [r.observation for r in careful]
    assert sum(believed) / len(believed) > 0.99


def test_careless_plan_leaves_out_one_visit_to_the_tool():
    for index in range(300):
        world = World(make_task("standard", "train", index))
        careful, careless = plan(world), plan(world, careless=True)
        tools = [text for text in careful if text.startswith(("clean", "heat", "cool"))]
        assert len(tools) == (family_of(index) in CONDITIONS)
        assert not any(text in careless for text in tools)
        assert len(careless) == len(careful) if not tools else len(careless) < len(careful)


@pytest.mark.parametrize("preset", PRESETS)
def test_searching_copes_with_actions_that_others_slip_in(preset):
    environment, solved = HouseholdEnvironment(preset), []
    for index in range(300):
        results = play_oracle(environment, row(preset, "valid_seen", index), SearchingOracle(), noise=0.12)
        solved.append(results[-1].info["success"])
    assert sum(solved) / len(solved) > (0.75 if preset == "small" else 0.99)


def test_searching_depends_on_nothing_but_what_is_shown():
    """Two worlds that differ only where nobody has looked yet get the same action."""
    for index in range(60):
        task = make_task("standard", "train", index)
        oracle, twin = SearchingOracle(seed=4), SearchingOracle(seed=4)
        environment = HouseholdEnvironment()
        start = environment.reset(**row("standard", "train", index))
        shown = (start.info["task"], start.observation, start.info["admissible_actions"])
        oracle.begin(*shown)
        first = oracle.choose()
        twin.begin(*shown)
        # Empty the rooms behind the twin's back: it has seen nothing of them.
        environment.world.contents = {place: [] for place in task.layout}
        assert twin.choose() == first


def test_searching_remembers_what_it_took_away():
    oracle = SearchingOracle()
    everywhere = ["go to desk 1", "go to shelf 1", "go to cabinet 1"]
    start = "You are in the kitchen. You see desk 1, shelf 1, cabinet 1. You carry nothing."
    oracle.begin("Put two mugs on a shelf.", start, everywhere)
    for action, observation in (
        ("go to desk 1", "You are at desk 1. You see mug 1, cup 1. You carry nothing."),
        ("take mug 1 from desk 1", "You take mug 1 from desk 1. You carry mug 1."),
        ("go to shelf 1", "You are at shelf 1. You see nothing. You carry mug 1."),
        ("move mug 1 to shelf 1", "You move mug 1 to shelf 1. You carry nothing."),
    ):
        oracle.note(action, observation, everywhere)
    assert oracle.choose() == "go to cabinet 1"


def test_seed_varies_the_search_and_the_same_seed_repeats_it():
    environment = HouseholdEnvironment("standard")
    paths = {
        seed: [
            [result.observation for result in play_oracle(environment, row("standard", "train", index), oracle)]
            for index in range(12)
        ]
        for seed, oracle in ((0, SearchingOracle(seed=0)), (1, SearchingOracle(seed=1)))
    }
    assert paths[0] != paths[1]
    again = [
        [r.observation for r in play_oracle(environment, row("standard", "train", index), SearchingOracle(seed=0))]
        for index in range(12)
    ]
    assert again == paths[0]


def test_the_environment_tells_its_plan_from_wherever_it_stands():
    environment = HouseholdEnvironment("small")
    assert environment.oracle_plan() is None, "before the first reset"
    environment.reset(split="train", index=3)
    while plan_left := environment.oracle_plan():
        environment.step(plan_left[0])
        assert environment.oracle_plan() == plan_left[1:]
    assert environment.world.is_solved() and environment.oracle_plan() == []
