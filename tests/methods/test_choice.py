"""Which method a configuration means, and what is refused by name."""

from __future__ import annotations

import copy
import pickle

import pytest

from taspo_trl import TASPOConfig
from taspo_trl.cli.train import parse
from taspo_trl.errors import ConfigurationError
from taspo_trl.guidance.constructions import maker_of
from taspo_trl.methods import METHODS, recipe_for


def make(**values):
    return TASPOConfig(output_dir="out", use_cpu=True, bf16=False, **values)


def of(name: str) -> dict:
    """What a method cannot do without."""
    return {"method": name, "teacher_model": "a/teacher"} if name == "opd" else {"method": name}


def settled(config) -> dict:
    return {name: getattr(config, name) for name in ("method", "method_options", "guidance", "allocation")}


def test_nothing_said_is_taspo_and_no_guidance_is_grpo():
    assert settled(make()) == {
        "method": "taspo", "method_options": {}, "guidance": "aligned", "allocation": "action",
    }  # fmt: skip
    assert (
        settled(make(guidance="none")) == settled(make(method="grpo")) == settled(make(method="grpo", guidance="none"))
    )
    assert recipe_for(make(guidance="none")).name == "grpo" and recipe_for(make(guidance="none")).contexts == ()


@pytest.mark.parametrize("name", METHODS)
def test_a_method_brings_its_contexts_and_is_settled_once(name):
    made = make(**of(name))
    recipe = recipe_for(made)
    assert made.guidance == ("+".join(recipe.contexts) or "none")
    assert recipe.name == name and set(map(maker_of, recipe.needs.blocks)) == set(recipe.contexts)
    again = make(**of(name) | settled(made))
    assert settled(again) == settled(made)
    assert recipe_for(again) == recipe


@pytest.mark.parametrize("name", METHODS)
def test_every_option_of_a_method_is_taken(name):
    method = METHODS[name]
    assert method.make(**method.options) == method.usual


def test_taspo_s_constants_reach_its_rule():
    rule = recipe_for(make(shift_clip=1.5, weight_range=0.3, allocation="token", guidance="random_success")).weight
    assert type(rule).__name__ == "TokenWeights"
    assert (rule.clip, rule.weight_range, rule.block) == (1.5, 0.3, "random_success")
    both = recipe_for(make(method="taspo_factor", shift_clip=1.5, method_options={"share": 0.2})).weight
    assert (both.clip, both.share, both.block) == (1.5, 0.2, "aligned")


def test_guidance_is_the_block_of_methods_that_have_one():
    by_guidance = make(method="serl", guidance="serl_next")
    by_option = make(method="serl", method_options={"block": "serl_next"})
    for text in ('{"block": "serl_next"}', "{block: serl_next}"):
        assert make(method="serl", method_options=text).method_options == {"block": "serl_next"}
    assert settled(by_guidance) == settled(by_option) and by_option.guidance == "serl_next"
    assert make(method="taspo_factor", guidance="random_success").guidance == "random_success+serl_immediate"
    assert make(method="opid", guidance="own_workflow").guidance == "own_workflow"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"method": "serll"}, "`method` must be one of .*Did you mean `serl`"),
        ({"method": "ppo"}, "value function.*'rloo'.*'gigpo'.*'factor'"),
        ({"method": 3}, "`method` must be one of"),
        ({"guidance": "aligne"}, "`guidance` must be one of .*Did you mean `aligned`"),
        ({"guidance": "own_workflow"}, "`guidance` must be one of"),
        ({"method": "grpo", "guidance": "aligned"}, "contradicts `method='grpo'`, which shows no context"),
        ({"method": "gigpo", "guidance": "aligned"}, "contradicts `method='gigpo'`, which shows no context"),
        ({"method": "serl", "guidance": "none"}, "contradicts `method='serl'`, which shows 'serl_immediate'"),
        ({"method": "serl", "guidance": "aligned"}, "must be one of 'serl_"),
        ({"method": "serl", "guidance": "serl_next", "method_options": {"block": "serl_future"}}, "contradicts"),
        ({"method": "turnsight", "guidance": "aligned"}, "contradicts `method='turnsight'`"),
        ({"method": "rlsd", "allocation": "token"}, "`allocation='token'` belongs to method='taspo'"),
        ({"method": "rlsd", "shift_clip": 1.0}, "`shift_clip=1.0` belongs to method='taspo'"),
        ({"method": "rlsd", "method_options": {"shares": 0.5}}, "holds `shares`.*Did you mean `share`"),
        ({"method": "rloo", "method_options": {"gamma": 0.9}}, "holds `gamma`.*it has none"),
        ({"method_options": {"clip": 1.0}}, "holds `clip`.*`shift_clip`"),
        ({"method": "rlsd", "method_options": {"share": 2.0}}, "share.*2.0"),
        ({"method": "sdar", "method_options": {"weight": -1}}, "`method_options`: `weight` must be at least 0"),
        ({"method": "sdar", "method_options": {"place": "end"}}, "`place` must be one of 'start', 'splice'"),
        ({"method": "rlsd", "method_options": {"block": "aligne"}}, "Did you mean `aligned`"),
        ({"method": "gigpo", "method_options": {"state_key": "room"}}, "`state_key`.*'room'"),
        ({"method": "factor", "method_options": {"continuations": 1}}, "`continuations` must be .* at least 2"),
        ({"method": "triage", "method_options": {"judge": "llm"}}, "'text', 'oracle'"),
        ({"method": "oracle", "method_options": {"range": 1.0}}, "`range` must be a number in"),
        ({"method_options": {"support": "contrasts"}}, "`support` must be one of 'shift', 'contrast'"),
        ({"method_options": {"support": "contrast"}, "allocation": "token"}, "compares whole actions.*'action'"),
        ({"method_options": {"support": "contrast", "alternatives": 1}}, "`alternatives` must be a whole number"),
        ({"method_options": {"samples": 9}}, "`samples`=9, which support='shift' has no use for"),
        ({"method_options": {"cap_refused": 2}}, "`cap_refused` must be one of False, True, got 2"),
        ({"method_options": {"cap_refused": True}, "allocation": "token"}, "caps the weights of whole actions"),
        ({"method": "rlsd", "method_options": "share=0.5"}, "must be a mapping.*JSON"),
        ({"method": "rlsd", "method_options": [1]}, "must be a mapping"),
        ({"method": "rlsd", "method_options": "{share: 0.5"}, "must be a mapping"),
        ({"method": "opd"}, "`teacher_model` is not set"),
        ({"method": "sdpo", "teacher_model": "a/b"}, "`teacher_model='a/b'` has no use in `method='sdpo'`.*'ema'"),
        ({"method": "opd", "teacher_model": "http://me:secret@host/v1"}, "`teacher_model` holds a user name"),
        ({"allocation": "turn"}, "`allocation` must be one of"),
    ],
)  # fmt: skip
def test_what_cannot_be_honoured_is_refused_by_name(values, said):
    with pytest.raises(ConfigurationError, match=said):
        make(**values)


def test_options_are_json_on_the_command_line_and_a_mapping_in_a_recipe(tmp_path):
    common = ["--output_dir", str(tmp_path), "--use_cpu", "true", "--bf16", "false"]
    _, args, _ = parse([*common, "--method", "serl", "--method_options", '{"share": 0.25, "zero_at": null}'])
    rule = recipe_for(args).weight
    assert (rule.share, rule.zero_at) == (0.25, None)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("method: gigpo\nmethod_options:\n  omega: 0.5\n  state_key: observation_actions\n")
    _, args, _ = parse([*common, "--config", str(recipe)])
    rule = recipe_for(args)
    assert (rule.advantage.omega, rule.state_key) == (0.5, "observation_actions")
    _, args, _ = parse([*common, "--config", str(recipe), "--method", "grpo", "--method_options", "{}"])
    assert (args.method, args.method_options) == ("grpo", {})


def test_a_configuration_survives_copying_pickling_and_json():
    made = make(method="serl", method_options={"block": "serl_future"})
    assert settled(copy.deepcopy(made)) == settled(pickle.loads(pickle.dumps(made))) == settled(made)
    assert {name: made.to_dict()[name] for name in settled(made)} == settled(made)
