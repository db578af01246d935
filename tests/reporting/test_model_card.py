"""The card says what is known, in metadata that the Hub takes, and nothing that is not known."""

from __future__ import annotations

import dataclasses
import functools
import re
import types

import pytest
import yaml
from datasets import Dataset, Features, Value
from peft import LoraConfig, get_peft_model

from taspo_trl.analyzer.extractive import ExtractiveAnalyzer
from taspo_trl.analyzer.llm.ledger import Totals
from taspo_trl.environments import HouseholdEnvironment, TextEnvironment
from taspo_trl.environments.base import traits_of
from taspo_trl.evaluation import EvaluationResult, Play, Rate, wilson_rate
from taspo_trl.reporting.card_facts import (
    adapter_settings,
    analyzer_use,
    environment_name,
    hub_name,
    logged_coverage,
    logged_evaluations,
    settings_of,
    splits_of,
    task_sets,
    tuning_of,
)
from taspo_trl.reporting.model_card import (
    AnalyzerUse,
    CardEvaluation,
    CardFacts,
    Setting,
    TaskSet,
    code,
    model_card,
    prose,
)
from taspo_trl.types import StopReason
from tests import tiny
from tests.hub_server import card_faults


FACTS = CardFacts(
    model_name="agent",
    tuning="full fine-tuning",
    task_sets=(TaskSet("household", ("train",), 3000),),
    num_steps=150,
    guidance="aligned",
    paper_title="T",
    paper_id="2608.31077",
    citations={"TASPO": "@article{x}"},
    tags=("trl", "taspo"),
)
HALF = CardEvaluation(
    "eval", 150, wilson_rate([True, False]), splits=("valid_unseen",), num_tasks=2, sampling="greedy"
)


def text_of(**values):
    card = model_card(dataclasses.replace(FACTS, **values))
    assert not card_faults(card.content)
    assert "None" not in card.content
    return card.content


def metadata_of(**values):
    return yaml.safe_load(text_of(**values).split("---")[1])


# ---- the text -------------------------------------------------------------------------------------------------------


def test_a_card_of_the_least_facts_claims_nothing():
    text = text_of(task_sets=())
    assert metadata_of().keys() == {"library_name", "pipeline_tag", "tags"}
    for absent in ("Analyzer", "coverage |", "license", "base_model", "95 %", "Logs of the run"):
        assert absent not in text
    assert "has not been evaluated" in text
    assert "The base model is not known by a name on the Hub" in text


@pytest.mark.parametrize(
    ("use", "shown", "absent"),
    [
        (AnalyzerUse("extractive", is_embedded=True), ["not a language model"], ["cost", "tokens |", "calls"]),
        (AnalyzerUse("a/b"), ["| Analyzer | `a/b` |"], ["cost", "Analyzer tokens", "Analyzer calls"]),
        (AnalyzerUse("a/b", calls=7, failed_calls=2), ["| 7, 2 of them failed |"], ["cost"]),
        (AnalyzerUse("a/b", calls=7, prompt_tokens=1234, completion_tokens=89), ["| 1,234 in, 89 out |"], ["USD"]),
        (AnalyzerUse("a/b", cost_usd=12.345), ["| Analyzer cost | 12.35 USD |"], []),
        (AnalyzerUse("a/b", cost_usd=0.00123), ["| Analyzer cost | 0.0012 USD |"], []),
        (AnalyzerUse("a/b", cost_usd=0.0), ["| Analyzer cost | 0 USD |"], []),  # known to be free
    ],
)  # fmt: skip
def test_the_price_of_guidance_is_what_is_known_of_it(use, shown, absent):
    text = text_of(analyzer=use)
    assert all(one in text for one in shown)
    assert not [one for one in absent if one in text]


def test_evaluations_have_counts_and_wilson_intervals():
    families = {"heat": wilson_rate([True] * 3), "pick": wilson_rate([False] * 5)}
    one = CardEvaluation("eval", 150, wilson_rate([True] * 3 + [False] * 5), families, ("valid_seen",), 8, 1, "greedy")
    text = text_of(evaluations=(dataclasses.replace(HALF, step=0), one))
    assert "| `valid_unseen` | 0 | 2 | 2 | 1 | 50.0% | 9.5% to 90.5% |" in text
    assert "| `valid_seen` | 150 | 8 | 8 | 3 | 37.5% | 13.7% to 69.4% |" in text
    assert "| heat | 3 | 3 | 100.0% | 43.9% to 100.0% |" in text
    assert "Sampling: greedy." in text
    assert "1 play ended through a failure of the environment or the engine; no rate counts it." in text
    assert "has not been evaluated" not in text


def test_only_results_of_these_very_weights_are_in_the_metadata():
    first, last = dataclasses.replace(HALF, step=100), dataclasses.replace(HALF, overall=wilson_rate([True]))
    (result,) = metadata_of(evaluations=(first, last))["model-index"][0]["results"]
    assert result["dataset"] == {"name": "household (valid_unseen)", "type": "household", "split": "valid_unseen"}
    (metric,) = result["metrics"]
    assert (metric["type"], metric["value"]) == ("success_rate", 1.0)
    assert metric["args"] == {"num_successes": 1, "num_plays": 1, "wilson_interval_95": [0.2065, 1.0]}

    (result,) = metadata_of(evaluations=(first, last), model_step=100)["model-index"][0]["results"]
    assert result["metrics"][0]["value"] == 0.5, "the best checkpoint is back, and it is that of step 100"
    assert "those of step 100" in text_of(evaluations=(first, last), model_step=100)
    assert "model-index" not in metadata_of(evaluations=(first,))


def test_an_evaluation_of_which_no_play_counts_gives_no_rate():
    nothing = CardEvaluation("eval", 150, Rate(0, 0, float("nan"), float("nan")), num_failed=3)
    assert "nan" not in text_of(evaluations=(nothing,)).lower().split()
    assert "model-index" not in metadata_of(evaluations=(nothing,))


@pytest.mark.parametrize(
    ("guidance", "says", "never"),
    [
        ("aligned", "the method of the paper", "plain GRPO"),
        ("random_success", "a comparison construction, not the method of the paper", "plain GRPO"),
        ("none", "trained with plain GRPO", "weight of a turn"),
    ],
)
def test_the_card_names_what_the_weights_came_from(guidance, says, never):
    text = text_of(guidance=guidance)
    assert says in text
    assert never not in text


@pytest.mark.parametrize("is_adapter", [False, True])
@pytest.mark.parametrize("base", [None, "org/base-1B"])
@pytest.mark.parametrize("repo", [None, "me/agent"])
def test_the_loading_code_compiles_and_names_what_there_is(is_adapter, base, repo):
    text = text_of(is_adapter=is_adapter, base_model=base, repo_id=repo)
    loading = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]
    compile(loading, "card", "exec")
    assert ("PeftModel" in loading) == is_adapter
    assert (f'"{repo}"' in loading) == (repo is not None)
    assert ('"org/base-1B"' in loading) == (is_adapter and base is not None)
    assert "taspo" not in loading
    data = metadata_of(is_adapter=is_adapter, base_model=base)
    assert data.get("base_model") == base
    assert data.get("base_model_relation") == (base and ("adapter" if is_adapter else "finetune"))


def test_the_code_for_using_it_runs(tmp_path, capsys):
    tiny.model().save_pretrained(tmp_path)
    tiny.tokenizer().save_pretrained(tmp_path)
    code = re.search(r"```python\n(.*?)```", text_of(repo_id=str(tmp_path)), re.DOTALL)[1]
    found: dict = {}
    exec(code, found)
    assert found["reply"].shape[1] > found["prompt"]["input_ids"].shape[1] and capsys.readouterr().out


def test_text_from_outside_breaks_no_table_and_starts_no_markup():
    nasty = "a|b\n<script>alert(1)</script> [x](http://y) `z`"
    families = {nasty: wilson_rate([True]), "b": wilson_rate([True])}
    text = text_of(
        model_name=nasty,
        task_sets=(TaskSet(nasty, (nasty,), 1),),
        analyzer=AnalyzerUse(nasty),
        adapter=(Setting(nasty, nasty),),
        settings=(Setting(nasty, nasty),),
        evaluations=(dataclasses.replace(HALF, splits=(nasty,), families=families),),
    )
    body = text.split("---", 2)[2]
    outside_code = re.sub(r"`[^`\n]*`", "", body.replace("\\`", ""))
    assert not re.search(r"(?<!\\)<script|(?<!\\)\[x", outside_code)
    for line in body.splitlines():
        if line.startswith("|"):
            cells = len(re.findall(r"(?<!\\)\|", line)) - 1
            assert cells in (2, 3, 5, 7), line
    assert yaml.safe_load(text.split("---")[1])["model-index"][0]["name"].startswith("a|b <script>")


@pytest.mark.parametrize(("text", "shown"), [("a_b", "a_b"), ("a|b", r"a\|b"), ("a\n b", "a b"), ("<i>", r"\<i\>")])
def test_prose_escapes_what_markdown_reads(text, shown):
    assert prose(text) == shown


@pytest.mark.parametrize(("text", "shown"), [("<a>", "`<a>`"), ("`", "`'`"), ("a|b", r"`a\|b`"), ("\ud83d", "`?`")])
def test_code_is_one_span(text, shown):
    assert code(text) == shown


# ---- the facts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Qwen/Qwen2.5-3B-Instruct", "Qwen/Qwen2.5-3B-Instruct"),
        ("gpt2", "gpt2"),
        ("", None),
        (None, None),
        ("/home/alice/base", None),  # gone, or another machine's
        ("./base", None),
        ("../base", None),
        ("~/base", None),
        ("runs/a/checkpoint-3", None),
        ("C:\\models\\base", None),
        ("tests", None),  # a folder that is here
    ],
)
def test_only_names_that_the_hub_can_have_become_a_base_model(name, expected, monkeypatch, request):
    monkeypatch.chdir(request.config.rootpath)
    assert hub_name(name) == expected


def test_environments_go_by_the_name_of_the_command_line_or_of_their_class():
    class Mine(TextEnvironment):
        pass

    assert environment_name(HouseholdEnvironment, HouseholdEnvironment()) == "household"
    assert environment_name(functools.partial(HouseholdEnvironment), HouseholdEnvironment()) == "household"
    assert environment_name(Mine, Mine()) == "Mine"
    assert environment_name(lambda: Mine(), Mine()) == "Mine"

    class HouseholdEnvironment_(Mine):
        pass

    HouseholdEnvironment_.__name__ = "HouseholdEnvironment"
    assert environment_name(HouseholdEnvironment_, None) == "HouseholdEnvironment", (
        "a namesake is not the built-in one"
    )


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (["train", "train"], ("train",)),
        (["b", "a"], ("b", "a")),
        (["train", None], ("train",)),
        ([None, None], ()),
        (["/home/alice/x", "train"], ()),
        (["two words\nand more", "train"], ()),
        ([str(k) for k in range(9)], ()),
    ],
)
def test_a_column_split_counts_when_it_reads_like_names(column, expected):
    assert splits_of(Dataset.from_dict({"split": column}, features=Features({"split": Value("string")}))) == expected
    assert splits_of(Dataset.from_dict({"split": list(range(2))})) == ()


def test_splits_may_come_from_the_data_set_or_from_the_caller_or_not_at_all():
    named = Dataset.from_dict({"task": ["x"]}, split="train")
    bare = Dataset.from_dict({"task": ["x"]})
    assert splits_of(named) == ("train",)
    assert splits_of(bare) == splits_of(iter([])) == ()
    assert task_sets(bare, {None: "Mine"}, "mine") == (TaskSet("Mine", ("mine",), 1),)
    assert task_sets(named, {None: "Mine"}, "mine") == (TaskSet("Mine", ("train",), 1),)
    assert task_sets(bare.to_iterable_dataset(), {None: "Mine"}) == (TaskSet("Mine", (), None),)


def test_tasks_are_counted_for_each_environment():
    data = Dataset.from_dict({"environment": ["a", "b", "a"], "split": ["train", "test", "train"]})
    environments = {"a": "First", "b": "Second", "c": "Unused"}
    assert task_sets(data, environments) == (TaskSet("First", ("train",), 2), TaskSet("Second", ("test",), 1))


def test_coverage_leaves_out_batches_in_which_nobody_wanted_guidance():
    history = [
        {"guidance/coverage": 0.5, "frac_reward_zero_std": 0.25},
        {"guidance/coverage": 0.0, "frac_reward_zero_std": 1.0},
        {"guidance/coverage": 1.0},
        {"guidance/coverage": float("nan"), "frac_reward_zero_std": 0.0},
        {"eval_success": 0.1},
    ]
    assert logged_coverage(history) == [0.5, 1.0]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("deepseek/deepseek-chat", "deepseek/deepseek-chat"),
        ("hosted_vllm/Qwen/Qwen3.5-35B-A3B", "hosted_vllm/Qwen/Qwen3.5-35B-A3B"),
        ("hosted_vllm//home/alice/model", "hosted_vllm/(a local model)"),
        ("hosted_vllm/~/model", "hosted_vllm/(a local model)"),
        ("mine", "mine"),
    ],
)
def test_an_analyzer_is_named_without_a_path(name, shown):
    assert analyzer_use(types.SimpleNamespace(name=name)) == AnalyzerUse(shown)


def test_unknown_tokens_and_prices_are_not_zero():
    silent = types.SimpleNamespace(name="a/b", run_totals=Totals(calls=4, errors={"timeout": 1}))
    assert analyzer_use(silent) == AnalyzerUse("a/b", calls=4, failed_calls=1)
    priced = types.SimpleNamespace(name="a/b", run_totals=Totals(2, 0, 2, 10, 3, 0.25))
    assert analyzer_use(priced) == AnalyzerUse("a/b", False, 2, 0, 10, 3, 0.25)
    assert analyzer_use(ExtractiveAnalyzer()).is_embedded


def plays(solved, failed=0, family="pick"):
    ended = [(one, StopReason.SOLVED) for one in solved] + [(False, StopReason.ENV_DIED)] * failed
    return tuple(
        Play(f"t{k}", family, 0, success, float(success), 3, 9, stop) for k, (success, stop) in enumerate(ended)
    )


def test_evaluations_of_this_run_are_found_by_its_log(tmp_path):
    said = {"temperature": 0.0, "top_p": 1.0, "seed": 3, "num_plays": 2, "num_tasks": 2}
    for step, solved in ((0, [False, False]), (10, [True, False]), (20, [True, True])):
        facts = {**said, "splits": ["held_out"]} if step == 20 else said
        EvaluationResult(plays(solved, failed=1), facts).save(tmp_path / f"eval_{step:06d}.json")
    EvaluationResult(plays([True]), said).save(tmp_path / "other_000000.json")  # of an earlier run in the folder
    history = [{"step": step, "eval_success_low": 0.0, "eval_success": 0.5} for step in (0, 10, 20)]
    history += [{"step": 20, "gone_success_low": 0.1}, {"step": 20, "success": 1.0}]

    first, last = logged_evaluations(history, tmp_path, {"eval": "said"})
    assert (first.name, first.step, first.splits, first.overall.num_successes) == ("eval", 0, ("said",), 0)
    assert (last.step, last.splits, last.overall.num_plays, last.num_failed) == (20, ("held_out",), 2, 1)
    assert last.sampling == "temperature 0, top-p 1, seed 3, 2 plays of each task"
    assert last.num_tasks == 2


def test_an_evaluation_before_the_training_is_the_first_though_its_log_is_gone(tmp_path):
    said = {"temperature": 0.0, "top_p": 1.0, "seed": 3}
    for step, solved in ((0, [False, False]), (20, [True, True])):
        EvaluationResult(plays(solved), said).save(tmp_path / f"eval_{step:06d}.json")
    found = logged_evaluations([{"step": 20, "eval_success_low": 0.0}], tmp_path, {})
    assert [(one.step, one.overall.num_successes) for one in found] == [(0, 0), (20, 2)]


def test_an_evaluation_of_the_best_checkpoint_belongs_to_its_step(tmp_path):
    said = {"temperature": 0.5, "top_p": 1.0, "seed": 0, "weights_step": 10}
    EvaluationResult(plays([True]), said).save(tmp_path / "eval_000020.json")
    (one,) = logged_evaluations([{"step": 20, "eval_success_low": 0.0}], tmp_path, {})
    assert one.step == 10


def test_tuning_is_full_or_names_adapter_and_quantisation():
    whole = tiny.model()
    assert tuning_of(whole) == "full fine-tuning"
    lora = LoraConfig(r=2, lora_alpha=6, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    adapted = get_peft_model(whole, lora)
    assert tuning_of(adapted) == "LoRA"
    shown = {one.name: one.value for one in adapter_settings(adapted)}
    assert shown["LoRA rank"] == "2" and shown["LoRA alpha"] == "6"
    assert shown["LoRA target modules"] == "q_proj, v_proj"
    adapted.get_base_model().config.quantization_config = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    assert tuning_of(adapted).startswith("QLoRA")
    adapted.get_base_model().config.quantization_config = {"quant_method": "gptq"}
    assert tuning_of(adapted) == "LoRA (base quantised in training: gptq)"


def test_options_show_what_was_in_force(tmp_path):
    args = tiny.config(tmp_path, max_turns=7, beta=0.001)
    traits = traits_of(HouseholdEnvironment())
    shown = {one.name: (one.value, one.symbol) for one in settings_of(args, [traits])}
    assert shown["max_turns"] == ("7", "")
    assert shown["history_length"] == (str(traits.history_length), "")
    assert shown["beta"] == ("0.001", "β (KL)")
    assert shown["weight_range"] == ("0.4", "ε_w")
    assert shown["weight_step_size"] == ("0.2", "η"), "half of the range where none is set"
    assert "epsilon_high" not in shown or shown["epsilon_high"][0] != "None"
    other = dataclasses.replace(traits, history_length=traits.history_length + 1)
    mixed = {one.name for one in settings_of(args, [traits, other])}
    assert "history_length" not in mixed, "environments that differ have no one value"
    plain = {one.name for one in settings_of(tiny.config(tmp_path, guidance="none"), [traits])}
    assert not plain & {"weight_range", "shift_clip", "max_guidance_tokens"}
