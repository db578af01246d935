"""TASPOConfig: defaults, validation, help and documentation."""

import copy
import dataclasses
import json
import math
import pickle
import re
import warnings

import pytest
from transformers import HfArgumentParser
from trl import GRPOConfig

from taspo_trl import TASPOConfig
from taspo_trl.errors import ConfigurationError
from taspo_trl.redaction import redacted


CHANGED = {
    "loss_type": "grpo",
    "delta": 3.0,
    "use_bias_correction_kl": False,
    "num_generations_eval": 1,
    "hub_private_repo": True,
}
FIELDS = {one.name: one for one in dataclasses.fields(TASPOConfig)}
OWN = [name for name in TASPOConfig.__annotations__ if name in FIELDS and name not in CHANGED]
ENTRIES = list(
    re.finditer(
        r"(?P<name>\w+) \(`(?P<type>[^`]+)`, \*optional\*(?:, defaults to `(?P<default>[^`]+)`)?\)",
        TASPOConfig.__doc__,
    )
)
DOCUMENTED = {match["name"]: match for match in ENTRIES}
PAPER = {
    "max_evidence_items": 12,
    "max_guidance_items": 8,
    "max_guidance_tokens": 256,
    "analyzer_context_chars": 12_000,
    "analyzer_workers": 4,
    "shift_clip": 2.0,
    "shift_threshold": 0.0,
    "score_temperature": 0.5,
    "weight_range": 0.4,
    "weight_step_size": None,
    "invalid_action_penalty": 0.0,
    "training_reward": None,
    "allocation": "action",
    "guidance": "aligned",
    "context": None,
    "eval_temperature": 0.0,
}


def make(tmp_path, **values):
    return TASPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, **values)


def test_defaults_raise_and_warn_about_nothing(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = make(tmp_path)
    assert made.gradient_checkpointing is True
    assert {name: getattr(made, name) for name in CHANGED} == CHANGED
    assert {name: getattr(made, name) for name in PAPER} == PAPER


@pytest.mark.skipif("activation_checkpointing" not in FIELDS, reason="transformers has the old name alone")
def test_an_old_name_that_the_user_wrote_is_still_warned_of(tmp_path):
    with pytest.warns(FutureWarning, match="`gradient_checkpointing` is deprecated"):
        made = make(tmp_path, gradient_checkpointing=False)
    assert made.activation_checkpointing is False
    assert make(tmp_path, activation_checkpointing=False).gradient_checkpointing is False


def test_only_the_documented_defaults_of_trl_are_changed():
    theirs = {one.name: one for one in dataclasses.fields(GRPOConfig)}
    changed = {name for name in theirs if FIELDS[name].default != theirs[name].default}
    assert changed == set(CHANGED)
    for name, value in CHANGED.items():
        shown = f'"{value}"' if isinstance(value, str) else str(value)
        before = theirs[name].default
        before = f'"{before}"' if isinstance(before, str) else str(before)
        assert f"> - `{name}`: Defaults to `{shown}`" in TASPOConfig.__doc__
        assert f"instead of `{before}`." in TASPOConfig.__doc__


@pytest.mark.parametrize("name", [*OWN, *CHANGED])
def test_every_field_has_help(name):
    text = FIELDS[name].metadata.get("help", "")
    assert len(text) > 15
    assert text.endswith(".")


def test_the_docstring_lists_exactly_the_own_fields_in_their_order():
    assert list(DOCUMENTED) == OWN


@pytest.mark.parametrize("name", OWN)
def test_the_docstring_states_type_and_default(name):
    spec, documented = FIELDS[name], DOCUMENTED[name]
    kind = TASPOConfig.__annotations__[name]  # not the field's type: Hugging Face's argument parser writes there
    optional = kind.endswith(" | None")
    assert documented["type"] == kind.removesuffix(" | None")
    if spec.default is None:
        assert optional
        assert documented["default"] is None
    else:
        shown = f'"{spec.default}"' if isinstance(spec.default, str) else repr(spec.default)
        assert documented["default"] == shown


@pytest.mark.parametrize("name", [name for name in OWN if "choices" in FIELDS[name].metadata])
def test_choices_are_enforced_named_and_documented(tmp_path, name):
    choices = FIELDS[name].metadata["choices"]
    assert FIELDS[name].default in (*choices, None)
    start = ENTRIES.index(DOCUMENTED[name])
    end = ENTRIES[start + 1].start() if start + 1 < len(ENTRIES) else None
    text = TASPOConfig.__doc__[ENTRIES[start].end() : end]
    for choice in choices:
        assert getattr(make(tmp_path, **{name: choice}), name) == choice
        assert f'"{choice}"' in text
    with pytest.raises(ConfigurationError, match=f"`{name}` must be one of .*, got 'other'"):
        make(tmp_path, **{name: "other"})


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("max_turns", 0, "at least 1, or None"),
        ("max_prompt_length", 0, "at least 1, or None"),
        ("max_episode_tokens", -1, "at least 1, or None"),
        ("generation_tokens", 0, "at least 1"),
        ("micro_batch_tokens", 0, "at least 1"),
        ("max_nonfinite_steps", 0, "at least 1"),
        ("max_evidence_items", 0, "at least 1"),
        ("max_guidance_items", 0, "at least 1"),
        ("max_guidance_tokens", 0, "at least 1"),
        ("max_guidance_tokens", None, "at least 1"),
        ("temperature", "hot", "positive"),
        ("analyzer_context_chars", 0, "at least 1"),
        ("analyzer_workers", 0, "at least 1"),
        ("max_completion_length", 0, "at least 1"),
        ("max_completion_length", None, "at least 1"),
        ("history_length", -1, "not negative, or None"),
        ("environment_timeout", 0.0, "positive"),
        ("environment_timeout", math.nan, "positive"),
        ("invalid_action_penalty", -0.1, "not negative"),
        ("shift_clip", 0.0, "positive"),
        ("shift_clip", math.nan, "positive"),
        ("shift_threshold", -0.1, "not negative"),
        ("score_temperature", 0.0, "positive"),
        ("weight_range", 1.0, r"in \[0, 1\)"),
        ("weight_range", -0.1, r"in \[0, 1\)"),
        ("weight_range", math.nan, r"in \[0, 1\)"),
        ("weight_step_size", -1.0, "finite and not negative, or None"),
        ("weight_step_size", math.nan, "finite and not negative, or None"),
        ("weight_step_size", math.inf, "finite and not negative, or None"),
        ("eval_temperature", -0.1, "not negative"),
        ("eval_top_p", 0.0, r"in \(0, 1\]"),
        ("eval_top_p", 1.1, r"in \(0, 1\]"),
    ],
)
def test_impossible_value_is_refused_with_its_rule(tmp_path, name, value, rule):
    with pytest.raises(ConfigurationError, match=f"`{name}`.*{rule}"):
        make(tmp_path, **{name: value})


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("temperature", 0.5, "use `temperature`"),
        ("max_new_tokens", 3, "use `max_completion_length`"),
        ("num_beams", 4, "sampled, token by token"),
        ("repetition_penalty", 1.2, "scored without it"),
        ("stop_strings", ["x"], "model's end token"),
    ],
)
def test_generation_kwargs_that_would_change_what_is_scored_are_refused(tmp_path, name, value, remedy):
    with pytest.raises(ConfigurationError, match=f"`generation_kwargs` holds `{name}`.*{remedy}"):
        make(tmp_path, generation_kwargs={name: value})


@pytest.mark.parametrize(
    "values",
    [
        {"max_turns": 1, "max_prompt_length": 1, "max_episode_tokens": 1},
        {"history_length": 0},
        {"weight_range": 0.0},
        {"weight_step_size": 0.0},
        {"weight_step_size": 100.0},
        {"eval_top_p": 0.01},
        {"delta": None},
        {"num_generations_eval": 4},
    ],
)
def test_edges_that_make_sense_are_allowed(tmp_path, values):
    made = make(tmp_path, **values)
    assert {name: getattr(made, name) for name in values} == values


@pytest.mark.parametrize("values", [{"top_p": 0.9}, {"top_k": 50}, {"min_p": 0.1}])
def test_cut_sampling_is_allowed_and_warned_about(tmp_path, values):
    with pytest.warns(UserWarning, match="not exactly the policy that learns"):
        make(tmp_path, **values)


@pytest.mark.parametrize(("asked", "private"), [({}, True), ({"hub_private_repo": None}, True),
    ({"hub_private_repo": True}, True), ({"hub_private_repo": False}, False)])  # fmt: skip
def test_repositories_are_private_unless_the_user_says_no(tmp_path, asked, private):
    made = make(tmp_path, **asked)
    assert made.hub_private_repo is private
    assert made.set_push_to_hub("me/agent").hub_private_repo is True
    assert made.set_push_to_hub("me/agent", private_repo=False).hub_private_repo is False


def test_a_token_is_copied_but_never_pickled(tmp_path):
    made = make(tmp_path, hub_token="hf_CANARY7731", run_name="kept")
    for twin in (copy.copy(made), copy.deepcopy(made)):
        assert (twin.hub_token, twin.run_name) == ("hf_CANARY7731", "kept")
    data = pickle.dumps(made)
    assert b"CANARY" not in data
    assert (pickle.loads(data).hub_token, pickle.loads(data).run_name) == (None, "kept")


def test_credentials_of_nested_options_serve_the_run_and_are_shown_nowhere(tmp_path):
    given = {"token": "CANARY-1234", "revision": "main", "trust": {"headers": [{"Authorization": "Basic CANARY-22"}]}}
    made = make(
        tmp_path, hub_token="CANARY-hub-33", model_init_kwargs=given, chat_template_kwargs={"pad_token": "<p>"}
    )
    shown = made.to_dict()
    assert shown["model_init_kwargs"]["token"] == "***" and shown["model_init_kwargs"]["revision"] == "main"
    assert shown["chat_template_kwargs"] == {"pad_token": "<p>"}
    texts = (json.dumps(shown), made.to_json_string(), repr(made), str(made), str(made.to_sanitized_dict()))
    assert not [text for text in texts if "CANARY" in text] and b"CANARY" not in pickle.dumps(made)
    assert made.model_init_kwargs["token"] == "CANARY-1234" == copy.deepcopy(made).model_init_kwargs["token"]
    assert redacted("401: CANARY-1234, Basic CANARY-22, CANARY-hub-33") == "401: ***, ***, ***", "whoever quotes them"


def test_every_field_is_a_flag_with_printable_help():
    parser = HfArgumentParser(TASPOConfig)
    text = parser.format_help()  # a stray % in a help text fails here
    assert all(f"--{name}" in text for name in OWN)
    (parsed,) = parser.parse_args_into_dataclasses(
        [
            "--output_dir",
            "out",
            "--use_cpu",
            "--bf16",
            "false",
            "--context",
            "conversation",
            "--weight_step_size",
            "0.3",
        ]
    )
    assert (parsed.context, parsed.weight_step_size) == ("conversation", 0.3)
