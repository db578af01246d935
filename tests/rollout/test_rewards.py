"""The training reward of a group: what functions are called with, and what becomes of their values."""

import asyncio
import dataclasses
import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch

from taspo_trl.rollout.rewards import RewardSettings, conversation_of, score_group
from taspo_trl.types import StopReason
from tests.builders import group, trajectory, turn


def pair(**values):
    """A success of two turns and a failure of one."""
    won = trajectory(
        [
            turn(reply_ids=(10, 11), reply_text="one", observation="start", next_observation="middle"),
            turn(reply_ids=(12,), reply_text="two", observation="middle", next_observation="end"),
        ],
        "won",
        stop_reason=StopReason.SOLVED,
        success=True,
        environment_reward=0.25,
        task={"task_id": "a", "target": 3},
        **values,
    )
    lost = trajectory(
        [turn(reply_ids=(), reply_text="", observation="start", next_observation="", valid=False)],
        "lost",
        generation_idx=1,
        environment_reward=-0.5,
        task={"task_id": "a", "target": 3},
    )
    return group(won, lost)


def settings(*functions, weights=None, names=None, **values):
    return RewardSettings(
        functions=functions,
        weights=weights or [1.0] * len(functions),
        names=names or [function.__name__ for function in functions],
        **values,
    )


def rewards(scored):
    return [t.reward for t in scored.trajectories]


def test_verified_success_alone_is_the_reward():
    scored = score_group(pair(), RewardSettings())
    assert rewards(scored) == [1.0, 0.0]
    assert [dict(t.rewards) for t in scored.trajectories] == [{"success": 1.0}, {"success": 0.0}]


def test_environments_own_rewards_can_take_its_place():
    scored = score_group(pair(), RewardSettings(source="environment"))
    assert rewards(scored) == [0.25, -0.5]
    assert scored.trajectories[0].rewards == {"environment": 0.25}
    assert scored.trajectories[0].success  # the verdict stays the verdict


def test_function_gets_the_keywords_of_trl_once_for_the_group():
    calls = []

    def style(**kwargs):
        calls.append(kwargs)
        return [0.5, None]

    state, log_extra = object(), object()
    scored = score_group(
        pair(), settings(style, weights=[2.0], extra={"trainer_state": state, "log_extra": log_extra})
    )
    (kwargs,) = calls
    assert kwargs["prompts"] == [[{"role": "user", "content": "Put a mug on the desk."}]] * 2
    assert kwargs["completions"] == [
        [
            {"role": "assistant", "content": "one"},
            {"role": "user", "content": "middle"},
            {"role": "assistant", "content": "two"},
            {"role": "user", "content": "end"},
        ],
        [{"role": "assistant", "content": ""}],
    ]
    assert kwargs["completion_ids"] == [[10, 11, 12], []]
    assert (kwargs["task_id"], kwargs["target"]) == (["a", "a"], [3, 3])
    assert [t.uid for t in kwargs["trajectories"]] == ["won", "lost"]
    assert kwargs["trainer_state"] is state and kwargs["log_extra"] is log_extra
    # 1 + 2 * 0.5, and 0 where the function does not apply.
    assert rewards(scored) == [2.0, 0.0]
    assert [dict(t.rewards) for t in scored.trajectories] == [
        {"success": 1.0, "style": 0.5},
        {"success": 0.0, "style": None},
    ]


def test_functions_get_every_column_of_the_dataset_also_where_the_row_has_none():
    def judge(completions, hint, environment, **_):
        return [float(one is None and name == "kitchen") for one, name in zip(hint, environment, strict=True)]

    members = [dataclasses.replace(one, task={"task_id": "t"}, environment="kitchen") for one in pair().trajectories]
    given = dataclasses.replace(settings(judge), columns=("task_id", "hint", "environment"))
    assert [one.rewards["judge"] for one in score_group(group(*members), given).trajectories] == [1.0, 1.0]


def test_columns_do_not_hide_the_keywords():
    def first(prompts, completions, **kwargs):
        return [float(isinstance(one, list)) for one in prompts]

    members = [trajectory([turn()], "a", task={"prompts": "shadow", "completions": "shadow"})]
    assert rewards(score_group(group(*members), settings(first))) == [1.0]


def test_functions_may_change_the_messages_without_harm():
    def careless(prompts, completions, **kwargs):
        for messages in (*prompts, *completions):
            messages.append("x")
            messages[0]["content"] = "changed"
        return [0.0, 0.0]

    def careful(prompts, completions, **kwargs):
        return [float(messages[0]["content"] == "changed") for messages in prompts]

    scored = score_group(pair(), settings(careless, careful))
    assert rewards(scored) == [1.0, 0.0]
    assert scored.trajectories[0].opening[0]["content"] == "Put a mug on the desk."


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_value_that_is_no_finite_number_is_an_infrastructure_failure_with_its_cause(bad):
    def judge(**kwargs):
        return [bad, 0.5]

    won, lost = score_group(pair(), settings(judge)).trajectories
    assert won.stop_reason is StopReason.REWARD_ERROR
    assert not won.is_usable
    assert not won.success  # it is no source of guidance either
    assert won.error == f"reward 'judge' is {bad!r}, not a finite number"
    assert won.reward == 0.0
    assert (lost.reward, lost.stop_reason) == (0.5, StopReason.MAX_TURNS)


def test_reward_whose_square_overflows_ends_its_own_episode():
    """The spread of a group squares rewards: one of 1e200 would make every advantage of its group no number."""

    def judge(**kwargs):
        return [1e200, 0.5]

    won, lost = score_group(pair(), settings(judge)).trajectories
    assert won.stop_reason is StopReason.REWARD_ERROR and "1e+200" in won.error and lost.reward == 0.5


def test_none_is_not_nan():
    def judge(**kwargs):
        return [None, None]

    scored = score_group(pair(), settings(judge))
    assert rewards(scored) == [1.0, 0.0]
    assert all(t.is_usable for t in scored.trajectories)


def test_without_a_share_of_the_environment_the_reward_is_the_functions_alone():
    def style(**kwargs):
        return [0.5, None]

    def length(**kwargs):
        return [2.0, -1.0]

    scored = score_group(pair(), settings(style, length, weights=[1.0, 0.25], source="none"))
    assert rewards(scored) == [1.0, -0.25]
    assert [dict(t.rewards) for t in scored.trajectories] == [
        {"style": 0.5, "length": 2.0},
        {"style": None, "length": -1.0},
    ]


def test_a_trajectory_that_nothing_rates_is_a_failure_with_its_cause_and_no_zero():
    def style(**kwargs):
        return [0.5, None]

    won, lost = score_group(pair(), settings(style, source="none")).trajectories
    assert (won.reward, won.is_usable) == (0.5, True)
    assert lost.stop_reason is StopReason.REWARD_ERROR and not lost.is_usable
    assert lost.error == "no reward: 'style' gave None and the environment has no share"


def test_failed_episodes_are_shown_but_keep_their_own_reason():
    seen = []

    def judge(trajectories, **kwargs):
        seen.extend(t.uid for t in trajectories)
        return [math.nan] * len(trajectories)

    died = trajectory([turn()], "died", stop_reason=StopReason.ENV_DIED, error="killed")
    (scored,) = score_group(group(died), settings(judge)).trajectories
    assert seen == ["died"]
    assert (scored.stop_reason, scored.error) == (StopReason.ENV_DIED, "killed")


def test_penalty_is_the_share_of_invalid_turns():
    members = [
        trajectory([turn(valid=False), turn(), turn(valid=False), turn()], "half", success=True),
        trajectory([turn()], "none"),
        trajectory([], "no_turns", stop_reason=StopReason.PROMPT_TOO_LONG),
    ]
    scored = score_group(group(*members), RewardSettings(invalid_action_penalty=0.2))
    assert rewards(scored) == [pytest.approx(0.9), 0.0, 0.0]
    assert scored.trajectories[0].rewards == {"success": 1.0}


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0, 3.0], (1.0,)])
def test_wrong_number_of_values_is_an_error_with_the_contract(values):
    def judge(**kwargs):
        return values

    message = rf"'judge' returned {len(values)} values for 2 trajectories.*once for each group"
    with pytest.raises(ValueError, match=message):
        score_group(pair(), settings(judge))


@pytest.mark.parametrize("value", [None, 1.0])
def test_value_that_is_no_list_is_an_error_with_the_contract(value):
    def judge(**kwargs):
        return value

    with pytest.raises(ValueError, match=f"'judge' returned {value!r}.*one value for each trajectory"):
        score_group(pair(), settings(judge))


def test_tensors_are_numbers_too():
    def judge(**kwargs):
        return torch.tensor([0.5, 0.25])

    scored = score_group(pair(), settings(judge))
    assert rewards(scored) == [1.5, 0.25]
    assert all(type(t.rewards["judge"]) is float for t in scored.trajectories)


def test_functions_of_one_name_all_count():
    functions = [lambda **kwargs: [1.0, 1.0], lambda **kwargs: [10.0, 10.0]]
    scored = score_group(pair(), settings(*functions, weights=[1.0, 0.5]))
    assert rewards(scored) == [7.0, 6.0]
    assert scored.trajectories[0].rewards == {"success": 1.0, "<lambda>": 1.0, "<lambda>_2": 10.0}


def test_function_named_like_the_environments_share_does_not_hide_it():
    def success(**kwargs):
        return [0.5, 0.5]

    scored = score_group(pair(), settings(success))
    assert rewards(scored) == [1.5, 0.5]
    assert scored.trajectories[0].rewards == {"success": 1.0, "success_2": 0.5}


class TestAsyncFunctions:
    @staticmethod
    async def slow(**kwargs):
        await asyncio.sleep(0)
        return [0.5, 0.25]

    def test_are_awaited(self):
        assert rewards(score_group(pair(), settings(self.slow))) == [1.5, 0.25]

    def test_are_awaited_inside_a_running_event_loop(self):
        # NBK-1: a notebook calls from a running loop.
        async def notebook():
            return rewards(score_group(pair(), settings(self.slow, lambda **kwargs: [1, 1])))

        assert asyncio.run(notebook()) == [2.5, 1.25]

    def test_raise_their_own_errors(self):
        async def broken(**kwargs):
            raise KeyError("scorer")

        with pytest.raises(KeyError, match="scorer"):
            score_group(pair(), settings(broken))


def test_conversation_of_an_episode_without_turns_is_its_opening():
    opening, completion = conversation_of(trajectory([]))
    assert opening == [{"role": "user", "content": "Put a mug on the desk."}]
    assert completion == []


def test_a_value_that_is_no_number_names_the_function():
    with pytest.raises(ValueError, match=r"'judge' returned what is no number: .*'good'"):
        score_group(pair(), settings(lambda **kwargs: ["good", 1.0], names=["judge"]))


def test_a_function_without_room_for_the_keywords_is_told_to_take_them():
    with pytest.raises(TypeError, match=r"'judge' cannot be called with .*completions.*`\*\*kwargs`"):
        score_group(pair(), settings(lambda completions: [1.0, 1.0], names=["judge"]))


# ---- what counts as a number ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        "10",
        b"10",
        bytearray(b"10"),
        ["1", "0"],
        [b"1", b"0"],
        [1.0, "0"],
        [[1.0], 0.0],
        [1j, 0],
        {0: 1.0, 1: 0.0},
        {0.5, 1},
    ],
    ids=repr,
)
def test_what_is_no_number_is_refused_naming_the_function(value):
    def odd(**kwargs):
        return value

    with pytest.raises(ValueError, match=r"reward function 'odd' returned"):
        score_group(pair(), settings(odd))


@pytest.mark.parametrize(
    "values",
    [
        [1, 0],
        [True, False],
        [1.0, 0.0],
        (np.float32(1), np.int64(0)),
        np.array([True, False]),
        torch.tensor([1.0, 0.0]),
        [Fraction(1), Decimal(0)],
        (one for one in (1.0, 0.0)),
    ],
)
def test_real_numbers_and_truth_values_count(values):
    def fine(**kwargs):
        return values

    assert [one.rewards["fine"] for one in score_group(pair(), settings(fine)).trajectories] == [1.0, 0.0]


def test_a_number_beyond_floats_costs_one_trajectory():
    def huge(**kwargs):
        return [10**400, 0.0]

    first, second = score_group(pair(), settings(huge)).trajectories
    assert first.stop_reason is StopReason.REWARD_ERROR and second.is_usable


# ---- live instances -------------------------------------------------------------------------------------------------


def test_a_function_that_wants_the_instances_sees_the_usable_trajectories_only():
    def moves(environments, trajectories, target, **kwargs):
        assert [one.uid for one in trajectories] == ["won"] and target == [3]
        return [float(len(one)) for one in environments]

    def plain(trajectories, **kwargs):
        assert "environments" not in kwargs
        return [0.0] * len(trajectories)

    won, lost = pair().trajectories
    failed = dataclasses.replace(lost, stop_reason=StopReason.ENV_ERROR)
    scored = score_group(group(won, failed), settings(moves, plain), {"won": "abc"})
    assert [one.rewards["moves"] for one in scored.trajectories] == [3.0, None]


def test_without_any_instance_the_function_is_not_called():
    def moves(environments, **kwargs):
        raise AssertionError

    failed = [dataclasses.replace(one, stop_reason=StopReason.ENV_ERROR) for one in pair().trajectories]
    scored = score_group(group(*failed), settings(moves), {})
    assert [one.rewards["moves"] for one in scored.trajectories] == [None, None]
