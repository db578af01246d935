"""What a trainer refuses before it starts: arguments, data and models that cannot work, each with its remedy."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ..config import TASPOConfig
from ..environments.base import Traits
from ..environments.tools import ToolEnvironment, adapted_object
from ..environments.workers import EnvironmentPool
from ..errors import ConfigurationError
from ..evaluation.play import refuse_repeated
from ..generation.eligible import why_adapters
from ..methods import Recipe
from ..rollout.rewards import REWARD_KEYWORDS, takes_environments
from ..rollout.tasks import check_columns
from ..rollout.templates import ChatRenderer


def check_arguments(
    args: Any,
    reward_functions: Sequence[Any],
    train_dataset: Any,
    environment_factory: Callable[[], Any] | Mapping[str, Callable[[], Any]] | None,
    eval_dataset: Any = None,
) -> None:
    """Raise [`~taspo_trl.errors.ConfigurationError`] for trainer arguments that cannot work together."""
    if not isinstance(args, TASPOConfig):
        raise ConfigurationError(f"`args` must be a TASPOConfig, got {type(args).__name__}.")
    accelerator_config: Any = args.accelerator_config
    if accelerator_config.split_batches:
        raise ConfigurationError(
            "`accelerator_config` asks for `split_batches`, which divides a batch by the number of processes and "
            "tears groups apart. Leave it False: `per_device_train_batch_size` counts the episodes of one process."
        )
    if environment_factory is None:
        raise ConfigurationError(
            "`environment_factory` is missing: pass the environment class, or a callable that makes an instance, for "
            "example `environment_factory=HouseholdEnvironment`."
        )
    for factory in environment_factory.values() if isinstance(environment_factory, Mapping) else [environment_factory]:
        if not callable(factory):
            raise ConfigurationError(
                f"`environment_factory` is an instance of {type(factory).__name__}; every episode needs "
                "one of its own. Pass the class, or a callable that makes an instance."
            )
    if isinstance(environment_factory, Mapping) and not environment_factory:
        raise ConfigurationError("`environment_factory` is an empty dictionary; it must name an environment.")
    for function in reward_functions:
        if not callable(function) or hasattr(function, "parameters"):
            raise ConfigurationError(
                f"`reward_funcs` holds a {type(function).__name__}; it takes functions. Wrap a reward model in a "
                "function that returns one number for each trajectory."
            )
    _check_dataset(args, train_dataset, environment_factory)
    for where, data in named_datasets(None, eval_dataset).items():
        _check_columns(where, data, environment_factory)
        refuse_repeated(_column(data, "task_id"))


def named_datasets(train_dataset: Any, eval_dataset: Any) -> dict[str, Any]:
    """How messages name a data set -> the data set, of those that are given."""
    parts = eval_dataset.items() if isinstance(eval_dataset, Mapping) else [("", eval_dataset)]
    named = {f"`eval_dataset[{name!r}]`" if name else "`eval_dataset`": data for name, data in parts}
    return {name: data for name, data in {"`train_dataset`": train_dataset, **named}.items() if data is not None}


def _check_dataset(args: Any, train_dataset: Any, environment_factory: Any) -> None:
    if train_dataset is None:
        if isinstance(environment_factory, Mapping):
            raise ConfigurationError(
                "`train_dataset` is missing: with a dictionary of environments, its column `environment` says which "
                "one plays."
            )
        if args.max_steps <= 0:
            raise ConfigurationError(
                "`train_dataset` is missing: one row for each task, for example "
                "`HouseholdEnvironment.dataset('train')`. For an environment that draws its tasks itself, from the "
                "`seed` of `reset`, set `max_steps`: without rows, that is the length of training."
            )
        return
    _check_columns("`train_dataset`", train_dataset, environment_factory)
    num_tasks = args.generation_batch_size // args.num_generations
    if hasattr(train_dataset, "__len__") and len(train_dataset) < num_tasks:
        raise ConfigurationError(
            f"The dataset has {len(train_dataset)} tasks, but one rollout batch draws {num_tasks} "
            f"(`generation_batch_size` {args.generation_batch_size} / `num_generations` {args.num_generations}), and "
            "an incomplete batch is never drawn. Use more tasks or a smaller batch."
        )


def _check_columns(where: str, data: Any, environment_factory: Any) -> None:
    """What is wrong with a dataset's columns shows here, and not in the middle of training."""
    columns = getattr(data, "column_names", None) or []
    check_columns(columns)
    clash = next((column for column in columns if column in REWARD_KEYWORDS), None)
    if clash is not None:
        raise ConfigurationError(
            f"{where} has a column `{clash}`, but reward functions get something else under that name "
            f"({', '.join(f'`{name}`' for name in REWARD_KEYWORDS)} are taken). Rename the column."
        )
    if not isinstance(environment_factory, Mapping) or not columns:
        return
    known = ", ".join(map(repr, environment_factory))
    if "environment" not in columns:
        raise ConfigurationError(
            f"With a dictionary of environments each row needs an `environment` column that names one of {known}; "
            f"{where} has none."
        )
    for row, name in enumerate(_column(data, "environment")):
        if name not in environment_factory:
            raise ConfigurationError(
                f"Row {row} of {where} has the `environment` {name!r}, which is not among those of "
                f"`environment_factory`: {known}. Correct the column, or add the environment."
            )


def _column(data: Any, name: str) -> Sequence[Any]:
    """All values of a column; nothing for a dataset without it, or one that is read as it comes."""
    columns = getattr(data, "column_names", None) or []
    return data[name] if name in columns and hasattr(data, "__len__") else ()


def check_environments(
    pool: EnvironmentPool,
    renderer: ChatRenderer,
    args: TASPOConfig,
    recipe: Recipe,
    has_reward_functions: bool,
    columns: Sequence[str] = (),
) -> None:
    """Raise [`~taspo_trl.errors.ConfigurationError`] for environments that cannot be trained on with `args`.

    Warns about environments in which no trajectory can ever give evidence, and about ones that play another game for
    each member of a group.

    Args:
        columns (`Sequence[str]`, *optional*):
            The training data's. Empty = they are not known.
    """
    for name, probe in pool.probes.items():
        environment, traits = probe, pool.traits[name]
        _check_reset(adapted_object(probe), traits, columns)
        renderer.for_environment(traits).check_chat(traits, args.context)
        if isinstance(probe, ToolEnvironment):
            _check_tools(probe, args, recipe, has_reward_functions)
            environment = probe.environment
        if (args.training_reward or pool.traits[name].training_reward) == "none" and not has_reward_functions:
            raise ConfigurationError(
                f"`training_reward` is 'none' for `{type(environment).__name__}`: the reward is that of "
                "`reward_funcs`, but none are given."
            )


def check_openings(pool: EnvironmentPool, renderer: ChatRenderer, data: Mapping[str, Any]) -> None:
    """Raise [`~taspo_trl.errors.ConfigurationError`] for rows whose `prompt` the chat template cannot hold.

    Only the roles of a row's messages are read, and each order of roles is rendered once. Data sets that are read as
    they come are not looked at.

    Args:
        pool (`EnvironmentPool`), renderer (`ChatRenderer`):
            The trainer's.
        data (`Mapping[str, Any]`):
            How a message names a data set -> the data set, or None.
    """
    for where, rows in data.items():
        seen: set[tuple[str | None, tuple[str, ...]]] = set()
        for index, name, roles in _openings(rows, pool.is_routed):
            probe = pool.probes.get(name)
            if (name, roles) in seen or len(seen) >= _MOST_OPENINGS or not isinstance(probe, ToolEnvironment):
                continue
            seen.add((name, roles))
            try:
                renderer.for_environment(pool.traits[name]).check_roles(roles)
            except ConfigurationError as error:
                raise ConfigurationError(
                    f"The `prompt` of row {index} of {where} cannot be played. {error}"
                ) from error


_MOST_OPENINGS = 500
_ROWS_AT_ONCE = 1000


def _openings(rows: Any, is_routed: bool) -> Iterator[tuple[int, str | None, tuple[str, ...]]]:
    """(row, its environment, the roles of its `prompt`) of each row that has messages."""
    columns = getattr(rows, "column_names", None) or []
    if "prompt" not in columns or not hasattr(rows, "__len__"):
        return
    rows = rows.select_columns(["prompt", *(["environment"] if is_routed else [])])
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        part = rows[start : start + _ROWS_AT_ONCE]
        names = part["environment"] if is_routed else [None] * len(part["prompt"])
        for index, (name, prompt) in enumerate(zip(names, part["prompt"], strict=True), start):
            if isinstance(prompt, list):
                yield index, name, tuple(str(one.get("role")) for one in prompt if isinstance(one, Mapping))


def check_live_instances(functions: Sequence[Any], pool: EnvironmentPool, args: Any) -> None:
    """Raise [`~taspo_trl.errors.ConfigurationError`] where a function asks for `environments` that it cannot get."""
    function = next((one for one in functions if takes_environments(one)), None)
    if function is None:
        return
    name = getattr(function, "__name__", repr(function))
    for key, probe in pool.probes.items():
        if pool.runs_in_processes(key):
            raise ConfigurationError(
                f"The reward function {name!r} takes the live `environments`, but instances of "
                f"`{type(adapted_object(probe)).__name__}` live in processes of their own. Use "
                "`environment_backend='thread'`, give the class a `get_reward`, or read `trajectories`."
            )
    num_tasks = args.generation_batch_size // args.num_generations
    if num_tasks % args.world_size:
        raise ConfigurationError(
            f"The reward function {name!r} takes the live `environments`, but the {num_tasks} groups of a batch "
            f"cannot be dealt whole to {args.world_size} processes, and instances cannot leave theirs. Make "
            "`generation_batch_size` / `num_generations` a multiple of the number of processes, or read "
            "`trajectories`."
        )


def _check_reset(environment: Any, traits: Traits, columns: Sequence[str]) -> None:
    kind = type(environment).__name__
    missing = [name for name in traits.required_columns if name not in columns]
    if columns and missing:
        raise ConfigurationError(
            f"`{kind}.reset` needs {', '.join(f'`{name}`' for name in missing)}, but the dataset has only the columns "
            f"{', '.join(f'`{name}`' for name in columns)}. Add the column, or give the parameter a default."
        )
    if not traits.takes_seed:
        warnings.warn(
            f"`{kind}.reset` has no parameter `seed`: where it draws anything at random, the members of a group play "
            "different games, and comparing them says nothing. Add `seed` and draw from it; where the row alone "
            "decides the game, add `seed=None` and ignore it.",
            UserWarning,
            stacklevel=5,
        )


def _check_tools(probe: ToolEnvironment, args: TASPOConfig, recipe: Recipe, has_reward_functions: bool) -> None:
    name = type(probe.environment).__name__
    if args.context == "window":
        raise ConfigurationError(
            f"`{name}` has tools, whose results are messages of a growing chat. Use `context='conversation'`, or "
            "leave `context` out."
        )
    if not (probe.has_reward or probe.has_verdict or has_reward_functions):
        raise ConfigurationError(
            f"`{name}` has neither `get_reward` nor `_get_success`, and no `reward_funcs` are given: nothing says "
            "how well an episode went."
        )
    if not probe.has_verdict and recipe.draws_on_successes:
        warnings.warn(
            f"`{name}` never says that a task was solved, so no trajectory can give evidence and training is "
            "plain GRPO. Set `success_threshold` on the reward of its `get_reward()`, or give the class a "
            "`_get_success()`.",
            UserWarning,
            stacklevel=5,
        )


def check_model(model: Any, is_vision_model: bool, has_router_loss: bool) -> None:
    """Raise [`~taspo_trl.errors.ConfigurationError`] for models that this trainer would train wrongly."""
    if is_vision_model:
        raise ConfigurationError(
            "The processing class belongs to a vision-language model; TASPOTrainer trains on text. Pass its tokenizer."
        )
    if has_router_loss:
        raise ConfigurationError(
            f"{type(model).__name__} is a mixture-of-experts model with a load-balancing loss, which is not part of "
            "the objective. Set `router_aux_loss_coef=0.0`."
        )
    adapters = getattr(model, "peft_config", None) or {}
    if any(getattr(one, "is_prompt_learning", False) for one in adapters.values()):
        raise ConfigurationError(
            "Prompt-learning adapters put virtual tokens before the context, which moves every position that is "
            "scored. Use LoRA or full training."
        )


def wanted_without_padding(args: TASPOConfig, model: Any) -> bool | None:
    """`padding_free` as [`~taspo_trl.scoring.reproduces.require_reproduction`] takes it; False for adapters that mind
    more of a row than its own tokens.

    Raises:
        ConfigurationError: it is asked for with such an adapter.
    """
    reason = why_adapters(model)
    if reason and args.padding_free:
        raise ConfigurationError(f"`padding_free` is True, but {reason}. Leave it out: rows are then padded.")
    return False if reason else args.padding_free


def check_trainable(args: TASPOConfig, model: Any, peft_config: Any) -> None:
    """Raise [`~taspo_trl.errors.ConfigurationError`] for a model of which no parameter would move.

    Args:
        args ([`TASPOConfig`]), model (`torch.nn.Module` or `str`), peft_config ([`~peft.PeftConfig`], *optional*):
            What the trainer was given. A name is loaded later, all of it trainable; a new adapter is.
    """
    adapters = getattr(model, "peft_config", None)
    if args.sync_ref_model and (adapters or peft_config is not None):
        raise ConfigurationError(
            "`sync_ref_model` moves a reference model towards the policy, but with an adapter there is none: the "
            "reference is the adapter as it began, or the base. Set `sync_ref_model=False`, or train without adapter."
        )
    if peft_config is not None or isinstance(model, str):
        return
    if any(parameter.requires_grad for parameter in model.parameters()):
        return
    remedy = (
        "Load the adapter with `is_trainable=True`."
        if adapters
        else "Call `model.requires_grad_(True)`, or pass a `peft_config`."
    )
    raise ConfigurationError(f"There is nothing to train: no parameter of the model requires a gradient. {remedy}")


def check_parallelism(config: Any) -> None:
    """Raise [`~taspo_trl.errors.ConfigurationError`] for processes that would have to share a row.

    Args:
        config ([`~accelerate.ParallelismConfig`], *optional*):
            The accelerator's.
    """
    size = getattr(config, "non_data_parallel_size", 1)
    if size > 1:
        raise ConfigurationError(
            f"Tensor, context or sequence parallelism makes {size} processes compute one row together, but "
            "TASPOTrainer gives each process rows of its own. Set `tp_size`, `cp_size` and `sp_size` to 1; use FSDP2 "
            "or DeepSpeed ZeRO-3 for a model that does not fit one device."
        )
