"""Rules of the household world, on rooms made by hand and on random play."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taspo_trl.environments.household import PRESETS, SPLITS, HouseholdEnvironment
from taspo_trl.environments.household.catalogue import kind_of
from taspo_trl.environments.household.tasks import Goal, Task
from taspo_trl.environments.household.wording import action_text
from taspo_trl.environments.household.world import World

from .household_play import all_things, row, snapshot


def world(goal: Goal, **contents: tuple[str, ...]) -> World:
    """A kitchen with a shelf and a desk with a lamp; fridge and cabinet are closed."""
    layout = ("fridge 1", "microwave 1", "sink 1", "cabinet 1", "shelf 1", "shelf 2", "desk 1")
    placed = {place: contents.get(place.replace(" ", "_"), ()) for place in layout}
    return World(
        Task("small", "train", 0, "kitchen", layout, goal, placed, {"lamp 1": "desk 1"}, ("fridge 1", "cabinet 1"))
    )


def do(state: World, *actions: str) -> World:
    for text in actions:
        offered = {action_text(action): action for action in state.actions()}
        assert text in offered, f"{text!r} is not among {list(offered)}"
        state.apply(offered[text])
    return state


def offers(state: World) -> set[str]:
    return {action_text(action) for action in state.actions()}


def test_middle_of_the_room_offers_only_places():
    state = world(Goal("pick", "mug", "shelf"), shelf_1=("mug 1",))
    assert offers(state) == {f"go to {place}" for place in state.places} | {"look", "inventory"}


def test_closed_receptacle_can_only_be_opened():
    state = do(world(Goal("pick", "mug", "shelf"), cabinet_1=("mug 1",)), "go to cabinet 1")
    assert "open cabinet 1" in offers(state)
    assert not any(text.startswith(("take", "move", "close")) for text in offers(state))
    do(state, "open cabinet 1")
    assert {"close cabinet 1", "take mug 1 from cabinet 1"} <= offers(state)
    do(state, "take mug 1 from cabinet 1", "close cabinet 1")
    assert "move mug 1 to cabinet 1" not in offers(state)


def test_hands_hold_one_thing():
    state = do(world(Goal("pick", "mug", "desk"), shelf_1=("mug 1", "cup 1")), "go to shelf 1")
    assert {"take mug 1 from shelf 1", "take cup 1 from shelf 1"} <= offers(state)
    do(state, "take mug 1 from shelf 1")
    assert not any(text.startswith("take") for text in offers(state))
    assert all_things(state) == ["cup 1", "mug 1"]


def test_lamp_is_not_carried():
    state = do(world(Goal("look", "book")), "go to desk 1")
    assert offers(state) >= {"turn on lamp 1"}
    assert not any(text.startswith("take") for text in offers(state))


@pytest.mark.parametrize(
    ("thing", "place", "verbs"),
    [
        ("mug 1", "sink 1", {"clean"}),
        ("mug 1", "microwave 1", {"heat"}),
        ("mug 1", "fridge 1", {"cool"}),
        ("egg 1", "sink 1", set()),
        ("fork 1", "microwave 1", set()),
        ("book 1", "fridge 1", set()),
        ("mug 1", "shelf 2", set()),
    ],
)
def test_tools_work_on_what_they_suit(thing, place, verbs):
    state = do(world(Goal("pick", "mug", "desk"), shelf_1=(thing,)), "go to shelf 1", f"take {thing} from shelf 1")
    do(state, f"go to {place}")
    assert {text for text in offers(state) if " with " in text} == {f"{verb} {thing} with {place}" for verb in verbs}


def test_tools_need_the_thing_in_hand():
    state = do(world(Goal("clean", "mug", "desk", "clean"), sink_1=("mug 1",)), "go to sink 1")
    assert "clean mug 1 with sink 1" not in offers(state)


def test_heat_and_cold_replace_each_other_and_cleanness_stays():
    state = do(
        world(Goal("heat", "mug", "desk", "hot"), shelf_1=("mug 1",)), "go to shelf 1", "take mug 1 from shelf 1"
    )
    do(state, "go to sink 1", "clean mug 1 with sink 1", "go to microwave 1", "heat mug 1 with microwave 1")
    assert state.conditions_of("mug 1") == ("clean", "hot")
    assert "heat mug 1 with microwave 1" not in offers(state)
    do(state, "go to fridge 1", "cool mug 1 with fridge 1")
    assert state.conditions_of("mug 1") == ("clean", "cool")
    do(state, "go to microwave 1", "heat mug 1 with microwave 1", "go to desk 1", "move mug 1 to desk 1")
    assert state.is_solved()


def test_unheated_thing_does_not_count_as_hot():
    state = do(
        world(Goal("heat", "mug", "desk", "hot"), shelf_1=("mug 1",)), "go to shelf 1", "take mug 1 from shelf 1"
    )
    assert not do(state, "go to desk 1", "move mug 1 to desk 1").is_solved()


@pytest.mark.parametrize(("first", "second", "is_solved"), [("1", "1", True), ("1", "2", False), ("2", "2", True)])
def test_two_things_belong_in_one_place(first, second, is_solved):
    state = world(Goal("two", "mug", "shelf", count=2), desk_1=("mug 1", "mug 2", "cup 1"))
    do(state, "go to desk 1", "take mug 1 from desk 1", f"go to shelf {first}", f"move mug 1 to shelf {first}")
    assert not state.is_solved()
    do(state, "go to desk 1", "take mug 2 from desk 1", f"go to shelf {second}", f"move mug 2 to shelf {second}")
    assert state.is_solved() is is_solved


def test_other_kind_in_the_right_place_does_not_count():
    state = world(Goal("pick", "mug", "shelf"), desk_1=("cup 1",))
    assert not do(
        state, "go to desk 1", "take cup 1 from desk 1", "go to shelf 1", "move cup 1 to shelf 1"
    ).is_solved()


@pytest.mark.parametrize(
    ("actions", "is_solved"),
    [
        (("go to desk 1", "turn on lamp 1"), False),
        (("go to shelf 1", "take book 1 from shelf 1", "go to desk 1"), False),
        (("go to shelf 1", "take book 1 from shelf 1", "go to desk 1", "turn on lamp 1"), True),
        (("go to desk 1", "turn on lamp 1", "go to shelf 1", "take book 1 from shelf 1"), False),
        (("go to desk 1", "turn on lamp 1", "go to shelf 1", "take book 1 from shelf 1", "go to desk 1"), True),
        (("go to shelf 1", "take cup 1 from shelf 1", "go to desk 1", "turn on lamp 1"), False),
    ],
)
def test_thing_is_examined_in_hand_at_the_lit_lamp(actions, is_solved):
    assert do(world(Goal("look", "book"), shelf_1=("book 1", "cup 1")), *actions).is_solved() is is_solved


def every_conceivable_action(state: World) -> list[str]:
    """Each verb with each thing and place of the world, sensible or not."""
    things = [*all_things(state), *state.lamps]
    texts = ["look", "inventory", "go to", "wait"]
    texts += [f"{verb} {name}" for verb in ("go to", "open", "close", "look", "turn on") for name in state.places]
    texts += [f"{verb} {name}" for verb in ("go to", "open", "take", "turn on", "turn off") for name in things]
    for thing in things:
        for place in state.places:
            texts += [f"take {thing} from {place}", f"move {thing} to {place}", f"put {thing} in {place}"]
            texts += [f"{verb} {thing} with {place}" for verb in ("clean", "heat", "cool")]
    return texts


@pytest.mark.parametrize("index", range(12))
def test_just_the_admissible_actions_are_accepted(index):
    """Tried one by one, each on its own copy, in every state of a walk that a small world's plan and detours make."""
    environment = HouseholdEnvironment("small")
    admissible = environment.reset(**row("small", "train", index)).info["admissible_actions"]
    for turn in range(11):
        before = snapshot(environment.world)
        candidates = set(every_conceivable_action(environment.world)) | set(admissible)
        for text in candidates:
            trial = copy.deepcopy(environment)
            result = trial.step(text)
            assert result.info["valid"] is (text in admissible), text
            assert result.info["valid"] or (result.observation, snapshot(trial.world)) == ("Nothing happens.", before)
        handling = [text for text in admissible if not text.startswith(("go to", "look", "inventory", "close"))]
        choices = handling or [text for text in admissible if text.startswith("go to")]
        result = environment.step(choices[(index + 3 * turn) % len(choices)])
        admissible = result.info["admissible_actions"]
        if result.terminated or result.truncated:
            break


def goal_holds(goal: Goal, state: World, heated: dict[str, str]) -> bool:
    """The goal, told apart from the world's own rule: `heated` is what the actions so far have made of things."""
    if goal.family == "look":
        return (
            state.carried.startswith(f"{goal.kind} ")
            and "lamp 1" in state.lit
            and state.position == state.lamps["lamp 1"]
        )
    wanted = {"clean": "clean", "heat": "heat", "cool": "cool"}.get(goal.family)
    for place, things in state.contents.items():
        good = [t for t in things if t.split()[0] == goal.kind and (wanted is None or wanted in heated.get(t, ""))]
        if place.split()[0] == goal.receptacle and len(good) >= (2 if goal.family == "two" else 1):
            return True
    return False


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_random_play_keeps_the_world_whole(data):
    """Nothing raises, no thing is lost or doubled, invalid actions change nothing, success is the goal's."""
    preset, split = data.draw(st.sampled_from(sorted(PRESETS))), data.draw(st.sampled_from(SPLITS))
    environment = HouseholdEnvironment()
    start = environment.reset(**row(preset, split, data.draw(st.integers(0, 5_000))))
    state, goal = environment.world, environment.world.goal
    things, admissible, made = all_things(state), start.info["admissible_actions"], {}
    for turn in range(1, PRESETS[preset].max_turns + 1):
        # Handling is chosen more often than by chance, or else few episodes would get anywhere.
        busy = [text for text in admissible if not text.startswith(("go to", "look", "inventory"))] or admissible
        action = data.draw(st.sampled_from(busy) | st.sampled_from(admissible) | st.text(max_size=20))
        before = snapshot(state)
        result = environment.step(action)
        if result.info["valid"]:
            verb, thing = action.split()[0], " ".join(action.split()[1:3])
            if verb in ("clean", "heat", "cool"):
                made[thing] = made.get(thing, "").replace({"heat": "cool", "cool": "heat"}.get(verb, "?"), "") + verb
        else:
            assert result.observation == "Nothing happens."
            assert snapshot(state) == before
        assert all_things(state) == things
        assert result.info["success"] is goal_holds(goal, state, made)
        assert result.terminated is result.info["success"]
        assert result.reward == float(result.info["success"])
        assert result.truncated is (turn == PRESETS[preset].max_turns and not result.terminated)
        admissible = result.info["admissible_actions"]
        if result.terminated or result.truncated:
            break
    else:
        pytest.fail("the episode went on past its limit")


def test_the_state_is_what_actions_change_and_not_how_it_came_about():
    start = do(world(Goal("heat", "mug", "desk", "hot"), shelf_1=("mug 1", "cup 1")), "look")
    one = do(copy.deepcopy(start), "go to shelf 1", "take mug 1 from shelf 1", "move mug 1 to shelf 1")
    other = do(copy.deepcopy(start), "go to desk 1", "inventory", "go to shelf 1")
    assert one.contents != other.contents, "the order on the shelf"
    assert one.state() == other.state() != start.state()
    seen = {start.state(), one.state()}
    for action in ("take mug 1 from shelf 1", "go to microwave 1", "heat mug 1 with microwave 1", "close microwave 1"):
        do(one, action)
        assert one.state() not in seen
        seen.add(one.state())


def test_kind_is_the_name_without_its_number():
    assert [kind_of(name) for name in ("mug 1", "fridge 12", "")] == ["mug", "fridge", ""]
