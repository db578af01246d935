"""The table of inherited options: complete, current, and saying what it does."""

import dataclasses
import enum
import warnings

import pytest
from trl import GRPOConfig

from taspo_trl import TASPOConfig
from taspo_trl.errors import ConfigurationError
from taspo_trl.options.inherited import HONOURED, NO_EFFECT, REFUSED, check_options


INHERITED = {one.name for one in dataclasses.fields(GRPOConfig)}


def test_every_inherited_field_is_in_the_table():
    missing = INHERITED - HONOURED - NO_EFFECT.keys() - REFUSED.keys()
    assert not missing, f"TRL has options that taspo_trl.options.inherited does not mention: {sorted(missing)}"


def test_the_table_names_no_field_that_is_gone():
    # `local_rank` is an attribute of some versions of transformers only.
    gone = (HONOURED | NO_EFFECT.keys() | REFUSED.keys()) - INHERITED
    assert gone <= {"local_rank"}


def test_every_field_has_one_place():
    assert not HONOURED & NO_EFFECT.keys()
    assert not HONOURED & REFUSED.keys()
    assert not NO_EFFECT.keys() & REFUSED.keys()


def defaults():
    return {
        one.name: one.default if one.default is not dataclasses.MISSING else one.default_factory()
        for one in dataclasses.fields(TASPOConfig)
        if one.default is not dataclasses.MISSING or one.default_factory is not dataclasses.MISSING
    }


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_default_of_a_refused_option_is_allowed(name):
    check_options({name: defaults()[name]})


@pytest.mark.parametrize("name", sorted(NO_EFFECT))
def test_default_of_an_option_without_effect_is_silent(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_options({name: defaults()[name]})


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_refusal_names_the_option_its_value_and_the_reason(name):
    with pytest.raises(ConfigurationError) as caught:
        check_options({name: "something else"})
    message = str(caught.value)
    assert f"`{name}='something else'` cannot be honoured" in message
    assert REFUSED[name].reason in message
    assert all(repr(value) in message for value in REFUSED[name].allowed)


@pytest.mark.parametrize("name", sorted(NO_EFFECT))
def test_option_without_effect_is_warned_about_with_its_reason(name):
    with pytest.warns(UserWarning) as caught:
        check_options({name: "something else"})
    (warning,) = caught
    assert f"`{name}='something else'` has no effect" in str(warning.message)
    assert NO_EFFECT[name].reason in str(warning.message)


@pytest.mark.parametrize("name", sorted(REFUSED.keys() | NO_EFFECT.keys()))
def test_reasons_are_sentences_for_their_place(name):
    if name in REFUSED:
        assert REFUSED[name].reason.endswith(".")  # "...: <reason> Allowed: ..."
    else:
        assert not NO_EFFECT[name].reason.endswith(".")  # "...: <reason>."


def test_enums_are_compared_by_their_value():
    class Sampling(enum.Enum):
        RANDOM = "random"
        SEQUENTIAL = "sequential"

    check_options({"train_sampling_strategy": Sampling.RANDOM})
    with pytest.raises(ConfigurationError, match="train_sampling_strategy"):
        check_options({"train_sampling_strategy": Sampling.SEQUENTIAL})


def test_unknown_names_and_honoured_values_pass():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_options({"learning_rate": 3.0, "of_another_class": object()})


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"loss_type": "dapo"}, "E8"),
        ({"importance_sampling_level": "sequence"}, "single tokens"),
        ({"repetition_penalty": 1.1}, "would not be the policy that learns"),
        ({"top_entropy_quantile": 0.2}, "every sampled token"),
        ({"multi_objective_aggregation": "normalize_then_sum"}, "one advantage"),
        ({"torch_compile": True}, "compiled anew"),
        ({"neftune_noise_alpha": 5.0}, "bias every ratio"),
        ({"auto_find_batch_size": True}, "micro_batch_tokens"),
        ({"remove_unused_columns": True}, "columns are the task"),
    ],
)
def test_configuration_refuses_at_construction(tmp_path, values, reason):
    (name,) = values
    with pytest.raises(ConfigurationError, match=f"`{name}=.*{reason}"):
        TASPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, **values)


def test_configuration_warns_at_construction(tmp_path):
    with pytest.warns(UserWarning, match="`length_column_name='n'` has no effect"):
        TASPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, length_column_name="n")


def test_trl_s_limit_on_rounds_of_tools_is_a_limit_on_turns(tmp_path):
    """So many rounds, and the reply after the last result; the other name may only say the same."""

    def made(**values):
        return TASPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, **values)

    config = made(max_tool_calling_iterations=5)
    assert config.max_turns == 6 and made(max_tool_calling_iterations=5, max_turns=6) and made().max_turns is None
    with pytest.raises(ConfigurationError, match=r"`max_turns=5` and `max_tool_calling_iterations=5`.*Leave one"):
        made(max_tool_calling_iterations=5, max_turns=5)
