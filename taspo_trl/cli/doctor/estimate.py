"""What a recipe will take: tokens, memory and analyzer cost, from its limits or from a finished run's means.

By default every length is the largest that the recipe allows, every group has a contrast and every trajectory gets
guidance, so that a run takes no more than is said here, if the formulae of `workload.py` and `memory.py` hold.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...errors import ConfigurationError, TaspoError
from ...methods import recipe_for
from .memory import OPTIMIZERS, Adapters, MemoryEstimate, ModelShape, Precision, Setup, estimate_memory
from .recipe import Recipe
from .workload import BatchCounts, Plan, Workload, answered_tokens, count_batch, from_metrics, row_tokens


_CHARS_PER_TOKEN = 4
_DEFAULT_WINDOW = 4096
_LOG_ENTRIES = 10


@dataclass(frozen=True)
class Model:
    """The model's sizes, and what PEFT puts on it."""

    shape: ModelShape
    precision: Precision
    adapters: Adapters | None = None


@dataclass(frozen=True)
class Estimate:
    """Everything that is printed about a recipe."""

    work: Workload
    plan: Plan
    basis: Mapping[str, str]
    """Assumption -> its value and where it is from."""
    batch: BatchCounts
    batches: float | None
    """Rollout batches of the run; None where neither steps nor tasks are known."""
    memory: MemoryEstimate | None = None
    dollars: float | None = None
    """Analyzer cost of one rollout batch; None = not known."""
    device: str = "cuda"
    """What the recipe trains on: `"cuda"` or `"cpu"`."""

    @property
    def run(self) -> BatchCounts | None:
        """Counts of the whole run."""
        return None if self.batches is None else self.batch.times(self.batches)


def plan_of(recipe: Recipe, is_conversation: bool) -> Plan:
    """What the recipe decides. Its batch sizes count the episodes of all processes."""
    args = recipe.training
    per_rollout, per_step = args.steps_per_generation, args.gradient_accumulation_steps
    iterations = args.num_iterations
    # The policy moves while a batch is in use: then its log-probabilities must be kept from before.
    is_reused = per_rollout * iterations > per_step
    method = recipe_for(args)
    needs = method.needs
    return Plan(
        episodes=args.generation_batch_size,
        group_size=args.num_generations,
        processes=recipe.processes.count,
        optimizer_steps=max(1, per_rollout // per_step),
        micro_steps=min(per_rollout, per_step),
        iterations=iterations,
        batches_per_step=max(1, per_step // per_rollout),
        micro_batch_tokens=args.micro_batch_tokens,
        is_conversation=is_conversation,
        all_contribute=args.beta != 0.0
        or bool(getattr(args, "entropy_coef", 0.0))
        or needs.flat_groups
        or method.distill is not None,
        needs_old_logps=is_reused or (args.use_vllm and args.vllm_importance_sampling_correction),
        needs_ref_logps=args.beta != 0.0,
        guidance=args.guidance,
        asks_analyzer=args.analyzer_model is not None and method.asks_analyzer,
        branches=len(needs.blocks) or int(needs.plain_only),
        has_teacher=needs.teacher != "rollout" or method.distill is not None,
        scores_all=needs.flat_groups or method.distill is not None,
        alternatives=needs.alternatives,
        samples=needs.samples,
        continuations=needs.values,
    )


def batches_of(recipe: Recipe, num_tasks: int | None) -> float | None:
    """Rollout batches of the whole run, from `max_steps`, else from the epochs."""
    args = recipe.training
    if args.max_steps > 0:
        return args.max_steps * args.gradient_accumulation_steps / (args.steps_per_generation * args.num_iterations)
    if num_tasks is None:
        return None
    tasks_per_batch = args.generation_batch_size // args.num_generations
    return math.ceil(args.num_train_epochs * (num_tasks // tasks_per_batch))


def traits_of(recipe: Recipe) -> tuple[int | None, bool]:
    """(turns of an episode at most, whether one chat grows), as the recipe and the environment say."""
    from ...environments.base import traits_of as environment_traits
    from ...environments.tools import adapted
    from ..sources import environment_factory

    args = recipe.training
    try:
        factory = environment_factory(recipe.task.environment, recipe.environment_kwargs)
        probe = adapted(factory, args.success_threshold)[1]
    except (TaspoError, ImportError, TypeError, ValueError):  # what is wrong with it is among the recipe's findings
        return args.max_turns, args.context == "conversation"
    traits = environment_traits(probe)
    probe.close()
    return args.max_turns or traits.max_turns, (args.context or traits.context) == "conversation"


def workload_of(recipe: Recipe, turns: float | None, is_conversation: bool) -> tuple[Workload, dict[str, str]]:
    """(the most that the recipe's limits allow, assumption -> where it is from)."""
    args = recipe.training
    window = getattr(recipe.config, "max_position_embeddings", None)
    prompt, where = args.max_prompt_length, "`max_prompt_length`"
    if prompt is None:
        prompt = (window or _DEFAULT_WINDOW) - args.max_completion_length
        where = "the model's window less a reply" if window else f"a window of {_DEFAULT_WINDOW:,} is assumed"
    reply = args.max_completion_length
    basis = {}
    if turns is None:
        turns = 30
        basis["turns of an episode"] = "30: neither recipe nor environment says"
    else:
        basis["turns of an episode"] = f"{turns:g}: `max_turns` of recipe or environment"
    basis["tokens of a prompt"] = f"{prompt:,}: {where}"
    basis["tokens of a reply"] = f"{reply:,}: `max_completion_length`"
    mean = float(prompt)
    if is_conversation:  # it ends with the longest prompt, and begins with nearly nothing
        mean = prompt / 2
        basis["tokens of a prompt"] = f"{prompt:,} at an episode's end, half as many on average: {where}"
    work = Workload(
        turns=float(turns),
        prompt_tokens=mean,
        reply_tokens=float(reply),
        first_prompt_tokens=0.0 if is_conversation else mean,
        guidance_tokens=float(args.max_guidance_tokens),
    )
    basis["groups with a contrast"] = "all"
    basis["trajectories with guidance"] = f"all, with blocks of {args.max_guidance_tokens:,} tokens"
    if args.analyzer_model is not None and "aligned" in args.guidance:
        work = replace(work, **analyzer_tokens(args))
        asked, answered = work.analyzer_prompt_tokens, work.analyzer_reply_tokens
        basis["tokens of an analyzer call"] = (
            f"{asked:,.0f} + {answered:,.0f}: instructions, `analyzer_context_chars` and evidence at "
            f"{_CHARS_PER_TOKEN} characters a token, and `analyzer_max_tokens`; no retries, nothing from the cache"
        )
    return work, basis


def analyzer_tokens(args: Any) -> dict[str, float]:
    """Tokens that one analyzer call reads and writes at most."""
    from ...analyzer.prompts import load_prompts
    from ...analyzer.schema import MAX_STATEMENT

    prompts = load_prompts(args.analyzer_prompts)
    evidence = MAX_STATEMENT * args.max_evidence_items  # which an alignment request holds besides the record
    instructions = max(len(prompts.extraction), len(prompts.alignment) + evidence)
    return {
        "analyzer_prompt_tokens": (instructions + args.analyzer_context_chars) / _CHARS_PER_TOKEN,
        "analyzer_reply_tokens": float(args.analyzer_max_tokens),
    }


def logged_means(folder: str | Path) -> dict[str, float]:
    """Means over the last log entries of a run: its newest `trainer_state.json`, else a quickstart's `metrics.json`.

    Raises:
        ConfigurationError: there is neither in the folder or its checkpoints, or it logged no rollout.
    """
    names = ("trainer_state.json", "metrics.json")
    found = (sorted(Path(folder).glob(f"**/{name}"), key=lambda path: path.stat().st_mtime) for name in names)
    files = next((some for some in found if some), [])
    if not files:
        raise ConfigurationError(
            f"There is no `trainer_state.json` in {folder} or its checkpoints, and no `metrics.json`. Name the "
            "`output_dir` of a finished `taspo train`, or of an interrupted one that saved a checkpoint."
        )
    try:
        content = json.loads(files[-1].read_text(encoding="utf-8"))
        history = content if isinstance(content, list) else content["log_history"]
        entries = [entry for entry in history if "turns/mean" in entry][-_LOG_ENTRIES:]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"{files[-1]} cannot be read: {error}.") from error
    if not entries:
        raise ConfigurationError(
            f"{files[-1]} logs no rollout (no `turns/mean`): the run ended before its first log. Name another run, or "
            "log earlier with `logging_steps`."
        )
    logged = {name for entry in entries for name, value in entry.items() if isinstance(value, int | float)}
    return {name: math.fsum(float(e.get(name, 0.0)) for e in entries) / len(entries) for name in logged}


def with_run(work: Workload, basis: Mapping[str, str], folder: str | Path) -> tuple[Workload, dict[str, str]]:
    """The assumptions with what a finished run measured in their place."""
    measured = from_metrics(logged_means(folder), work)
    where = f"mean of the last entries in {folder}"
    new = {
        "turns of an episode": f"{measured.turns:.1f}: {where}",
        "tokens of a prompt": f"{measured.prompt_tokens:.0f}: {where}",
        "tokens of a reply": f"{measured.reply_tokens:.0f}: {where}",
        "groups with a contrast": f"{measured.mixed_groups:.0%}: {where}",
        "trajectories with guidance": f"{measured.coverage:.0%}, blocks of {measured.guidance_tokens:.0f}: {where}",
    }
    if measured.analyzer_prompt_tokens != work.analyzer_prompt_tokens:
        asked, answered = measured.analyzer_prompt_tokens or 0.0, measured.analyzer_reply_tokens or 0.0
        new["tokens of an analyzer call"] = f"{asked:.0f} + {answered:.0f}: {where}"
    return measured, {**basis, **new}


def model_of(recipe: Recipe) -> Model | None:
    """The model's sizes; None where its configuration is not known."""
    from trl import get_peft_config

    from .model_shape import adapter_weight, adapters_on, meta_model, precision_of, shape_of

    if recipe.config is None:
        return None
    model = meta_model(recipe.config)
    shape = shape_of(model)
    precision = precision_of(recipe.training, recipe.model, recipe.config)
    peft_config = get_peft_config(recipe.model)
    if peft_config is None:
        return Model(shape, precision)
    weight = adapter_weight(precision, recipe.processes.sharding)
    return Model(shape, precision, adapters_on(model, peft_config, weight))


def setup_of(recipe: Recipe, model: Model, work: Workload, plan: Plan) -> Setup:
    """What decides memory."""
    args = recipe.training
    row = row_tokens(work, plan.is_conversation)
    tokens = max(float(args.micro_batch_tokens), row)
    values, value_bytes = OPTIMIZERS.get(
        str(args.optim.value if hasattr(args.optim, "value") else args.optim), (2.0, None)
    )
    return Setup(
        precision=model.precision,
        adapters=model.adapters,
        has_reference=args.beta != 0.0 and model.adapters is None,
        has_teacher_copy=recipe_for(args).needs.teacher in ("stale", "ema", "frozen"),
        optimizer_values=values,
        optimizer_bytes=value_bytes,
        is_checkpointed=bool(args.gradient_checkpointing),
        attention=attention_of(recipe),
        padding_free=is_padding_free(recipe),
        micro_batch_tokens=tokens,
        row_tokens=row,
        projected_tokens=tokens * min(1.0, answered_tokens(work, plan.is_conversation) / row),
        generation_rows=concurrency_of(recipe, work, plan),
        generation_tokens=work.prompt_tokens + work.reply_tokens,
        prompt_tokens=work.prompt_tokens,
        processes=plan.processes,
        sharding=recipe.processes.sharding,
    )


def attention_of(recipe: Recipe) -> str:
    """Which implementation of attention the recipe trains with."""
    asked = (recipe.training.model_init_kwargs or {}).get("attn_implementation")
    return str(asked or recipe.model.attn_implementation or "sdpa")


def is_padding_free(recipe: Recipe) -> bool:
    """Whether rows stand one behind the other, as far as the recipe tells; the model may refuse it."""
    from transformers.utils.generic import is_flash_attention_requested

    asked = recipe.training.padding_free
    if asked is None:
        return is_flash_attention_requested(requested_attention_implementation=attention_of(recipe))
    return bool(asked)


def concurrency_of(recipe: Recipe, work: Workload, plan: Plan) -> float:
    """Rows that this process decodes at a time; 0 with vLLM, which has memory of its own."""
    if recipe.training.use_vllm:
        return 0.0
    fitting = recipe.training.generation_tokens // (work.prompt_tokens + work.reply_tokens)
    return max(1.0, min(plan.episodes / plan.processes, fitting))


def estimate(recipe: Recipe, run_folder: str | None = None, given: Mapping[str, float] | None = None) -> Estimate:
    """The estimate of a checked recipe.

    Args:
        recipe (`Recipe`):
            After `check_recipe`.
        run_folder (`str`, *optional*):
            A finished run whose means replace the limits.
        given (`Mapping[str, float]`, *optional*):
            Fields of [`~taspo_trl.cli.doctor.workload.Workload`] that win over both.
    """
    turns, is_conversation = traits_of(recipe)
    work, basis = workload_of(recipe, turns, is_conversation)
    if run_folder is not None:
        work, basis = with_run(work, basis, run_folder)
    for name, value in (given or {}).items():
        work = replace(work, **{name: value})
        basis[_NAMES[name]] = f"{value:g}: given"
    if is_padding_free(recipe):
        basis["rows of a forward"] = f"one behind the other, without padding, with `{attention_of(recipe)}` attention"
    plan = plan_of(recipe, is_conversation)
    counts = count_batch(work, plan)
    model = model_of(recipe)
    return Estimate(
        work=work,
        plan=plan,
        basis=basis,
        batch=counts,
        batches=batches_of(recipe, None if recipe.dataset is None else len(recipe.dataset)),
        memory=None if model is None else estimate_memory(model.shape, setup_of(recipe, model, work, plan)),
        dollars=_dollars(recipe, counts),
        device="cpu" if recipe.training.use_cpu else "cuda",
    )


_NAMES = {
    "turns": "turns of an episode",
    "prompt_tokens": "tokens of a prompt",
    "reply_tokens": "tokens of a reply",
}


def _dollars(recipe: Recipe, counts: BatchCounts) -> float | None:
    from .prices import analyzer_cost

    if not counts.analyzer_calls:
        return 0.0
    return analyzer_cost(recipe.training.analyzer_model, counts.analyzer_prompt_tokens, counts.analyzer_reply_tokens)
