"""A recipe as `taspo train` would read it, and whether what it names is there: model, extras, tasks."""

from __future__ import annotations

import functools
import itertools
import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from ...errors import ConfigurationError, TaspoError
from .findings import Finding, Status, TookTooLong, one_line, within
from .packages import missing_of


_GROUP = "recipe"
_EXTRAS = {"alfworld": "alfworld", "webshop": "webshop", "search_qa": "search"}
_DATASET_SECONDS = 60.0
_HEADER = re.compile(r"--num_processes[ =](\d+)|\b(\d+) (?:GPUs|processes)\b")


@dataclass(frozen=True)
class Processes:
    """How many processes train, and what they share."""

    count: int = 1
    sharding: str = "none"
    """none, ddp, zero2, zero3 or fsdp2."""

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ConfigurationError(f"`--processes` must be at least 1, got {self.count}.")


@dataclass
class Recipe:
    """What was parsed, and what was found on the way."""

    task: Any
    training: Any
    """`per_device_train_batch_size` and `generation_batch_size` count the episodes of all processes."""
    model: Any
    processes: Processes
    findings: list[Finding] = field(default_factory=list)
    config: Any = None
    """The model's configuration; None where it could not be read."""
    dataset: Any = None

    @property
    def environment_kwargs(self) -> dict[str, Any]:
        from ..sources import json_arguments

        return json_arguments(self.task.environment_kwargs, "environment_kwargs")


def processes_of(count: int | None, accelerate_file: str | os.PathLike | None) -> Processes:
    """A number, else an `accelerate` configuration, else the environment of a launched process."""
    if accelerate_file is None:
        found = Processes(int(os.environ.get("WORLD_SIZE", 1)))
    else:
        found = read_accelerate(accelerate_file)
    number = found.count if count is None else count
    return Processes(number, "ddp" if found.sharding == "none" and number > 1 else found.sharding)


def read_accelerate(path: str | os.PathLike) -> Processes:
    """Processes and sharding of an `accelerate` configuration file."""
    import yaml

    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        kind = str(content.get("distributed_type", "NO")).upper()
        count = int(content.get("num_processes") or 1)
    except (OSError, yaml.YAMLError, AttributeError, TypeError, ValueError) as error:
        raise ConfigurationError(f"{path} is no readable `accelerate` configuration: {one_line(error)}.") from error
    if kind == "FSDP":
        return Processes(count, "fsdp2")
    if kind == "DEEPSPEED":
        stage = (content.get("deepspeed_config") or {}).get("zero_stage", 2)
        return Processes(count, {3: "zero3", 0: "ddp"}.get(int(stage), "zero2"))
    return Processes(count, "ddp" if count > 1 else "none")


def header_processes(arguments: Sequence[str]) -> int:
    """How many processes the comments at the top of the `--config` file speak of; 1 where they do not."""
    path = _recipe_path(arguments)
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines() if path else []
    except (OSError, UnicodeDecodeError):
        return 1  # the parser tells what is wrong with it
    header = "\n".join(itertools.takewhile(lambda line: not line.strip() or line.startswith("#"), lines))
    return max((int(found[1] or found[2]) for found in _HEADER.finditer(header)), default=1)


def processes_findings(arguments: Sequence[str], processes: Processes) -> list[Finding]:
    """A warning where a recipe is looked at as for one process but says that it was written for several."""
    meant = header_processes(arguments)
    if processes.count > 1 or meant == 1:
        return []
    detail = f"the recipe's first lines speak of {meant}; what follows is for 1, with a batch {meant} times smaller"
    remedy = f"Add `--processes {meant}`, or `--accelerate FILE` with your configuration."
    return [Finding(_GROUP, "processes", Status.WARNING, detail, remedy)]


def read_recipe(arguments: Sequence[str], processes: Processes) -> tuple[Recipe | None, list[Finding]]:
    """Parse what `taspo train` would get. (None, why) when it would refuse.

    The global batch is parsed as one process's, so that what has to divide it is checked as in the launched run.
    """
    from ..train import parse

    widened = [*arguments, *_global_batch(arguments, processes.count)]
    notes: list[Finding] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UserWarning)
        try:
            task, training, model = parse(widened)
        except ConfigurationError as error:
            if "bf16" not in str(error) and "fp16" not in str(error):
                return None, [_refusal(error, processes)]
            remedy = (
                "Train on a GPU that has it; here only `bf16: false` (and `use_cpu: true` without a GPU) would start."
            )
            notes.append(Finding(_GROUP, "precision", Status.FAILURE, one_line(error), remedy))
            try:
                task, training, model = parse([*widened, "--use_cpu", "true"])
            except ConfigurationError as other:
                return None, [*notes, _refusal(other, processes)]
    texts = dict.fromkeys(one_line(one.message, 600) for one in caught if one.category is UserWarning)  # type: ignore[arg-type]
    notes += [Finding(_GROUP, "options", Status.WARNING, text) for text in texts]
    if not any(one.name == "options" for one in notes):
        notes.insert(0, Finding(_GROUP, "options", Status.OK, "`taspo train` takes them"))
    return Recipe(task, training, model, processes, notes), notes


def _refusal(error: ConfigurationError, processes: Processes) -> Finding:
    """What `taspo train` would say; a batch that is too small for one process may be meant for several."""
    is_batch = processes.count == 1 and "num_generations" in str(error) and "batch" in str(error)
    remedy = "Is it for several processes? Then say so: `--processes N`." if is_batch else ""
    return Finding(_GROUP, "options", Status.FAILURE, one_line(error, 800), remedy)


def _global_batch(arguments: Sequence[str], processes: int) -> list[str]:
    if processes == 1:
        return []
    local = given(arguments, "per_device_train_batch_size")
    return ["--per_device_train_batch_size", str(int(local if local is not None else 8) * processes)]


def given(arguments: Sequence[str], name: str) -> Any:
    """The value of an option as flags or the `--config` file give it; None where neither does."""
    value = None
    for one, after in pairwise([*arguments, ""]):
        flag, has_value, text = one.partition("=")
        if flag.startswith("--") and flag[2:].replace("-", "_") == name:
            value = text if has_value else after
    return value if value is not None else recipe_file(arguments).get(name)


def recipe_file(arguments: Sequence[str]) -> Mapping[str, Any]:
    """The content of the `--config` file; empty where there is none that can be read."""
    path = _recipe_path(arguments)
    return _yaml(path) if path else {}


def _recipe_path(arguments: Sequence[str]) -> str:
    for one, after in pairwise([*arguments, ""]):
        if one == "--config" or one.startswith("--config="):
            return one.partition("=")[2] or after
    return ""


def _yaml(path: str) -> Mapping[str, Any]:
    import yaml

    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError):
        return {}  # the parser tells what is wrong with it
    return content if isinstance(content, Mapping) else {}


def check_recipe(recipe: Recipe) -> list[Finding]:
    """Look at everything that the recipe names; fills in its `config` and `dataset`."""
    found = [*_extras(recipe), *_model(recipe), *_dataset(recipe), *_combinations(recipe)]
    recipe.findings += found
    return found


def _extras(recipe: Recipe) -> list[Finding]:
    """The extras without which this recipe cannot start."""
    wanted = {}
    if extra := _EXTRAS.get(recipe.task.environment):
        wanted[extra] = f"environment `{recipe.task.environment}`"
    if recipe.training.use_vllm and recipe.training.vllm_mode == "colocate":
        wanted["vllm"] = "`vllm_mode: colocate`"
    if recipe.model.load_in_4bit or recipe.model.load_in_8bit:
        wanted["quantization"] = "a quantised base"
    found = []
    for extra, reason in wanted.items():
        problems = missing_of(extra)
        if problems:
            command = f'pip install -e ".[{extra}]"'
            found.append(Finding(_GROUP, extra, Status.FAILURE, f"{reason} needs it: {'; '.join(problems)}", command))
    return found


def _model(recipe: Recipe) -> list[Finding]:
    from ...training.model_folder import check_model_folder
    from .model_shape import PUBLISHED, load_config

    name = recipe.model.model_name_or_path
    if not name:
        remedy = "Set `model_name_or_path`: a model id or a folder."
        return [Finding(_GROUP, "model", Status.FAILURE, "`model_name_or_path` is missing", remedy)]
    try:
        check_model_folder(name)
    except ConfigurationError as error:
        return [Finding(_GROUP, "model", Status.FAILURE, one_line(error))]
    remote_code = bool(recipe.training.trust_remote_code)
    try:
        recipe.config = load_config(name, revision=recipe.model.model_revision, trust_remote_code=remote_code)
    except ConfigurationError as error:
        status = Status.FAILURE if Path(name).exists() else Status.WARNING
        return [Finding(_GROUP, "model", status, one_line(error))]
    kind = type(recipe.config).__name__.removesuffix("Config")
    has_own = recipe.config.name_or_path == name
    where = "" if has_own or name not in PUBLISHED else "; not on this disk, sizes as published"
    return [Finding(_GROUP, "model", Status.OK, f"{name} ({kind}{where})")]


def _dataset(recipe: Recipe) -> list[Finding]:
    from ..sources import environment_data, json_arguments

    task, found = recipe.task, []
    splits = [task.train_split, *([task.eval_split] if task.eval_split else [])]
    for split in splits:
        try:
            arguments = json_arguments(task.dataset_kwargs, "dataset_kwargs")
            load = functools.partial(environment_data, task.environment, split, arguments)
            data = within(_DATASET_SECONDS, load)
        except TookTooLong as error:
            remedy = "A download may be under way; load it once before the run."
            found.append(Finding(_GROUP, f"tasks: {split}", Status.WARNING, one_line(error), remedy))
            continue
        except Exception as error:  # an environment's own code, a data set that is not in the cache
            kind = "" if isinstance(error, TaspoError) else f"{type(error).__name__}: "
            # The doctor asks no Hub, so that what training would download is no failure here.
            status = Status.WARNING if _may_be_downloaded(error) else Status.FAILURE
            found.append(Finding(_GROUP, f"tasks: {split}", status, kind + one_line(error, 600), _data_remedy(task)))
            continue
        if split == task.train_split:
            recipe.dataset = data
        found.append(Finding(_GROUP, f"tasks: {split}", Status.OK, f"{len(data)} tasks of {task.environment}"))
    if recipe.training.eval_strategy != "no" and not task.eval_split:
        remedy = "Name the split that is evaluated on."
        found.append(Finding(_GROUP, "tasks", Status.FAILURE, "`eval_strategy` needs `eval_split`", remedy))
    return found


def _may_be_downloaded(error: BaseException) -> bool:
    """Whether a download was refused because the doctor is offline."""
    chain: BaseException | None = error
    while chain is not None:
        if "offline" in f"{type(chain).__name__} {chain}".lower():
            return True
        chain = chain.__cause__ or chain.__context__
    return False


def _data_remedy(task: Any) -> str:
    if task.environment == "alfworld":
        return "`taspo env download alfworld`, or set ALFWORLD_DATA, or `dataset_kwargs: {data: embedded}`."
    return "See `taspo env list` and the environment's page in docs/."


def _combinations(recipe: Recipe) -> list[Finding]:
    """What the trainer would refuse at its construction."""
    from trl import get_quantization_config

    from ...analyzer.prompts import load_prompts
    from ...generation.checks import check_unquantized
    from ...training.checks import check_arguments

    found = []

    def check(name: str, look: Callable[[], object]) -> None:
        try:
            look()
        except TaspoError as error:
            found.append(Finding(_GROUP, name, Status.FAILURE, one_line(error, 600)))

    training = recipe.training
    if recipe.dataset is not None:
        check("batch", lambda: check_arguments(training, [], recipe.dataset, lambda: None))
    quantization = get_quantization_config(recipe.model)
    check("vLLM", lambda: check_unquantized(training, str(recipe.model.model_name_or_path), quantization))
    check("analyzer prompts", lambda: load_prompts(training.analyzer_prompts))
    return found
