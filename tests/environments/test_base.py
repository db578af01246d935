"""The environment contract: defaults, declarations, and what is refused at the boundary."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import Any

import pytest

from taspo_trl.environments.answers import admissible_actions, finite_number, verdict
from taspo_trl.environments.base import (
    DEFAULT_PROMPT,
    ResetResult,
    StepResult,
    TextEnvironment,
    attribute,
    check_environment,
    check_result,
    traits_of,
)
from taspo_trl.errors import EnvironmentContractError
from taspo_trl.tokens import find_action

from ..scripted import Bare


class World(TextEnvironment): ...


def test_an_object_without_base_class_has_every_default():
    traits = traits_of(Bare())
    assert traits.prompt is DEFAULT_PROMPT and traits.action_tags == ("action",)
    assert (traits.history_length, traits.max_turns) == (TextEnvironment.history_length, TextEnvironment.max_turns)
    block = find_action("<action> look </action>")
    assert attribute(Bare(), "action_of")(block) == "look"
    assert attribute(Bare(), "reply_fault")("no block", None) == "no_action_block"
    assert attribute(Bare(), "generic_skill")("pick") == "" and attribute(Bare(), "worker") == "thread"


@pytest.mark.parametrize(
    "name, value",
    [
        ("action_tags", "action"),  # a lone string would be six tags of one letter
        ("action_tags", ()),
        ("action_tags", (b"action",)),
        ("prompt", "{observation}"),
        ("max_turns", 0),
        ("max_turns", 3.0),
        ("max_turns", None),
        ("history_length", -1),
        ("history_length", "2"),
    ],
)
def test_a_declaration_of_a_wrong_type_is_refused_with_class_name_and_rule(name: str, value: Any):
    world = World()
    setattr(world, name, value)
    with pytest.raises(EnvironmentContractError, match=rf"`World\.{name}` is .*; it must be "):
        traits_of(world)


def test_no_past_turns_and_one_turn_are_allowed():
    world = World()
    world.history_length, world.max_turns, world.action_tags = 0, 1, ["act"]  # type: ignore[assignment]
    traits = traits_of(world)
    assert (traits.history_length, traits.max_turns, traits.action_tags) == (0, 1, ("act",))


@pytest.mark.parametrize("name", ["reset", "step", "close"])
def test_a_missing_method_is_named(name: str):
    methods = {other: lambda self: None for other in ("reset", "step", "close") if other != name}
    with pytest.raises(EnvironmentContractError, match=f"`Half` has no method `{name}`"):
        check_environment(type("Half", (), methods)())


SANE_STEPS = [
    StepResult("", 0, False, False),
    StepResult("ok", float("nan"), True, False, {"admissible_actions": ()}),  # the reward is judged by the loop
    StepResult("ok", None, 1, 0, {"admissible_actions": None, "success": "1"}),  # type: ignore[arg-type]
    StepResult("ok", 0.0, False, False, {"admissible_actions": {"go": 1}, "task": 7}),
    StepResult("emoji \U0001f642 and \ue000", 0.0, False, False),
]


@pytest.mark.parametrize("result", SANE_STEPS, ids=range(len(SANE_STEPS)))
def test_a_sane_step_passes(result: StepResult):
    check_result(result, StepResult, "step", World())


def test_numpy_s_flags_and_arrays_pass():
    np = pytest.importorskip("numpy")
    info = {"admissible_actions": np.array(["go", "look"])}
    check_result(StepResult("ok", 0.0, np.True_, np.False_, info), StepResult, "step", World())
    assert admissible_actions(info) == ("go", "look")


FOOLISH_STEPS = [
    (None, "returned a NoneType"),
    (("ok", 0.0, False, False, {}), "returned a tuple"),
    (ResetResult("ok"), "returned a ResetResult"),
    (StepResult(b"ok", 0.0, False, False), "observation of type bytes"),  # type: ignore[arg-type]
    (StepResult("ok", 0.0, False, False, [("success", True)]), "`info` of type list"),  # type: ignore[arg-type]
    (StepResult("ok", 0.0, None, False), "terminated=None"),  # type: ignore[arg-type]
    (StepResult("ok", 0.0, False, "False"), "truncated='False'"),  # type: ignore[arg-type]
    (StepResult("ok", 0.0, float("nan"), False), "terminated=nan"),  # type: ignore[arg-type]
    (StepResult("ok", 0.0, False, False, {"admissible_actions": "go"}), "`admissible_actions` 'go'"),
    (StepResult("ok", 0.0, False, False, {"admissible_actions": 3}), "`admissible_actions` 3"),
    (StepResult("ok", 0.0, False, False, {"admissible_actions": iter(["go"])}), "must be a list of strings"),
    (StepResult("half \ud83d", 0.0, False, False), "surrogate"),
    (StepResult("ok", 0.0, False, False, {"admissible_actions": ["half \udc00"]}), "surrogate"),
]


@pytest.mark.parametrize("result, message", FOOLISH_STEPS, ids=range(len(FOOLISH_STEPS)))
def test_a_foolish_step_is_refused_with_class_and_method(result: Any, message: str):
    with pytest.raises(EnvironmentContractError, match=r"World\.step") as caught:
        check_result(result, StepResult, "step", World())
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["task", "family"])
def test_texts_of_the_start_must_be_encodable(name: str):
    with pytest.raises(EnvironmentContractError, match="surrogate"):
        check_result(ResetResult("ok", {name: "\ud800"}), ResetResult, "reset", World())


def test_a_long_value_is_cut_in_the_message():
    with pytest.raises(EnvironmentContractError) as caught:
        check_result(StepResult("x\ud83d" * 9999, 0.0, False, False), StepResult, "step", World())
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "value, number",
    [(1, 1.0), (True, 1.0), (-0.5, -0.5), (0, 0.0), *((bad, None) for bad in ("1", b"1", None, [1.0], {}, 1j))],
)
def test_a_reward_is_a_number(value: Any, number: float | None):
    assert finite_number(value) == number


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 10**400], ids=str)
def test_a_reward_is_finite(value: Any):
    assert finite_number(value) is None


def test_scalars_of_arrays_are_rewards_and_arrays_are_not():
    np = pytest.importorskip("numpy")
    assert finite_number(np.float32(0.5)) == 0.5
    assert finite_number(np.array(2)) == 2.0
    assert finite_number(np.array([1.0, 2.0])) is None
    torch = pytest.importorskip("torch")
    assert finite_number(torch.tensor(0.5)) == 0.5
    assert finite_number(torch.tensor([1.0, 2.0])) is None


@pytest.mark.parametrize("default", [True, False])
def test_an_absent_verdict_takes_its_default_and_a_bool_its_value_without_a_word(default: bool):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert verdict({}, "valid", World(), default) is default
        assert verdict({"valid": None}, "valid", World(), default) is default
        assert verdict({"valid": True}, "valid", World(), default) is True
        assert verdict({"valid": False}, "valid", World(), default) is False


@pytest.mark.parametrize("value", [1, 0, "1", "", float("nan"), 1.0, [True]], ids=repr)
def test_a_verdict_of_another_type_is_no_and_warned_about(value: Any):
    with pytest.warns(UserWarning, match=r'`World` gave `info\["valid"\]`'):
        assert verdict({"valid": value}, "valid", World(), True) is False


def test_numpy_s_true_is_no_verdict():
    np = pytest.importorskip("numpy")
    for value in (np.True_, np.False_):
        with pytest.warns(UserWarning, match=r"numpy\.bool.* counts as False"):
            assert verdict({"success": value}, "success", World(), False) is False


def test_the_contract_and_its_workers_import_no_heavy_package():
    program = (
        "import sys, taspo_trl.environments, taspo_trl.environments.workers, taspo_trl.rollout.loop\n"
        "print([m for m in ('torch', 'transformers', 'trl', 'litellm', 'datasets', 'numpy') if m in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
