"""`taspo warm-start`: episodes of any player are recorded, and the verified successes among them imitated."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from ..checkpoints import checkpoint_to_resume, last_checkpoint
from ..errors import ConfigurationError, did_you_mean
from ..redaction import without_credentials
from ..training.model_folder import check_model_folder
from ..training.model_folder import loading as loading_of
from .models import base_of, load_model, load_tokenizer
from .players import scripted_player
from .sources import environment_data, environment_factory, json_arguments


EPISODES = "_warm_start"
"""Folder of the recording inside the output folder; what begins with `_` is not pushed to the Hub."""
FROM_RECIPE = (
    "environment", "environment_kwargs", "dataset_kwargs", "train_split", "model_name_or_path", "context",
    "history_length", "max_turns", "max_prompt_length", "max_completion_length", "max_episode_tokens",
    "chat_template_kwargs", "success_threshold", "environment_timeout", "max_guidance_tokens",
)  # fmt: skip
"""What a recipe of `taspo train` says of tasks and prompts."""
RENAMED = {
    "epochs": "`--num_train_epochs`",
    "steps": "`--max_steps`",
    "batch_size": "`--per_device_train_batch_size` times `--gradient_accumulation_steps`, in each process",
    "micro_batch_tokens": "`--per_device_train_batch_size`: the turns of one forward",
    "lora_rank": "`--use_peft --lora_r RANK`",
    "device": "`--use_cpu`; which GPU is visible says CUDA_VISIBLE_DEVICES",
}
"""Options of the time before TRL's SFTTrainer, and what stands in their place."""
_PREPARED = "the turns come tokenized, under the prompts of the training that follows"
_NO_HELD_OUT = "all turns are learned; `taspo eval` plays held-out tasks with the result"
NOT_HERE = {
    **dict.fromkeys(
        ("dataset_text_field", "dataset_num_proc", "eos_token", "pad_token", "chat_template_path", "shuffle_dataset"),
        _PREPARED,
    ),
    **dict.fromkeys(("completion_only_loss", "assistant_only_loss"), "`--prompt_loss` weighs prompts beside replies"),
    **dict.fromkeys(("eval_strategy", "do_eval", "load_best_model_at_end", "eval_packing"), _NO_HELD_OUT),
    **dict.fromkeys(("hub_strategy", "hub_always_push"), "the model goes up once, when it is finished"),
    "remove_unused_columns": "the columns are chosen by the trainer",
}
"""Fields of TRL's configuration that mean nothing here, and why."""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="taspo warm-start",
        description="Record episodes of a player, keep the verified successes, and train a model on their turns, "
        "under the very prompts of the training that follows. What was recorded or paid for once is kept: an "
        "interrupted command goes on where it stopped.",
        epilog="Every field of TRL's SFTConfig and ModelConfig is an option, too: `--learning_rate` (default: 1e-5, "
        "with LoRA 1e-4), `--max_steps`, `--num_train_epochs` (2), `--per_device_train_batch_size` (8), "
        "`--gradient_accumulation_steps` (4), `--prompt_loss` (0: weight of the loss on prompts), `--bf16`, "
        "`--save_steps`, `--resume_from_checkpoint last`, `--report_to`, `--push_to_hub` (the finished model, into a "
        "private repository), `--hub_model_id`, `--use_peft`, `--lora_r`, `--dtype` "
        "(float32, with LoRA the model's own), `--load_in_4bit`, `--use_cpu`, ...",
        allow_abbrev=False,
    )
    made.add_argument(
        "--model", "--model-name-or-path", help="the policy to be trained: model id, model folder or adapter folder"
    )
    made.add_argument("--config", help="recipe of `taspo train`: model, environment, prompts and limits come from it")
    made.add_argument(
        "-o", "--output", "--output-dir", required=True, help="folder of the trained model and of the recording"
    )
    who = made.add_argument_group("the player")
    who.add_argument(
        "--player",
        help="`oracle` (the environment's own plans), `random` (any admissible action), `package.module:function` (a "
        "turn to an action), or LiteLLM's name of a chat model, e.g. deepseek/deepseek-chat; its key comes from the "
        "environment",
    )
    who.add_argument(
        "--from", dest="sources", nargs="+", default=[], metavar="PATH",
        help="episodes recorded earlier: files or folders of them, in place of a player or beside it",
    )  # fmt: skip
    who.add_argument(
        "--reply-format",
        default=None,
        help="but for chat models: the player's replies, e.g. '<action>{action}</action>' "
        "(default: the environment's)",
    )
    who.add_argument("--plays", type=int, default=1, help="plays of each task (default: 1)")
    who.add_argument("--temperature", type=float, default=1.0, help="of a chat model (default: 1.0)")
    who.add_argument("--api-base", default=None, help="root of the chat model's API, e.g. http://localhost:8000/v1")
    who.add_argument("--budget-usd", type=float, default=None, help="dollars after which no new reply is asked for")
    who.add_argument("--budget-tokens", type=int, default=None, help="the same in tokens")
    who.add_argument("--requests-per-minute", type=int, default=None, help="of a chat model (default: no limit)")
    who.add_argument("--workers", type=int, default=4, help="requests in flight (default: 4)")
    what = made.add_argument_group("tasks and prompts: as in training")
    what.add_argument("--environment", default=None, help="built-in or package.module:Class (default: household)")
    what.add_argument("--environment-kwargs", default=None, help="constructor arguments, JSON or YAML")
    what.add_argument("--dataset-kwargs", default=None, help="arguments of dataset(split), JSON or YAML")
    what.add_argument("--split", default=None, help="split to play (default: train)")
    what.add_argument("--limit", type=int, default=None, help="only the first tasks")
    what.add_argument("--context", choices=["window", "conversation"], default=None, help="default: the environment's")
    what.add_argument("--history-length", type=int, default=None, help="turns a window prompt shows")
    what.add_argument("--max-turns", type=int, default=None, help="turns of an episode")
    what.add_argument("--max-prompt-length", type=int, default=None, help="tokens of one prompt")
    what.add_argument("--max-completion-length", type=int, default=None, help="tokens of one reply (default: 512)")
    what.add_argument("--success-threshold", type=float, default=None, help="TRL classes: the reward of a success")
    what.add_argument("--chat-template-kwargs", default=None, help="JSON or YAML, e.g. '{enable_thinking: false}'")
    what.add_argument("--episodes", type=int, default=32, help="episodes in flight (default: 32)")
    how = made.add_argument_group("imitation, beside the options of TRL's SFT")
    how.add_argument("--record-only", action="store_true", help="record, and train nothing")
    how.add_argument(
        "--guided-share",
        type=float,
        default=0.0,
        help="episodes with their solution as guidance in the prompt (default: 0)",
    )
    how.add_argument("--seed", type=int, default=0, help="of environments, order, guidance, adapter (default: 0)")
    return made


def main(arguments: list[str]) -> int:
    options, rest = parser().parse_known_args(arguments)
    _refuse_unknown(rest)
    _take_recipe(options)
    if not options.model:
        raise ConfigurationError("`--model` is missing: the policy to be trained, whose prompts are recorded.")
    if not (options.player or options.sources):
        raise ConfigurationError(
            "Nobody plays: name a `--player` (`oracle`, `random`, `package.module:function`, a chat model), "
            "or recorded episodes with `--from`."
        )
    check_model_folder(options.model)
    output = Path(options.output)
    if any((output / one).exists() for one in ("config.json", "adapter_config.json")) and not options.record_only:
        raise ConfigurationError(
            f"{output} holds a model already. Choose another output, and imitate its episodes with `--from "
            f"{output / EPISODES}`."
        )
    training, model = _imitation(options, rest)
    checkpoint = checkpoint_to_resume(training.resume_from_checkpoint, output)
    upload = _upload(training, output) if training.push_to_hub and not options.record_only else None
    training.push_to_hub = False  # a Trainer's pushes would put a model into the folder while it is trained
    loading = {"revision": model.model_revision, "trust_remote_code": training.trust_remote_code}
    data: list[Any] = []
    facts: dict[str, Any] = {}
    if training.process_index == 0:
        stage = _Stage(options, loading)
        try:
            episodes = _record(options, stage, output) if options.player else []
            if not options.record_only:
                data, facts = _demonstrations(options, stage, episodes)
        finally:
            stage.pool.close()
    if options.record_only:
        return 0
    data, facts = _of_the_first([data, facts], training.world_size)
    _imitate(options, training, model, loading, output, data, facts, checkpoint)
    if upload is not None:
        print(f"Pushed to the Hub: {upload.send('Warm start')}")
    return 0


def _upload(training: Any, output: Path) -> Any:
    """The push at the end, by the first process; its repository is made now."""
    if training.process_index != 0:
        return None
    from .upload import Upload

    upload = Upload(training, output)
    upload.prepare()
    return upload


def _of_the_first(values: list[Any], num_processes: int) -> list[Any]:
    """What the first process has, in every one: worlds are played once, whatever the number of processes."""
    if num_processes > 1:
        from accelerate.utils import broadcast_object_list

        broadcast_object_list(values)
    return values


def learning_options() -> set[str]:
    """The names of TRL's options that mean something here."""
    from trl import ModelConfig

    from ..imitation import ImitationConfig

    return {one.name for kind in (ImitationConfig, ModelConfig) for one in dataclasses.fields(kind)} - set(NOT_HERE)


def _refuse_unknown(arguments: Sequence[str]) -> None:
    """What is neither an option of ours nor one of TRL's; before anything is recorded."""
    known = learning_options()
    for one in arguments:
        name = one.split("=")[0].lstrip("-").replace("-", "_")
        if not one.startswith("--"):
            continue
        if name in RENAMED:
            raise ConfigurationError(f"`--{name}` is no option any more: it is {RENAMED[name]}.")
        if name in NOT_HERE:
            raise ConfigurationError(f"`--{name}` means nothing here: {NOT_HERE[name]}.")
        if name not in known and name.removeprefix("no_") not in known:
            ours = {
                flag.lstrip("-").replace("-", "_") for action in parser()._actions for flag in action.option_strings
            }
            hint = did_you_mean(name, known | ours)
            raise ConfigurationError(f"There is no option `--{name}`.{hint} `taspo warm-start --help` lists ours.")


def _imitation(options: argparse.Namespace, rest: list[str]) -> tuple[Any, Any]:
    """([`ImitationConfig`], TRL's `ModelConfig`) of the options that are not ours."""
    from trl import ModelConfig, TrlParser

    from ..imitation import ImitationConfig
    from ..imitation.learning import refuse_shards

    class Parser(TrlParser):
        def error(self, message: str) -> NoReturn:
            """One line; argparse's own would be preceded by the usage of some 200 options."""
            raise ConfigurationError(f"{message.rstrip('.')}. `taspo warm-start --help` lists what most runs set.")

    kinds: Any = (ImitationConfig, ModelConfig)
    made = Parser(kinds)
    named = {one.split("=")[0].lstrip("-").replace("-", "_") for one in rest if one.startswith("--")}
    given = [*rest, "--output_dir", options.output, "--seed", str(options.seed)]
    asked, _ = made.parse_known_args(given)
    is_quantized = asked.load_in_4bit or asked.load_in_8bit
    if asked.use_peft:
        dtype = "bfloat16" if is_quantized else "auto"  # quantized weights have none of their own to compute in
        defaults = {"learning_rate": 1e-4, "dtype": dtype, "lora_target_modules": ["all-linear"]}
        made.set_defaults(**{name: value for name, value in defaults.items() if name not in named})
    made.set_defaults(logging_first_step=True)
    try:
        training, model = made.parse_args_into_dataclasses(given, look_for_args_file=False)
    except ValueError as error:  # values that TrainingArguments and its subclasses refuse
        raise ConfigurationError(str(error)) from error
    if is_quantized and model.dtype in (None, "auto"):
        raise ConfigurationError(
            f"`dtype` is what quantized weights are multiplied in, got {model.dtype!r}: name a type, or leave it out."
        )
    if is_quantized and not model.use_peft:
        raise ConfigurationError(
            "Quantized weights cannot be trained, only an adapter on them: add `--use_peft`, or leave "
            "`--load_in_4bit` and `--load_in_8bit` out."
        )
    idle = sorted(name for name in named if name.startswith("hub_"))
    if idle and not training.push_to_hub:
        print(f"`--{idle[0]}` has no effect without `--push_to_hub`.", file=sys.stderr)
    if not model.use_peft:  # an adapter is gathered in any case
        refuse_shards(training)
    return training, model


def _take_recipe(options: argparse.Namespace) -> None:
    """Fill in what a recipe says; flags win over it."""
    recipe: dict[str, Any] = {}
    if options.config:
        import yaml

        try:
            recipe = yaml.safe_load(Path(options.config).read_text(encoding="utf-8"))
        except (OSError, yaml.YAMLError) as error:
            raise ConfigurationError(f"The configuration {options.config} cannot be read: {error}") from error
        if not isinstance(recipe, dict):
            raise ConfigurationError(
                f"The configuration {options.config} must be a mapping of option names to values."
            )
    recipe = {name: value for name, value in recipe.items() if name in FROM_RECIPE}
    recipe["model"] = recipe.pop("model_name_or_path", None)
    recipe["split"] = recipe.pop("train_split", None) or "train"
    for name in (*FROM_RECIPE, "model", "split"):
        if getattr(options, name, None) is None:
            setattr(options, name, recipe.get(name))
    options.environment = options.environment or "household"
    options.max_completion_length = options.max_completion_length or 512


class _Stage:
    """Tokenizer, tasks, prompts and environments, as the training that follows has them."""

    def __init__(self, options: argparse.Namespace, loading: dict[str, Any]):
        from transformers import AutoConfig

        from ..environments.workers import EnvironmentPool
        from ..rollout.loop import RolloutSettings
        from ..rollout.templates import ChatRenderer

        self.environment_kwargs = json_arguments(options.environment_kwargs, "--environment-kwargs")
        data = environment_data(
            options.environment, options.split, json_arguments(options.dataset_kwargs, "--dataset-kwargs")
        )
        self.rows = list(data if options.limit is None else data.select(range(min(options.limit, len(data)))))
        self.tokenizer = load_tokenizer(options.model, **loading)
        config = AutoConfig.from_pretrained(base_of(options.model), **loading).get_text_config()
        timeout = {} if options.environment_timeout is None else {"environment_timeout": options.environment_timeout}
        self.rollout = RolloutSettings(
            context=options.context,
            history_length=options.history_length,
            max_turns=options.max_turns,
            max_completion_length=options.max_completion_length,
            max_episode_tokens=options.max_episode_tokens,
            max_prompt_length=options.max_prompt_length,
            model_window=getattr(config, "max_position_embeddings", None),
            vocab_size=getattr(config, "vocab_size", None),
            **timeout,
        )
        template_kwargs = json_arguments(options.chat_template_kwargs, "--chat-template-kwargs")
        self.renderer = ChatRenderer(self.tokenizer, template_kwargs)
        self.factory = environment_factory(options.environment, self.environment_kwargs)
        self.pool = EnvironmentPool({None: self.factory}, success_threshold=options.success_threshold)
        try:
            for traits in self.pool.traits.values():
                self.renderer.for_environment(traits).check_chat(traits, self.rollout.context)
        except BaseException:
            self.pool.close()
            raise

    def played(self) -> dict[str, Any]:
        return {"pool": self.pool, "renderer": self.renderer, "rollout": self.rollout}


def _player(options: argparse.Namespace, stage: _Stage, folder: Path) -> Any:
    from ..imitation import LiteLLMChatPlayer

    scripted = scripted_player(options.player, stage.pool, options.environment, options.reply_format)
    if scripted is not None:
        return scripted
    if stage.pool.traits[None].tools:
        raise ConfigurationError(
            "A chat model behind LiteLLM cannot play a class with tools here: its calls would be in its provider's "
            "notation, not in that of the policy's chat template. Take a function as the player, which writes them."
        )
    from ..analyzer.llm.player import LiteLLMPlayer

    return LiteLLMChatPlayer(
        LiteLLMPlayer(
            options.player,
            api_base=options.api_base,
            temperature=options.temperature,
            max_output_tokens=options.max_completion_length,
            requests_per_minute=options.requests_per_minute,
            budget_usd=options.budget_usd,
            budget_tokens=options.budget_tokens,
            cache=folder / "replies.sqlite",
            run=str(folder.resolve()),
        ),
        options.workers,
    )


def _record(options: argparse.Namespace, stage: _Stage, output: Path) -> list[Any]:
    from ..imitation import LiteLLMChatPlayer, record_episodes

    folder = output / EPISODES
    folder.mkdir(parents=True, exist_ok=True)
    player = _player(options, stage, folder)
    facts = {
        "environment": options.environment,
        "environment_kwargs": without_credentials(stage.environment_kwargs),
        "chat_template_kwargs": without_credentials(stage.renderer.template_kwargs),
        "split": options.split,
        "reply_format": options.reply_format,
        **({"temperature": options.temperature} if isinstance(player, LiteLLMChatPlayer) else {}),
    }
    try:
        with _bar(f"{player.name} plays", len(stage.rows) * options.plays) as advance:
            recording = record_episodes(
                stage.rows,
                player,
                folder,
                **stage.played(),
                seed=options.seed,
                num_plays=options.plays,
                max_in_flight=options.episodes,
                settings=facts,
                on_episode_end=lambda trajectory: advance(),
            )
    finally:
        player.close()
    print(
        f"{len(recording.trajectories)} of {recording.num_planned} episodes are recorded in {folder}, "
        f"{recording.num_successes} of them verified successes."
    )
    for reason, count in Counter(recording.failures).most_common(5):
        print(f"  {count} to be played again by the same command: {reason[:300]}")
    return list(recording.trajectories)


def _demonstrations(
    options: argparse.Namespace, stage: _Stage, episodes: list[Any]
) -> tuple[list[Any], dict[str, Any]]:
    """The turns to imitate, and what is told of them."""
    from ..guidance.block import Composer
    from ..imitation import demonstrations_of, replayed_successes
    from ..imitation.recording import recorded_episodes

    for source in options.sources:
        episodes += recorded_episodes(source)
    successes = sum(one.is_usable and one.success for one in episodes)
    with _bar("verified again", successes) as advance:
        kept = replayed_successes(
            episodes, **stage.played(), max_in_flight=options.episodes, on_episode_end=lambda trajectory: advance()
        )
    tags = stage.pool.traits[None].action_tags
    composer = Composer(stage.tokenizer, options.max_guidance_tokens or 256, tags) if options.guided_share else None
    data = demonstrations_of(
        kept.trajectories, guided_share=options.guided_share, composer=composer, seed=options.seed
    )
    dropped = ", ".join(f"{name} {count}" for name, count in sorted(kept.dropped.items())) or "none"
    print(f"{len(kept.trajectories)} successes with {len(data)} turns to imitate; episodes left out: {dropped}.")
    if not data:
        raise ConfigurationError(
            "There is no turn to imitate: no episode is a success that the environment verifies again. Record more "
            "(`--plays`, another `--player`), or look at what was left out."
        )
    return data, {"episodes": len(kept.trajectories), "dropped": dict(kept.dropped), "turns": len(data)}


def _imitate(
    options: argparse.Namespace,
    training: Any,
    model: Any,
    loading: dict[str, Any],
    output: Path,
    data: list[Any],
    facts: dict[str, Any],
    checkpoint: str | None,
) -> None:
    from trl import get_peft_config, get_quantization_config

    from ..imitation import ImitationTrainer

    training.model_init_kwargs = {
        "revision": model.model_revision,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype,
        **(training.model_init_kwargs or {}),
    }
    quantization = get_quantization_config(model)
    policy: Any = options.model
    if base_of(options.model) != options.model:
        if quantization is not None:
            raise ConfigurationError(
                f"{options.model} is an adapter, which is merged into its base before it is trained on; quantized "
                "weights cannot take it in. Leave the quantization out, or name a whole model."
            )
        policy = load_model(options.model, model.dtype).merge_and_unload().requires_grad_(True)
        training.model_init_kwargs = None
    with loading_of(options.model):
        trainer = ImitationTrainer(
            policy,
            training,
            data,
            processing_class=load_tokenizer(options.model, **loading),
            peft_config=get_peft_config(model),
            quantization_config=quantization,
        )
    trainer.add_callback(_log_last_step())
    tell = trainer.accelerator.print
    last = last_checkpoint(output) if checkpoint is None else None
    if last is not None:
        tell(f"Learning starts anew; `--resume_from_checkpoint last` would go on from {last}.")
    trainer.train(resume_from_checkpoint=checkpoint)
    done, planned = trainer.state.global_step, trainer.state.max_steps
    if done > planned:
        tell(f"Nothing was learned: {checkpoint} is of step {done}, and the run was to end at step {planned}.")
    losses = [one["loss"] for one in trainer.state.log_history if "loss" in one]
    values = {one.name: getattr(training, one.name) for one in dataclasses.fields(training)}
    told = ("prompt_loss", "learning_rate", "seed", "per_device_train_batch_size", "gradient_accumulation_steps")
    summary = {
        "base_model": options.model,
        "player": options.player,
        "from": options.sources,
        "environment": options.environment,
        **facts,
        "guided_share": options.guided_share,
        "imitation": {"num_steps": trainer.state.global_step, **{name: values[name] for name in told}},
        "processes": training.world_size,
        "lora_r": model.lora_r if model.use_peft else None,
        "loss": {"first": losses[0], "last": losses[-1]} if losses else None,
    }
    is_model = _save(trainer, output, summary)
    kind = "Model" if is_model else "Adapter"
    found = f" (loss {losses[0]:.3f} at first, {losses[-1]:.3f} at last)" if losses else ""
    tell(f"{kind} saved to {output}{found}.")
    if hasattr(trainer, "end"):
        trainer.end()


def _log_last_step() -> Any:
    """A callback that logs the last step, too: the loss told at the end is that of the end."""
    from transformers import TrainerCallback

    class LogLastStep(TrainerCallback):  # type: ignore[misc, unused-ignore]
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step >= state.max_steps:
                control.should_log = True

    return LogLastStep()


def _save(trainer: Any, output: Path, summary: dict[str, Any]) -> bool:
    """The whole model or none: its configuration, by which a folder is known as a model, comes last."""
    from ..files import write_text
    from ..redaction import without_secrets

    partial, is_first = output / "_saving", trainer.args.process_index == 0
    if is_first:
        shutil.rmtree(partial, ignore_errors=True)
    trainer.accelerator.wait_for_everyone()
    is_model = trainer.save_merged(partial)
    trainer.accelerator.wait_for_everyone()
    if is_first:
        for file in sorted(partial.iterdir(), key=lambda one: one.name in ("config.json", "adapter_config.json")):
            os.replace(file, output / file.name)
        shutil.rmtree(partial)
        told = without_secrets(summary)
        write_text(output / "README.md", _card(told, output.resolve().name, is_model))
        write_text(output / "warm_start.json", json.dumps(told, indent=2) + "\n")
    return is_model


def _card(summary: dict[str, Any], name: str, is_model: bool) -> str:
    """The model card, in place of the trainer's, which knows neither player nor world."""
    from ..imitation.card import model_card

    base, learned = summary["base_model"], summary["imitation"]
    is_id = not Path(base).exists()
    rank = summary["lora_r"]
    facts = {
        "Base model": f"`{base}`" if is_id else "a local folder",
        "World": f"`{summary['environment']}`",
        "Episodes": f"{summary['episodes']:,}, each a success that the environment verified twice",
        "Played by": f"`{summary['player']}`" if summary["player"] else "whoever played the recording that was given",
        "Turns imitated": f"{summary['turns']:,}",
        "Episodes with guidance in the prompt": f"{summary['guided_share']:.0%}",
        "Optimizer steps": f"{learned['num_steps']:,}",
        "Learning rate": f"{learned['learning_rate']:g}",
        "Tuning": f"LoRA of rank {rank}{', merged' if is_model else ''}" if rank else "full fine-tuning",
    }
    return model_card(
        name, facts, made_by="taspo warm-start", is_model=is_model, base_model=base if is_id else None,
        more="`warm_start.json` beside this file has more.",
    )  # fmt: skip


class _bar:
    """A progress bar that is gone when it is done; gives the function that advances it."""

    def __init__(self, title: str, total: int):
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, transient=True)
        self._task = self._progress.add_task(title, total=total)

    def __enter__(self) -> Any:
        self._progress.start()
        return lambda: self._progress.advance(self._task)

    def __exit__(self, *_: Any) -> None:
        self._progress.stop()
