"""The records between stages, and the purity of the files that only compute."""

import dataclasses
import pickle
import subprocess
import sys

import pytest

from taspo_trl import types
from taspo_trl.types import Block, Guidance, ReplyScore, StopReason, TrajectoryGroup
from tests.builders import group, trajectory, turn


INFRASTRUCTURE = {"env_error", "env_timeout", "env_died", "generation_error", "service_error", "reward_error"}
POLICY = {"solved", "failed", "env_truncated", "max_turns", "max_episode_tokens", "prompt_too_long"}


def test_every_stop_reason_is_an_end_of_the_policy_or_of_the_infrastructure():
    assert {reason.value for reason in StopReason if reason.is_infrastructure} == INFRASTRUCTURE
    assert {reason.value for reason in StopReason if not reason.is_infrastructure} == POLICY


@pytest.mark.parametrize("reason", list(StopReason))
def test_trajectory_is_usable_when_the_policy_ended_it_and_it_has_turns(reason):
    assert trajectory([turn()], stop_reason=reason).is_usable == (reason.value in POLICY)
    assert not trajectory([], stop_reason=reason).is_usable


def test_shifts_are_guided_minus_plain():
    assert ReplyScore((-1.0, -2.0), {"aligned": (-0.5, -3.0)}).shifts() == (0.5, -1.0)
    assert ReplyScore(unscorable="empty_mask").shifts() is None
    with pytest.raises(ValueError, match="zip"):
        ReplyScore((-1.0,), {"aligned": ()}).shifts()


def test_guidance_is_true_when_there_is_a_block():
    assert not Guidance("t", "aligned")
    assert not Guidance("t", "own", {"own": Block((None, None))})
    assert Guidance("t", "own", {"own": Block((None, (5,)))})
    assert Guidance("t", "empty", {"empty": Block(((), None))})  # the empty block is a placebo, not an abstention


def test_ids_and_text_of_guidance_are_those_of_the_first_turn_that_has_a_block():
    own = Block((None, (5, 6), (7,)), ("", "a", "b"))
    guidance = Guidance("t", "own", {"episode": Block((None,) * 3, ("",) * 3), "step": own})
    assert (guidance.block_ids, guidance.text) == ((5, 6), "a")
    assert (Guidance("t", "none").block_ids, Guidance("t", "none").text) == ((), "")


def test_a_whole_block_is_the_same_in_each_turn():
    whole = Block.whole([5, 6], 3, "a")
    assert whole == Block(((5, 6),) * 3, ("a",) * 3)
    assert whole.is_whole
    assert not Block(((5,), None)).is_whole
    assert not Block.whole((5,), 0)


def test_task_text_of_a_group_is_the_first_that_is_known():
    assert group(trajectory(task_text=""), trajectory(task_text="b"), trajectory(task_text="c")).task_text == "b"
    assert TrajectoryGroup("g", ()).task_text == ""


@pytest.mark.parametrize("name", [name for name, value in vars(types).items() if dataclasses.is_dataclass(value)])
def test_records_are_frozen(name):
    record = getattr(types, name)
    assert record.__dataclass_params__.frozen


def test_records_survive_pickling_between_processes():
    played = group(trajectory([turn(sampling_logps=(-1.0, None))], stop_reason=StopReason.ENV_DIED))
    assert pickle.loads(pickle.dumps(played)) == played


HEAVY = ("torch", "transformers", "trl", "peft", "accelerate", "litellm", "datasets", "vllm", "textworld")


@pytest.mark.parametrize(
    "modules",
    [
        ["types", "errors", "tokens", "rollout.advantages", "credit", "credit.base", "rows", "rollout.tasks"],
        ["rollout.contexts", "records", "rollout.rewards"],
    ],
)
def test_pure_files_load_no_heavy_package(modules):
    code = (
        "import importlib, sys\n"
        f"for name in {modules!r}: importlib.import_module('taspo_trl.' + name)\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
