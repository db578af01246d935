"""Collects what a model card says from the parts of a run: arguments, model, data, logs, analyzer, evaluations.

No process waits for another in here, so that one process alone may call it.
"""

from __future__ import annotations

import math
import os
import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from accelerate.utils import is_peft_model
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from trl import GRPOTrainer
from trl.trainer.utils import get_comet_experiment_url, get_config_model_id, get_trackio_space_url

from ..analyzer.base import Analyzer
from ..analyzer.extractive import ExtractiveAnalyzer
from ..environments import ENVIRONMENTS
from ..errors import ConfigurationError
from ..evaluation.results import EvaluationResult
from ..files import spared, write_text
from ..methods import METHODS, Method, Recipe
from ..redaction import Secret, redacted
from ..rollout.tasks import split_names
from ..version import __version__
from .model_card import TRL_CITATION, AnalyzerUse, CardEvaluation, CardFacts, Setting, TaskSet, model_card


@dataclass(frozen=True)
class RunParts:
    """What a trainer holds of its run.

    Args:
        args ([`~taspo_trl.TASPOConfig`]), state ([`~transformers.TrainerState`]):
            The configuration and the progress.
        recipe (`Recipe`):
            The method.
        model ([`~transformers.PreTrainedModel`] or [`~peft.PeftModel`]):
            The policy, unwrapped.
        analyzer (`Analyzer`):
            Who writes guidance.
        environments (`Mapping[str | None, str]`):
            Key of a task's row -> name of its environment.
        traits (`Mapping[str | None, Traits]`):
            What the environments declare of themselves.
        train_dataset:
            The tasks; a column `split` names their splits.
        split_names (`Mapping[str, str]`):
            `"train"` or the prefix of an evaluation -> split, where the data does not say.
        weights_step (`int`):
            The optimizer step whose weights the model has.
        repo_id (`str`, *optional*):
            Where the model is pushed to.
    """

    args: Any
    recipe: Recipe
    state: Any
    model: Any
    analyzer: Analyzer
    environments: Mapping[str | None, str]
    traits: Mapping[str | None, Any]
    train_dataset: Any
    split_names: Mapping[str, str]
    weights_step: int
    repo_id: str | None = None
    paper: Mapping[str, str] = field(default_factory=dict)
    """Title, id and citation of the method's paper."""


def write_model_card(
    folder: str | os.PathLike,
    parts: RunParts,
    *,
    tags: Iterable[str],
    model_name: str | None = None,
    dataset_name: str | None = None,
    license: str | None = None,
) -> None:
    """Write `folder/README.md`; see [`~taspo_trl.TASPOTrainer.create_model_card`]. No key of the run is in it."""
    facts = gather_facts(
        parts,
        model_name=model_name,
        dataset_name=dataset_name,
        tags=tags,
        license=license,
        paper=parts.paper,
        citations=citations_of(METHODS[parts.args.method], parts.paper["citation"]),
    )
    text = redacted(str(model_card(facts)), Secret(parts.args.hub_token or ""))
    with spared("model cards", Path(parts.args.output_dir, "README.md")):
        write_text(Path(folder, "README.md"), text)


def citations_of(method: Method, taspo: str) -> dict[str, str]:
    """What a card cites: the method's papers, GRPO, on which all stand, and TRL."""
    own = {paper.name: paper.bibtex for paper in method.papers}
    if method.name == "grpo" or "TASPO" in own:
        own = {"TASPO": taspo, **{name: entry for name, entry in own.items() if name != "TASPO"}}
    return own | {"GRPO": GRPOTrainer._paper["citation"], "TRL": TRL_CITATION}


def gather_facts(
    parts: RunParts,
    *,
    model_name: str | None,
    dataset_name: str | None,
    tags: Iterable[str],
    license: str | None,
    paper: Mapping[str, str],
    citations: Mapping[str, str],
) -> CardFacts:
    """The facts of a card. What cannot be known from `parts` is what the caller says, or absent."""
    args, model, method = parts.args, parts.model, METHODS[parts.args.method]
    is_adapter = is_peft_model(model)
    coverages = logged_coverage(parts.state.log_history) if args.guidance != "none" else []
    runs = run_addresses()
    marks = [f"trackio:{runs['Trackio']}"] if "Trackio" in runs else []
    marks += ["hf_jobs"] if "JOB_ID" in os.environ else []
    return CardFacts(
        model_name=model_name or Path(args.hub_model_id or os.path.abspath(args.output_dir)).name,
        repo_id=parts.repo_id,
        base_model=hub_name(get_config_model_id(model.config)),
        is_adapter=is_adapter,
        tuning=tuning_of(model),
        adapter=adapter_settings(model) if is_adapter else (),
        task_sets=task_sets(parts.train_dataset, parts.environments, parts.split_names.get("train")),
        num_steps=parts.state.global_step,
        model_step=parts.weights_step,
        group_size=args.num_generations,
        tasks_per_batch=args.generation_batch_size // args.num_generations,
        guidance=args.guidance,
        method=method.name,
        method_line=method.line,
        papers={paper.title or paper.name: paper.address for paper in method.papers},
        coverage=math.fsum(coverages) / len(coverages) if coverages else None,
        coverage_entries=len(coverages),
        analyzer=analyzer_use(parts.analyzer) if parts.recipe.asks_analyzer else None,
        settings=settings_of(args, list(parts.traits.values())),
        evaluations=logged_evaluations(
            parts.state.log_history, Path(args.output_dir) / "_evaluations", parts.split_names
        ),
        action_tags=tuple(dict.fromkeys(tag for traits in parts.traits.values() for tag in traits.action_tags)),
        versions=versions(is_adapter, args.use_vllm, args.analyzer_model is not None),
        tags=tuple(dict.fromkeys(["generated_from_trainer", *sorted({*tags, *marks})])),
        dataset_name=hub_name(dataset_name),
        license=license,
        runs=runs,
        paper_title=paper["title"],
        paper_id=paper["id"],
        citations=citations,
    )


# ---- the model ------------------------------------------------------------------------------------------------------


def hub_name(name: str | None) -> str | None:
    """`name` if it can be a repository of the Hub; None for folders and whatever else a config may hold."""
    if not name or os.path.exists(name):
        return None
    try:
        validate_repo_id(name)
    except HFValidationError:
        return None
    return name


def tuning_of(model: Any) -> str:
    """`full fine-tuning`, or the kind of adapter, with the quantisation of its base."""
    if not is_peft_model(model):
        return "full fine-tuning"
    kind = _peft_config(model).peft_type
    name = "LoRA" if str(getattr(kind, "value", kind)) == "LORA" else str(getattr(kind, "value", kind))
    quantization = getattr(model.get_base_model().config, "quantization_config", None)
    if quantization is None:
        return name
    options = quantization if isinstance(quantization, Mapping) else quantization.to_dict()
    if name == "LoRA" and options.get("load_in_4bit"):
        return "QLoRA (base quantised to 4 bits in training)"
    method = options.get("quant_method", "unknown method")
    return f"{name} (base quantised in training: {getattr(method, 'value', method)})"


def adapter_settings(model: Any) -> tuple[Setting, ...]:
    """Rank, scale, dropout and targets of a LoRA adapter; nothing of other kinds."""
    options = _peft_config(model).to_dict()
    targets = options.get("target_modules")
    if isinstance(targets, list | tuple | set):
        targets = ", ".join(sorted({name.rpartition(".")[2] for name in targets}))
    shown = {
        "Rank": options.get("r"),
        "Alpha": options.get("lora_alpha"),
        "Dropout": options.get("lora_dropout"),
        "Target modules": targets,
    }
    return tuple(Setting(f"LoRA {name.lower()}", str(value)) for name, value in shown.items() if value is not None)


def _peft_config(model: Any) -> Any:
    return model.peft_config.get("default") or next(iter(model.peft_config.values()))


# ---- the data -------------------------------------------------------------------------------------------------------


def environment_name(factory: Any, probe: Any) -> str:
    """The name on the command line of a built-in environment, else the name of its class."""
    made_by = getattr(factory, "func", factory)  # a partial
    cls = made_by if isinstance(made_by, type) else type(probe)
    built_in = {class_name: name for name, class_name in ENVIRONMENTS.items()}
    is_ours = cls.__module__.startswith("taspo_trl.environments.")
    return built_in.get(cls.__name__, cls.__name__) if is_ours else cls.__name__


def task_sets(
    dataset: Any, environments: Mapping[str | None, str], split_name: str | None = None
) -> tuple[TaskSet, ...]:
    """The tasks of each environment, with their splits."""
    if list(environments) == [None]:
        splits = splits_of(dataset) or ((split_name,) if split_name else ())
        size = len(dataset) if hasattr(dataset, "__len__") else None
        return (TaskSet(environments[None], splits, size),)
    if not hasattr(dataset, "__len__") or "environment" not in dataset.column_names:
        return tuple(TaskSet(name) for name in environments.values())
    keys = list(dataset["environment"])
    rows = list(zip(keys, dataset["split"], strict=True)) if "split" in dataset.column_names else []
    counts = Counter(keys)
    return tuple(
        TaskSet(name, split_names(split for key, split in rows if key == one), counts[one])
        for one, name in environments.items()
        if counts[one]
    )


def splits_of(dataset: Any) -> tuple[str, ...]:
    """The splits that a data set's column `split` names, else that of the data set itself."""
    if "split" in (getattr(dataset, "column_names", None) or ()) and hasattr(dataset, "unique"):
        return split_names(dataset.unique("split"))
    split = getattr(dataset, "split", None)
    return () if split is None else split_names([str(split)])


# ---- what happened --------------------------------------------------------------------------------------------------


def logged_coverage(history: Sequence[Mapping[str, Any]]) -> list[float]:
    """The guidance coverage of each log entry in which somebody wanted guidance: some group had a contrast, and the
    method's schedule was not at 0."""
    values = [
        entry["guidance/coverage"]
        for entry in history
        if "guidance/coverage" in entry
        and entry.get("frac_reward_zero_std", 0.0) < 1.0
        and not entry.get("guidance/none/zero_share")
    ]
    return [value for value in values if math.isfinite(value)]


def analyzer_use(analyzer: Analyzer) -> AnalyzerUse:
    """What the ledger of the analyzer's run says; an analyzer without one is only named."""
    if isinstance(analyzer, ExtractiveAnalyzer):
        return AnalyzerUse(analyzer.name, is_embedded=True)
    provider, slash, rest = analyzer.name.partition("/")
    is_path = rest.startswith(("/", "~", ".")) or os.path.exists(rest)  # what a server calls a model from a folder
    name = f"{provider}/(a local model)" if slash and is_path else analyzer.name
    totals = getattr(analyzer, "run_totals", None)
    if totals is None:
        return AnalyzerUse(name)
    has_counts = totals.tokens > 0  # servers may leave out usage
    return AnalyzerUse(
        name,
        calls=totals.calls,
        failed_calls=sum(totals.errors.values()),
        prompt_tokens=totals.prompt_tokens if has_counts else None,
        completion_tokens=totals.completion_tokens if has_counts else None,
        cost_usd=totals.cost_usd,
    )


def logged_evaluations(
    history: Sequence[Mapping[str, Any]], folder: Path, names: Mapping[str, str]
) -> tuple[CardEvaluation, ...]:
    """The first and the last evaluation under each name that this run logged and whose result is there.

    One of before the training is the first of its name: `train` begins a new log, but leaves its file, while those of
    earlier runs are set aside.
    """
    steps: dict[str, list[int]] = {}
    for entry in history:
        for key in entry:
            if key.endswith("_success_low"):
                steps.setdefault(key.removesuffix("_success_low"), []).append(int(entry["step"]))
    found = []
    for name, logged in steps.items():
        is_before = logged[0] > 0 and (folder / f"{name}_000000.json").exists()
        for step in dict.fromkeys((0 if is_before else logged[0], logged[-1])):
            path = folder / f"{name}_{step:06d}.json"
            try:
                result = EvaluationResult.load(path)
            except (OSError, ConfigurationError):  # removed, or of another version: a card can do without
                continue
            found.append(_card_evaluation(name, step, result, names.get(name)))
    return tuple(found)


def _card_evaluation(name: str, step: int, result: EvaluationResult, split_name: str | None) -> CardEvaluation:
    said = result.settings
    plays = said.get("num_plays", 1)
    return CardEvaluation(
        name=name,
        step=said.get("weights_step", step),
        overall=result.overall(),
        families=result.families(),
        splits=split_names(said.get("splits") or ()) or ((split_name,) if split_name else ()),
        num_tasks=said.get("num_tasks"),
        num_failed=len(result.plays) - len(result.usable),
        sampling=f"temperature {said['temperature']:g}, top-p {said['top_p']:g}, seed {said['seed']}, "
        f"{plays} play{'s' if plays > 1 else ''} of each task",
    )


# ---- options and versions -------------------------------------------------------------------------------------------


_OPTIONS = (
    ("learning_rate", ""),
    ("lr_scheduler_type", ""),
    ("warmup_steps", ""),
    ("weight_decay", ""),
    ("max_grad_norm", ""),
    ("epsilon", "ε"),
    ("epsilon_high", ""),
    ("delta", "δ (dual clip)"),
    ("beta", "β (KL)"),
    ("entropy_coef", ""),
    ("num_iterations", "μ"),
    ("scale_rewards", ""),
    ("training_reward", ""),
    ("invalid_action_penalty", ""),
    ("temperature", ""),
    ("top_p", ""),
    ("context", ""),
    ("history_length", ""),
    ("max_turns", ""),
    ("max_prompt_length", ""),
    ("max_completion_length", ""),
    ("seed", ""),
)
_CREDIT_OPTIONS = (
    ("allocation", ""),
    ("shift_clip", "c"),
    ("shift_threshold", "κ"),
    ("score_temperature", "τ"),
    ("weight_range", "ε_w"),
    ("weight_step_size", "η"),
)
_EVIDENCE_OPTIONS = (("max_evidence_items", ""), ("max_guidance_items", "G"), ("analyzer_context_chars", "C"))
_GUIDANCE_OPTIONS = (("max_guidance_tokens", "B_PI"),)


def settings_of(args: Any, traits: Sequence[Any]) -> tuple[Setting, ...]:
    """The main options with the symbols of the paper; what an environment decides is what it declares."""
    method = METHODS[args.method]
    options = _OPTIONS + (_CREDIT_OPTIONS if method.fields else ())
    if "aligned" in args.guidance.split("+"):
        options += _EVIDENCE_OPTIONS
    if args.guidance != "none":
        options += _GUIDANCE_OPTIONS
    steps = max(1, args.steps_per_generation // args.gradient_accumulation_steps)
    made = [
        Setting("optimizer steps per rollout batch", str(steps * args.num_iterations)),
        Setting("precision", "bf16" if args.bf16 else "fp16" if args.fp16 else "fp32"),
    ]
    for name, symbol in options:
        value = getattr(args, name)
        if value is None and name == "weight_step_size":
            value = args.weight_range / 2
        if value is None:
            declared = {getattr(one, name, None) for one in traits}
            value = declared.pop() if len(declared) == 1 else None
        if value is not None:
            made.append(Setting(name, _shown(value), symbol))
    chosen = method.options | args.method_options
    return (*made, *(Setting(f"method_options: {name}", _shown(value)) for name, value in chosen.items()))


def _shown(value: Any) -> str:
    value = getattr(value, "value", value)  # transformers keeps some options as enums
    return f"{value:g}" if isinstance(value, float) else str(value)


def versions(has_adapter: bool, has_vllm: bool, has_litellm: bool) -> dict[str, str]:
    """The packages that took part."""
    names = ["trl", "transformers", "torch", "accelerate", "datasets", "tokenizers"]
    names += ["peft"] * has_adapter + ["vllm"] * has_vllm + ["litellm"] * has_litellm
    found = {"taspo_trl": __version__}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # vLLM may be another machine's
            continue
    return found | {"Python": platform.python_version()}


def run_addresses() -> dict[str, str]:
    """Where trackers show the run, as TRL's cards link it."""
    from transformers.integrations import is_wandb_available

    found = {"Trackio": get_trackio_space_url(), "Comet": get_comet_experiment_url()}
    if is_wandb_available():
        import wandb

        found["Weights & Biases"] = wandb.run.url if wandb.run is not None else None
    return {name: address for name, address in found.items() if address}
