"""`taspo train`: a configuration in YAML or flags to a trained model."""

from __future__ import annotations

import gc
import importlib
import os
import shlex
import sys
from dataclasses import dataclass, field
from typing import Any, NoReturn

from ..checkpoints import checkpoint_to_resume
from ..errors import ConfigurationError
from ..training.model_folder import check_model_folder
from .option_table import help_text, options, refuse_unknown
from .sources import environment_data, environment_factory, imported, json_arguments


@dataclass
class TaskArguments:
    """
    Arguments that say what is trained on.

    Args:
        environment (`str`, *optional*, defaults to `"household"`):
            A built-in environment (household, alfworld, webshop, search_qa) or `package.module:Class`.
        environment_kwargs (`dict` or `str`, *optional*):
            Arguments of the environment's constructor, as a JSON object or a YAML mapping.
        dataset_kwargs (`dict` or `str`, *optional*):
            Arguments of the environment's `dataset`, as a JSON object or a YAML mapping.
        train_split (`str`, *optional*, defaults to `"train"`):
            Split that is trained on.
        eval_split (`str`, *optional*):
            Split that is evaluated on (needed with `eval_strategy`).
        reward_funcs (`list[str]`, *optional*):
            Import paths of functions whose values are added to the environment's reward.
    """

    environment: str = field(
        default="household",
        metadata={"help": "A built-in environment (household, alfworld, webshop, search_qa) or package.module:Class."},
    )
    environment_kwargs: dict | str | None = field(
        default=None,
        metadata={"help": "Arguments of the environment's constructor, as a JSON object or a YAML mapping."},
    )
    dataset_kwargs: dict | str | None = field(
        default=None,
        metadata={"help": "Arguments of the environment's dataset(split), as a JSON object or a YAML mapping."},
    )
    train_split: str = field(default="train", metadata={"help": "Split that is trained on."})
    eval_split: str | None = field(
        default=None, metadata={"help": "Split that is evaluated on (needed with eval_strategy)."}
    )
    reward_funcs: list[str] | None = field(
        default=None,
        metadata={"help": "Import paths of functions whose values are added to the environment's reward."},
    )


def parser() -> Any:
    """TRL's parser over what to train on, [`TASPOConfig`] and TRL's `ModelConfig`."""
    from trl import ModelConfig, TrlParser

    from ..config import TASPOConfig

    class Parser(TrlParser):
        def error(self, message: str) -> NoReturn:
            """One line; argparse's own would be preceded by the usage of some 300 options."""
            raise ConfigurationError(f"{message.rstrip('.')}. `taspo train --help` lists all options.")

    kinds: Any = (TaskArguments, TASPOConfig, ModelConfig)
    return Parser(
        kinds,
        prog="taspo train",
        description="Train a model with TASPO. `--config FILE.yaml` sets any of these options; flags win over it.",
    )


def parse(arguments: list[str]) -> tuple[TaskArguments, Any, Any]:
    """(task, training, model) arguments; an unknown name is refused with its nearest neighbour."""
    refuse_unknown(_names(arguments))
    made = parser()
    try:
        return made.parse_args_and_config(arguments)
    except ValueError as error:  # values that TrainingArguments and its subclasses refuse
        raise ConfigurationError(str(error)) from error


def _names(arguments: list[str]) -> list[str]:
    """The options that flags and the configuration file name."""
    names = [one.split("=")[0].lstrip("-").replace("-", "_") for one in arguments if one.startswith("--")]
    if "--config" in arguments[:-1]:
        import yaml

        path = arguments[arguments.index("--config") + 1]
        try:
            with open(path, encoding="utf-8") as file:
                content = yaml.safe_load(file)
        except (OSError, yaml.YAMLError) as error:
            raise ConfigurationError(f"The configuration {path} cannot be read: {error}") from error
        if not isinstance(content, dict):
            raise ConfigurationError(f"The configuration {path} must be a mapping of option names to values.")
        names += [str(name) for name in content if name != "env"]
    return names


def main(arguments: list[str]) -> int:
    if "-h" in arguments or "--help" in arguments:
        print(help_text())
        return 0
    refuse_unknown(_names(arguments))
    load_libraries()  # not before: a mistyped option is answered without them
    from ..training.folder import how_to_go_on

    task, training, model = parse(arguments)
    checkpoint = checkpoint_to_resume(training.resume_from_checkpoint, training.output_dir)
    trainer = make_trainer(task, training, model)
    try:
        trainer.train(resume_from_checkpoint=checkpoint)
        trainer.save_state()  # the logged numbers, for `taspo view` and `taspo doctor --from-run`, whatever was saved
        trainer.save_model(training.output_dir)
        trainer.accelerator.print(f"Model saved to {training.output_dir}.")
        if training.push_to_hub:
            trainer.push_to_hub()
    except BaseException as error:
        if getattr(error, "__notes__", None):  # the trainer's word on how to go on, as a command
            error.__notes__[:] = [how_to_go_on(training.output_dir, _resuming(arguments))]
        raise
    finally:
        trainer.end()
    return 0


def load_libraries() -> None:
    """Import torch, TRL and what they need, without looking for garbage meanwhile, and never again in what they made.

    What an import makes stays. The collector would walk over it again and again for nothing, in training too, where
    accelerate has it look through everything.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        importlib.import_module("taspo_trl.trainer")
        gc.freeze()
    finally:
        if was_on:
            gc.enable()


def _resuming(arguments: list[str]) -> str:
    """The command with which a run goes on; of several processes only what each of them was given."""
    kept, flag = [], "--resume_from_checkpoint"
    for k, one in enumerate(arguments):
        name = one.split("=")[0].replace("-", "_")
        before = arguments[k - 1].replace("-", "_") if k else ""
        if name != flag.replace("-", "_") and before != flag.replace("-", "_"):
            kept.append(one)
    command = shlex.join(["taspo", "train", *kept, flag, "last"])
    return f"the same launcher and {command}" if "WORLD_SIZE" in os.environ else command


def make_trainer(task: TaskArguments, training: Any, model: Any) -> Any:
    """The trainer that parsed arguments describe."""
    from trl import get_peft_config, get_quantization_config

    from ..trainer import TASPOTrainer
    from .models import base_of

    if not model.model_name_or_path:
        raise ConfigurationError("`model_name_or_path` is missing: a model id or a folder.")
    check_model_folder(model.model_name_or_path)
    base = base_of(model.model_name_or_path)
    if base != model.model_name_or_path:
        raise ConfigurationError(
            f"{model.model_name_or_path} is an adapter on {base}, and training begins with a model. Merge it: "
            "`peft.AutoPeftModelForCausalLM.from_pretrained(ADAPTER).merge_and_unload().save_pretrained(FOLDER)`, and "
            "save its tokenizer there, too."
        )
    if training.eval_strategy != "no" and task.eval_split is None:
        raise ConfigurationError("`eval_strategy` needs `eval_split`: the split that is evaluated on.")
    options = json_arguments(task.dataset_kwargs, "dataset_kwargs")
    training.model_init_kwargs = {
        "revision": model.model_revision,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype,
        **(training.model_init_kwargs or {}),
    }
    trainer = TASPOTrainer(
        model=model.model_name_or_path,
        args=training,
        reward_funcs=[imported(path) for path in task.reward_funcs or []],
        train_dataset=environment_data(task.environment, task.train_split, options),
        eval_dataset=environment_data(task.environment, task.eval_split, options) if task.eval_split else None,
        environment_factory=environment_factory(
            task.environment, json_arguments(task.environment_kwargs, "environment_kwargs")
        ),
        peft_config=get_peft_config(model),
        quantization_config=get_quantization_config(model),
    )
    trainer.split_names = {"train": task.train_split} | ({"eval": task.eval_split} if task.eval_split else {})
    return trainer


def option_names() -> set[str]:
    """All option names of `taspo train`."""
    return set(options()) - {"config"}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
