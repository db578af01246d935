"""HouseholdEnvironment as the rollout loop meets it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from taspo_trl.environments import ENVIRONMENTS, HouseholdEnvironment
from taspo_trl.environments.base import ResetResult, StepResult, check_environment, check_result
from taspo_trl.environments.household import FAMILIES, PRESETS, solve
from taspo_trl.errors import ConfigurationError, EnvironmentContractError

from .household_play import play, row, snapshot


ODD_ACTIONS = [
    *("", " ", "\n", "sing", "go to", "go to mars 1", "go  to", "look around", "look.", "goto fridge 1"),
    *("take", "take mug 1", "move mug 1 to desk 1", "open open", "(no action)", "None", "\x00", "🧼", "go to " * 500),
    *("<action>look</action>", "look; inventory", "look\ninventory", "{observation}", "__class__", "Ⅼook"),
]


@pytest.fixture
def environment() -> HouseholdEnvironment:
    environment = HouseholdEnvironment("small")
    environment.reset(seed=0, **row("small", "train", 0))
    return environment


def test_it_follows_the_contract():
    environment = HouseholdEnvironment()
    check_environment(environment)
    start = environment.reset(seed=3, **row("small", "train", 1))
    check_result(start, ResetResult, "reset", environment)
    check_result(environment.step("look"), StepResult, "step", environment)
    assert start.info["task"].startswith("Examine a")
    assert start.info["family"] == "look"
    assert start.info["task_id"] == "household/small/train/1"
    environment.close()
    environment.close()


def test_dataset_rows_can_be_reset_as_they_are():
    environment = HouseholdEnvironment()
    for split in ("train", "valid_seen", "valid_unseen"):
        for task_row in HouseholdEnvironment.dataset(split, "small", size=12):
            info = environment.reset(seed=0, **task_row).info
            assert (info["task_id"], info["family"]) == (task_row["task_id"], task_row["family"])


def test_seed_and_further_columns_change_nothing(environment):
    plain = environment.reset(seed=0, **row("small", "train", 5))
    before = snapshot(environment.world)
    odd = environment.reset(seed=99, prompt="hello", environment="household", **row("small", "train", 5))
    assert odd == plain
    assert snapshot(environment.world) == before


def test_reset_forgets_the_episode_before(environment):
    fresh = snapshot(environment.world)
    for action in solve(row("small", "train", 0)):
        environment.step(action)
    environment.reset(seed=0, **row("small", "train", 0))
    assert snapshot(environment.world) == fresh
    assert environment.step("look").terminated is False


def test_instances_share_no_state():
    one, other = HouseholdEnvironment(), HouseholdEnvironment()
    for instance in (one, other):
        instance.reset(**row("small", "train", 0))
    untouched = snapshot(other.world)
    for action in solve(row("small", "train", 0)):
        one.step(action)
    assert snapshot(other.world) == untouched


@pytest.mark.parametrize("action", ODD_ACTIONS)
def test_invalid_actions_cost_a_turn_and_change_nothing(environment, action):
    before = snapshot(environment.world)
    results = [environment.step(action) for _ in range(12)]
    assert {result.observation for result in results} == {"Nothing happens."}
    assert not any(result.info["valid"] or result.info["success"] or result.reward for result in results)
    assert snapshot(environment.world) == before
    assert [result.truncated for result in results] == [False] * 11 + [True]


@pytest.mark.parametrize("shape", ["{}", "  {}\n", "\t{}", "upper", "title", "double"])
def test_case_and_white_space_of_an_action_do_not_matter(environment, shape):
    action = environment.step("look").info["admissible_actions"][0]
    shaped = {"upper": action.upper(), "title": action.title(), "double": action.replace(" ", "  \n ")}
    result = environment.step(shaped.get(shape, shape.format(action)))
    assert result.info["valid"] is True
    assert environment.world.position == action.removeprefix("go to ")


def test_solved_episode_ends_with_reward_one(environment):
    results = [environment.step(action) for action in solve(row("small", "train", 0))]
    assert [result.reward for result in results] == [0.0] * (len(results) - 1) + [1.0]
    assert results[-1].terminated
    assert not results[-1].truncated


def test_success_on_the_last_turn_counts_as_success_and_not_as_cut(environment):
    actions = solve(row("small", "train", 0))
    for _ in range(12 - len(actions)):
        environment.step("look")
    results = [environment.step(action) for action in actions]
    assert (results[-1].terminated, results[-1].truncated, results[-1].reward) == (True, False, 1.0)


@pytest.mark.parametrize(("preset", "turns"), [("small", 12), ("standard", 30)])
def test_episodes_are_cut_at_the_limit_of_the_rows_preset(preset, turns):
    environment = HouseholdEnvironment()
    results = play(environment, row(preset, "train", 0), lambda admissible: "inventory")
    assert len(results) == environment.max_turns == turns
    assert (results[-1].terminated, results[-1].truncated) == (False, True)


def test_limit_is_right_before_the_first_reset():
    assert HouseholdEnvironment().max_turns == 30
    assert HouseholdEnvironment("small").max_turns == HouseholdEnvironment(preset="small").max_turns == 12


def test_preset_of_the_instance_serves_rows_without_one():
    assert HouseholdEnvironment("small").reset(split="train", index=3).info["task_id"] == "household/small/train/3"


def test_lists_handed_out_are_copies(environment):
    offered = environment.step("look").info["admissible_actions"]
    first = offered[0]
    offered.clear()
    assert environment.step(first).info["valid"] is True


def test_step_needs_an_episode_under_way(environment):
    with pytest.raises(EnvironmentContractError, match="call `reset` first"):
        HouseholdEnvironment().step("look")
    for action in solve(row("small", "train", 0)):
        environment.step(action)
    with pytest.raises(EnvironmentContractError, match="call `reset` first"):
        environment.step("look")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"preset": "tiny"}, "`preset` .'tiny'. must be"), ({"reply_format": "json"}, "`reply_format` .'json'. must be")],
)
def test_unknown_settings_are_refused(arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        HouseholdEnvironment(**arguments)


def test_prompts_show_the_reply_format():
    for reply_format, has_thinking in (("action", False), ("think", True)):
        prompt = HouseholdEnvironment(reply_format=reply_format).prompt
        for text in (prompt.first, prompt.later, prompt.reply):
            assert "<action>" in text
            assert ("<think>" in text) is has_thinking
            assert "{observation}" in text
            assert "{admissible_actions}" in text
        assert "{task}" in prompt.first
        assert "{task}" in prompt.later
        assert "{history}" in prompt.later


def test_every_family_has_advice_of_its_own():
    environment = HouseholdEnvironment()
    assert len({environment.generic_skill(family) for family in FAMILIES}) == 6
    assert environment.generic_skill("chess") == ""


def test_playing_loads_no_heavy_package():
    script = (
        "import sys; from taspo_trl.environments import HouseholdEnvironment as H; e = H('small'); "
        "e.reset(split='train', index=0); e.step('look'); "
        "print([m for m in ('torch', 'numpy', 'datasets', 'transformers', 'trl') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_it_is_registered_by_name():
    assert ENVIRONMENTS["household"] == HouseholdEnvironment.__name__
    assert set(PRESETS) == {"standard", "small"}
