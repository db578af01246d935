"""Every option that is honoured reaches its stage: a value other than the default is seen there.

A table, so that a new option without a row fails: `WIRES` for what this package carries, `ELSEWHERE` for options whose
tests stand where the effect is, `THEIRS` for what TRL, transformers and accelerate read themselves.
"""

from __future__ import annotations

import dataclasses
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import taspo_trl
from taspo_trl import TASPOConfig
from taspo_trl.analyzer.extractive import ExtractiveAnalyzer
from taspo_trl.loss.importance import importance_settings
from taspo_trl.options.inherited import HONOURED, NO_EFFECT
from taspo_trl.scoring.projection import selected_forward
from taspo_trl.seeds import derive_seed
from taspo_trl.training.rollout_batch import UpdateLayout
from tests import tiny
from tests.reference import surrogate
from tests.trainer.test_tools import trainer as tool_trainer
from tests.trainer.test_trainer import replies, rows, scripted


FIELDS = {one.name: one for one in dataclasses.fields(TASPOConfig)}
TESTS = Path(__file__).parents[1]


def nothing(completions, **_):
    """A reward function."""
    return [0.0] * len(completions)


# ---- what the stages got -----------------------------------------------------------------------------------------


@dataclass
class Stages:
    """A trainer that was made, and what went through it."""

    made: Any
    analyzer: Mapping[str, Any]
    """Arguments of the configured analyzer."""
    projections: list[tuple]
    """Arguments of `add_selected_projection`, for the policy and the reference."""
    played: Mapping[str, Any] = field(default_factory=dict)
    """Function -> arguments, of one rollout batch."""
    evaluated: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of an evaluation's plays."""
    loss: float = math.nan
    """Of tokens whose ratios leave every bound."""
    tokens: list[tuple[float, float, float, float]] = field(default_factory=list)
    """Of these: log-ratio, advantage, log pi_ref - log pi, entropy."""

    @property
    def maker(self):
        return self.made.experience_maker

    @property
    def guidance(self):
        return self.made.experience_maker.guidance

    @property
    def construction(self):
        return self.guidance._construction

    @property
    def collector(self):
        return self.made.experience_maker.collector

    @property
    def settings(self):
        return self.made.experience_maker.settings

    @property
    def rule(self):
        return self.settings.recipe.weight


def recorded(kept: dict[str, Any], name: str, original: Callable) -> Callable:
    def call(*positional, **keywords):
        kept[name] = SimpleNamespace(args=positional, **keywords)
        return original(*positional, **keywords)

    return call


def make(folder: Path, patch: pytest.MonkeyPatch, **values: Any) -> Stages:
    analyzer: dict[str, Any] = {}
    projections: list[tuple] = []

    def analyzer_of(model, **settings):
        analyzer.update(settings, model=model)
        return ExtractiveAnalyzer()

    original = taspo_trl.trainer.add_selected_projection

    def project(model, *settings):
        projections.append(settings)
        original(model, *settings)

    patch.setattr("taspo_trl.analyzer.llm.analyzer.LiteLLMAnalyzer", analyzer_of)
    patch.setattr("taspo_trl.trainer.add_selected_projection", project)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # cut sampling is warned about
        made, _ = scripted(folder, **values)
    return Stages(made, analyzer, projections)


def play(stages: Stages, patch: pytest.MonkeyPatch) -> None:
    """One rollout batch and one evaluation, with notes of what their stages are called with."""
    made, kept = stages.made, {}
    module = "taspo_trl.training.rollout_batch"
    for name in ("plan_update", "plan_pairs", "scaled_advantages"):
        patch.setattr(f"{module}.{name}", recorded(kept, name, getattr(taspo_trl.training.rollout_batch, name)))
    # Two successes, so that there is somebody to learn from.
    policy = tiny.ScriptedPolicy(replies(("inventory", "inventory", "look", "look"), 2))
    tiny.use_policy(made, policy)
    made.current_gradient_accumulation_steps = made.args.gradient_accumulation_steps
    make_original = made.experience_maker.make
    made.experience_maker.make = recorded(kept, "make", make_original)
    kept["micro_batches"] = made._new_rollout([made.train_dataset[0]] * 4 + [made.train_dataset[1]] * 4)
    kept["sampling"] = policy.samplings[0]
    stages.played = kept
    evaluated: dict[str, Any] = {}
    held_out = "taspo_trl.evaluation.held_out.evaluate_tasks"
    patch.setattr(held_out, recorded(evaluated, "evaluate", taspo_trl.evaluation.held_out.evaluate_tasks))
    made._play_held_out(list(rows(1)))
    stages.evaluated = vars(evaluated["evaluate"])


def compute_loss(stages: Stages) -> None:
    """The trainer's loss on fixed tokens, and E8 in float64."""
    made = stages.made
    batches = [batch for micro in stages.played["micro_batches"] for batch in micro]
    row = max((row for batch in batches for row in batch), key=lambda row: len(row.positions))
    inputs = made.experience_maker.passes.collate([row])
    made.model.eval()
    with torch.no_grad():
        output = selected_forward(made.model, inputs, want_entropies=True)
    count = len(output.logps)
    offsets = torch.linspace(-1.5, 1.5, count)
    signs = torch.tensor([1.0, -1.0] * count)[:count]
    gaps = torch.linspace(0.5, -0.25, count)
    inputs |= {
        "old_logps": output.logps - offsets,
        "ref_logps": output.logps + gaps,
        "advantages": signs,
        "coefficients": torch.full((count,), 1 / count),
    }
    made._loss_sums = {}
    made.current_gradient_accumulation_steps = made._planned_micro_steps
    stages.loss = made.compute_loss(made.model, inputs).item()
    stages.tokens = list(zip(*(one.tolist() for one in (offsets, signs, gaps, output.entropies)), strict=True))


def reference_loss(tokens: list[tuple[float, float, float, float]], values: Mapping[str, Any]) -> float:
    """E8 with the options of `values`."""
    losses = []
    for offset, advantage, gap, entropy in tokens:
        ratio = math.exp(offset)
        gain = surrogate(ratio, advantage, values["epsilon"], values["epsilon_high"], values["delta"])
        k3 = (math.exp(gap) - gap - 1) * (ratio if values["use_bias_correction_kl"] else 1.0)
        losses.append(-gain + values["beta"] * k3 - values["entropy_coef"] * entropy)
    return math.fsum(losses) / len(losses)


# ---- the table ---------------------------------------------------------------------------------------------------


SAME = object()


@dataclass(frozen=True)
class Wire:
    """A value other than the default, and where it is seen."""

    value: Any
    see: Callable[[Stages], Any]
    expected: Any = SAME
    """What is seen there; the value itself unless it is translated."""


def of(path: str) -> Callable[[Stages], Any]:
    """What stands at an attribute of [`Stages`]; a mapping's entry too."""

    def see(stages: Stages) -> Any:
        value: Any = stages
        for name in path.split("."):
            value = value[name] if isinstance(value, Mapping) else getattr(value, name)
        return value

    return see


def loss_is(stages: Stages) -> Any:
    return stages.loss == pytest.approx(reference_loss(stages.tokens, MAIN), rel=1e-4)


def with_loss(path: str) -> Callable[[Stages], Any]:
    return lambda stages: of(path)(stages) and loss_is(stages)


def room(stages: Stages) -> int:
    composer = stages.construction._composer
    return composer._room + len(composer._opening_ids) + len(composer._closing_ids)


@contextmanager
def _unwrapping(stages: Stages) -> Iterator[dict[str, Any]]:
    kept: dict[str, Any] = {}

    def unwrap(model, accelerator, **settings):
        kept.update(settings)
        return nullcontext(model)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("taspo_trl.generation.build.unwrap_model_for_generation", unwrap)
        with stages.made.engine.engine._unwrap():
            yield kept


def unwrapped(name: str) -> Callable[[Stages], Any]:
    def see(stages: Stages) -> Any:
        with _unwrapping(stages) as kept:
            return kept[name]

    return see


def uploads(stages: Stages) -> bool:
    kept: list[bool] = []

    def selective(pushes, *, with_trajectories, secret_files):
        kept.append(with_trajectories)
        return nullcontext()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("taspo_trl.reporting.hub.selective_uploads", selective)
        with taspo_trl.trainer.what_may_leave(stages.made.args, stages.made.analyzer, stages.made._pushes):
            return kept[0]


def engine_of(stages: Stages) -> str:
    made = stages.made
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("taspo_trl.generation.build.make_vllm_engine", lambda *_, **__: "vllm")
        patch.setattr(made.args, "use_vllm", True)
        assert importance_settings(made.args) is not None
        return taspo_trl.trainer.make_engine(
            made.args, get_model=None, get_wrapped_model=None, accelerator=None, distribution=None, gather=None,
            pad_token_id=0, eos_token_ids=[],
        )  # fmt: skip


def deal_seed(stages: Stages) -> bool:
    return stages.played["plan_update"].seed == derive_seed("deal", MAIN["seed"], 0)


def all_scored_at(stages: Stages) -> Any:
    """The temperature of scoring: of the projections, of passes that teachers share, and of the numbers themselves."""
    model, temperature = stages.made.model, stages.maker.passes.temperature
    inputs = stages.maker.passes.collate([stages.played["micro_batches"][0][0][0]])
    with torch.no_grad():
        logps = selected_forward(model, inputs).logps
        logits = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits.flatten(0, 1)
    scaled = torch.log_softmax(logits[inputs["positions"]] / MAIN["temperature"], dim=-1)
    assert torch.allclose(logps, scaled.gather(1, inputs["targets"][:, None])[:, 0], atol=1e-5)
    return {temperature, stages.played["sampling"].temperature, *(settings[0] for settings in stages.projections)}


def reward_sources(stages: Stages) -> set[str]:
    rewards = stages.collector.rewards
    return {rewards.source, *rewards.source_of.values()}


def micro_batch_bounds(stages: Stages) -> set[int]:
    return {stages.maker.passes.max_tokens, stages.played["plan_update"].max_tokens}


LAYOUT = UpdateLayout(num_steps=2, num_micro_steps=2, is_off_policy=True, num_iterations=2)

WIRES: Mapping[str, Wire] = {
    # Episodes
    "context": Wire("conversation", of("collector.rollout.context")),
    "history_length": Wire(3, of("collector.rollout.history_length")),
    "max_turns": Wire(7, of("collector.rollout.max_turns")),
    "max_prompt_length": Wire(333, of("collector.rollout.max_prompt_length")),
    "max_episode_tokens": Wire(177, of("collector.rollout.max_episode_tokens")),
    "max_completion_length": Wire(9, of("collector.rollout.max_completion_length")),
    "environment_timeout": Wire(7.5, of("collector.rollout.environment_timeout")),
    "num_generations": Wire(4, of("collector.num_generations")),
    "training_reward": Wire("environment", reward_sources, {"environment"}),
    "invalid_action_penalty": Wire(0.25, of("collector.rewards.invalid_action_penalty")),
    "reward_weights": Wire([0.5], of("collector.rewards.weights")),
    "chat_template_kwargs": Wire({"tone": "dry"}, lambda s: s.collector.renderer.template_kwargs["tone"], "dry"),
    "generation_tokens": Wire(4096, of("made.engine.engine._batch_tokens")),
    "cache_implementation": Wire("dynamic", of("made.engine.engine._cache_implementation")),
    "ds3_gather_for_generation": Wire(False, unwrapped("gather_deepspeed3_params")),
    "gradient_checkpointing_kwargs": Wire({"use_reentrant": False}, unwrapped("gradient_checkpointing_kwargs")),
    "temperature": Wire(0.7, all_scored_at, {0.7}),
    "top_p": Wire(0.9, of("played.sampling.top_p")),
    "top_k": Wire(40, of("played.sampling.top_k")),
    "min_p": Wire(0.01, of("played.sampling.min_p")),
    "generation_kwargs": Wire({"typical_p": 0.9}, of("played.sampling.extra")),
    "seed": Wire(7, lambda s: s.played["make"].seed if deal_seed(s) else None),
    # Guidance
    "max_evidence_items": Wire(5, of("construction._max_evidence_items")),
    "max_guidance_items": Wire(3, of("construction._max_guidance_items")),
    "max_guidance_tokens": Wire(99, room),
    "analyzer_context_chars": Wire(3456, of("construction._max_chars")),
    "analyzer_prompts": Wire("prompts", of("construction._prompts.extraction"), "Extract, then answer in json."),
    "analyzer_workers": Wire(2, of("guidance._max_workers")),
    "analyzer_time_budget": Wire(60.0, of("guidance._time_budget")),
    "analyzer_model": Wire("openai/tiny", of("analyzer.model")),
    "analyzer_api_base": Wire("http://localhost:9/v1", of("analyzer.api_base")),
    "analyzer_timeout": Wire(11.0, of("analyzer.timeout")),
    "analyzer_attempts": Wire(2, of("analyzer.attempts")),
    "analyzer_max_tokens": Wire(777, of("analyzer.max_output_tokens")),
    "analyzer_requests_per_minute": Wire(12, of("analyzer.requests_per_minute")),
    "analyzer_tokens_per_minute": Wire(13_000, of("analyzer.tokens_per_minute")),
    "analyzer_budget_usd": Wire(1.5, of("analyzer.budget_usd")),
    "analyzer_budget_tokens": Wire(140_000, of("analyzer.budget_tokens")),
    "analyzer_required": Wire(False, of("analyzer.required")),
    "analyzer_cache": Wire("no", of("analyzer.cache"), None),
    # Credit
    "shift_clip": Wire(1.25, of("rule.clip")),
    "shift_threshold": Wire(0.03, of("rule.threshold")),
    "score_temperature": Wire(0.6, of("rule.temperature")),
    "weight_range": Wire(0.3, of("rule.weight_range")),
    "weight_step_size": Wire(0.2, of("rule.step_size")),
    "scale_rewards": Wire("batch", lambda s: s.played["scaled_advantages"].args[2]),
    # Update
    "micro_batch_tokens": Wire(2222, micro_batch_bounds, {2222}),
    "pad_to_multiple_of": Wire(16, of("maker.passes.pad_to_multiple_of")),
    "mask_truncated_completions": Wire(True, of("played.plan_update.mask_truncated")),
    "max_nonfinite_steps": Wire(5, of("made._finite_steps.most_in_a_row")),
    "gradient_accumulation_steps": Wire(2, lambda s: s.played["make"].layout, LAYOUT),
    "steps_per_generation": Wire(4, lambda s: s.played["make"].layout, LAYOUT),
    "per_device_train_batch_size": Wire(2, lambda s: len(s.played["make"].args[0]), 2),
    "num_iterations": Wire(2, of("made._micro_steps_per_rollout"), 8),
    "cast_lm_head_to_fp32": Wire(True, lambda s: {s.maker.passes.in_fp32, *(one[1] for one in s.projections)}, {True}),
    "beta": Wire(0.07, with_loss("settings.has_reference"), True),
    "entropy_coef": Wire(0.013, with_loss("settings.has_entropy_bonus"), True),
    "epsilon": Wire(0.11, loss_is, True),
    "epsilon_high": Wire(0.33, loss_is, True),
    "delta": Wire(2.0, loss_is, True),
    "use_bias_correction_kl": Wire(True, loss_is, True),
    "sync_ref_model": Wire(True, lambda s: any(type(one).__name__ == "SyncRefModelCallback" and
                                              one.ref_model is s.made.ref_model
                                              for one in s.made.callback_handler.callbacks)),
    # Evaluation, records
    "eval_temperature": Wire(0.2, of("evaluated.sampling.temperature")),
    "eval_top_p": Wire(0.8, of("evaluated.sampling.top_p")),
    "eval_seed": Wire(11, of("evaluated.seed")),
    "num_generations_eval": Wire(3, of("evaluated.num_plays")),
    "per_device_eval_batch_size": Wire(5, of("evaluated.max_in_flight")),
    "save_trajectories": Wire("full", of("settings.records_with_prompt_ids"), True),
    "output_dir": Wire("run", lambda s: s.settings.records_folder.relative_to(s.made.args.output_dir).as_posix(),
                       "_trajectories"),
    "hub_push_trajectories": Wire(True, uploads),
    "hub_timeout": Wire(99.0, of("made._pushes.timeout")),
    "tracker_timeout": Wire(55.0, of("made._trackers._timeout")),
    "disable_tqdm": Wire(True, lambda s: s.made._progress(1, "episodes").disable),
}  # fmt: skip
"""Of one trainer, which has all of them."""

MAIN: dict[str, Any] = {name: wire.value for name, wire in WIRES.items()}

OTHER: Mapping[str, Wire] = {
    "guidance": Wire("nearest_success", lambda s: {s.construction.name, *s.settings.recipe.needs.blocks},
                     {"nearest_success"}),
    "allocation": Wire("token", lambda s: (type(s.rule).__name__, s.guidance._wanted.allocation),
                       ("TokenWeights", "token")),
    "environment_backend": Wire("process", lambda s: s.made.environment_pool._backends[None]),
    "padding_free": Wire(True, of("maker.passes.padding_free")),
    "score_during_rollout": Wire(True, of("maker.settings.scores_during_rollout")),
    "success_threshold": Wire(0.25, lambda s: s.made.environment_pool.probes[None].success_threshold),
    "use_vllm": Wire(True, engine_of, "vllm"),
}  # fmt: skip
"""Of a second one: they exclude something of the first."""

TAUGHT: Mapping[str, Wire] = {
    "method": Wire("opd", of("settings.recipe.name")),
    "method_options": Wire({"weight": 0.5}, of("settings.recipe.distill.weight"), 0.5),
    "teacher_model": Wire("a/teacher", of("played.teacher")),
}
"""Of a third one, with another method."""

ELSEWHERE: Mapping[str, str] = {
    "test_config.py": "loss_type hub_private_repo",
    "test_precision.py": "bf16 fp16 use_cpu",
    "test_examples.py": "generation_batch_size",
    "options/test_inherited.py": "max_tool_calling_iterations",
    "training/test_saving.py": "save_total_limit",
    "trainer/test_survival.py": "load_best_model_at_end num_train_epochs",
    "trainer/test_trainer.py": "accelerator_config log_completions",
    "trainer/test_adapters.py": "model_init_kwargs gradient_checkpointing",
    "reporting/test_hub.py": "push_to_hub hub_model_id hub_token",
    "reporting/test_trackio.py": "report_to trackio_space_id trackio_bucket_id trackio_static_space_id "
    "log_unique_prompts",
    "loss/test_importance.py": "vllm_importance_sampling_correction vllm_importance_sampling_mode "
    "vllm_importance_sampling_clip_max vllm_importance_sampling_clip_min",
    "generation/test_vllm_refusals.py": "vllm_mode vllm_server_base_url vllm_server_host vllm_server_port "
    "vllm_tensor_parallel_size",
    "generation/test_weight_transfer.py": "vllm_group_port",
    "generation/test_vllm_trainer.py": "vllm_server_timeout vllm_structured_outputs_regex",
    "generation/test_vllm_colocate_trainer.py": "vllm_gpu_memory_utilization vllm_max_model_length vllm_model_impl "
    "vllm_enable_sleep_mode",
}
"""File below `tests` -> the options whose effect it tests."""

THEIRS = frozenset(
    """
    max_steps learning_rate lr_scheduler_type lr_scheduler_kwargs warmup_steps optim optim_args weight_decay adam_beta1
    adam_beta2 adam_epsilon optim_target_modules max_grad_norm tf32 activation_checkpointing
    activation_checkpointing_kwargs use_liger_kernel liger_kernel_config torch_empty_cache_steps logging_strategy
    logging_steps logging_first_step log_on_each_node logging_nan_inf_filter log_level log_level_replica run_name
    project eval_strategy eval_steps eval_delay eval_on_start save_only_model save_strategy save_steps
    save_on_each_node enable_jit_checkpoint hub_strategy hub_always_push hub_revision metric_for_best_model
    greater_is_better restore_callback_states_from_checkpoint full_determinism parallelism_config
    dataloader_drop_last dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers
    dataloader_prefetch_factor dataloader_multiprocessing_context dataloader_in_order ddp_find_unused_parameters
    ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph ddp_backend ddp_timeout fsdp fsdp_config deepspeed debug
    skip_memory_metrics do_train do_eval resume_from_checkpoint local_rank trust_remote_code disable_dropout
    shuffle_dataset ref_model_mixup_alpha ref_model_sync_steps num_completions_to_print log_completions_hub_repo
    vllm_importance_sampling_cap
    """.split()  # noqa: SIM905 - a page of quotes
)
"""What TRL, transformers and accelerate read themselves."""

SEEN_ELSEWHERE = [name for names in ELSEWHERE.values() for name in names.split()]


@pytest.fixture(scope="module")
def main(tmp_path_factory):
    folder = tmp_path_factory.mktemp("main")
    (folder / "prompts").mkdir()
    (folder / "prompts" / "extraction.txt").write_text(WIRES["analyzer_prompts"].expected)
    values = {name: value for name, value in MAIN.items() if name != "output_dir"}
    values["analyzer_prompts"] = str(folder / "prompts")
    with pytest.MonkeyPatch.context() as patch:
        stages = make(folder / MAIN["output_dir"], patch, reward_funcs=[nothing], **values)
        play(stages, patch)
        compute_loss(stages)
        yield stages
        stages.made.close()


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    values = {name: wire.value for name, wire in OTHER.items() if name != "use_vllm"}
    made = tool_trainer(tmp_path_factory.mktemp("other"), **values)
    yield Stages(made, {}, [])
    made.close()


@pytest.fixture(scope="module")
def taught(tmp_path_factory):
    values = {name: wire.value for name, wire in TAUGHT.items()}
    loaded: dict[str, Any] = {}

    def load(name, tokenizer, *, device):
        loaded["teacher"] = name
        return tiny.model(seed=1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("taspo_trl.training.assembly.load_model", load)
        made, _ = scripted(tmp_path_factory.mktemp("taught"), **values)
        yield Stages(made, {}, [], loaded)
        made.close()


def check(wire: Wire, name: str, stages: Stages) -> None:
    default = FIELDS[name].default
    assert default is dataclasses.MISSING or wire.value != default, "a default shows nothing"
    assert wire.see(stages) == (wire.value if wire.expected is SAME else wire.expected)


@pytest.mark.parametrize("name", WIRES)
def test_option_reaches_its_stage(main, name):
    check(WIRES[name], name, main)


@pytest.mark.parametrize("name", OTHER)
def test_option_that_excludes_others_reaches_its_stage(other, name):
    check(OTHER[name], name, other)


@pytest.mark.parametrize("name", TAUGHT)
def test_option_of_a_method_reaches_its_recipe(taught, name):
    check(TAUGHT[name], name, taught)


def test_the_model_s_window_reaches_rollout_and_scoring(main):
    assert main.collector.rollout.model_window == 1024
    assert main.played["plan_pairs"].args[3] == main.settings.model_window == 1024


@pytest.mark.parametrize(
    "name", ["beta", "entropy_coef", "epsilon", "epsilon_high", "delta", "use_bias_correction_kl"]
)
def test_every_option_of_the_loss_moves_it(main, name):
    """Else its default would pass for its value."""
    default = MAIN["epsilon"] if name == "epsilon_high" else FIELDS[name].default
    moved = reference_loss(main.tokens, {**MAIN, name: default})
    assert abs(moved - main.loss) > 1e-3 * abs(main.loss)


def test_every_honoured_option_has_a_row():
    own = {name for name in TASPOConfig.__annotations__ if name in FIELDS}
    under_conditions = {name for name, rule in NO_EFFECT.items() if rule.unless}
    honoured = own | HONOURED | under_conditions
    rows_of = [*WIRES, *OTHER, *TAUGHT, *SEEN_ELSEWHERE, *THEIRS]
    assert sorted(honoured - set(rows_of)) == [], "say in a table of this file where these options are seen"
    assert sorted(set(rows_of) - honoured) == []
    assert len(rows_of) == len(set(rows_of)), "one row for each option"


def test_what_this_package_reads_is_not_left_to_others():
    """An option in `THEIRS` that a stage of ours reads needs a row."""
    package = Path(taspo_trl.__file__).parent
    rooms = ("evaluation", "generation", "guidance", "loss", "methods", "reporting", "training")
    files = [package / "trainer.py", *(path for room in rooms for path in (package / room).rglob("*.py"))]
    read = {name for file in files for name in re.findall(r"\bargs\.(\w+)", file.read_text(encoding="utf-8"))}
    # It loads the tokenizer as TRL loads the model, needs a length where there are no rows (trainer/test_trainer.py),
    # and decodes in step with all else that is to be the same to the bit.
    assert read & THEIRS == {"trust_remote_code", "max_steps", "full_determinism"}


@pytest.mark.parametrize("is_asked", [False, True])
def test_full_determinism_decodes_in_step(tmp_path, monkeypatch, is_asked):
    monkeypatch.setattr("transformers.trainer.enable_full_determinism", lambda seed: None)  # it holds for the process
    made = tiny.trainer(tmp_path, full_determinism=is_asked)
    assert made.engine.engine.is_stepped is not is_asked
    made.close()


@pytest.mark.parametrize(("file", "names"), ELSEWHERE.items())
def test_files_that_are_named_test_their_options(file, names):
    text = (TESTS / file).read_text(encoding="utf-8")
    assert [name for name in names.split() if not re.search(rf"\b{name}\b", text)] == []
