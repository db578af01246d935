"""`taspo warm-start`: episodes of any player are recorded, and the verified successes among them imitated."""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

from ..errors import ConfigurationError
from ..redaction import without_credentials
from ..training.model_folder import check_model_folder
from .models import load_model, load_tokenizer
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


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="taspo warm-start",
        description="Record episodes of a player, keep the verified successes, and train a model on their turns, "
        "under the very prompts of the training that follows. What was recorded or paid for once is kept: an "
        "interrupted command goes on where it stopped.",
    )
    made.add_argument("--model", help="the policy to be trained: model id or folder")
    made.add_argument("--config", help="recipe of `taspo train`: model, environment, prompts and limits come from it")
    made.add_argument("-o", "--output", required=True, help="folder of the trained model and of the recording")
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
    who.add_argument("--reply-format", default=None, help="all but chat models: a reply around {action}")
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
    how = made.add_argument_group("imitation")
    how.add_argument("--record-only", action="store_true", help="record, and train nothing")
    how.add_argument(
        "--guided-share",
        type=float,
        default=0.0,
        help="episodes with their solution as guidance in the prompt (default: 0)",
    )
    how.add_argument("--epochs", type=float, default=2.0, help="passes over the turns (default: 2)")
    how.add_argument("--steps", type=int, default=None, help="optimizer steps, in place of passes")
    how.add_argument("--batch-size", type=int, default=32, help="turns in a step (default: 32)")
    how.add_argument("--micro-batch-tokens", type=int, default=16384, help="tokens of one forward (default: 16384)")
    how.add_argument("--learning-rate", type=float, default=None, help="default: 1e-5, with LoRA 1e-4")
    how.add_argument("--prompt-loss", type=float, default=0.0, help="weight of the loss on prompts (default: 0)")
    how.add_argument(
        "--lora-rank", type=int, default=0, help="train a LoRA and merge it; 0 trains all weights (default)"
    )
    how.add_argument("--gradient-checkpointing", action="store_true", help="less memory, more time")
    how.add_argument("--seed", type=int, default=0, help="of environments, order and guidance (default: 0)")
    how.add_argument("--dtype", default=None, help="weights: default float32, with LoRA the model's own")
    how.add_argument("--device", default=None, help="cpu, cuda, ... (default: a GPU if there is one)")
    return made


def main(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
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
    if (output / "config.json").exists() and not options.record_only:
        raise ConfigurationError(
            f"{output} holds a model already. Choose another output, and imitate its episodes with `--from "
            f"{output / EPISODES}`."
        )
    stage = _Stage(options)
    try:
        episodes = _record(options, stage, output) if options.player else []
        if options.record_only:
            return 0
        kept, data = _demonstrations(options, stage, episodes)
    finally:
        stage.pool.close()
    _imitate(options, stage, output, kept, data)
    return 0


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

    def __init__(self, options: argparse.Namespace):
        from transformers import AutoConfig

        from ..environments.workers import EnvironmentPool
        from ..rollout.loop import RolloutSettings
        from ..rollout.templates import ChatRenderer

        self.environment_kwargs = json_arguments(options.environment_kwargs, "--environment-kwargs")
        data = environment_data(
            options.environment, options.split, json_arguments(options.dataset_kwargs, "--dataset-kwargs")
        )
        self.rows = list(data if options.limit is None else data.select(range(min(options.limit, len(data)))))
        self.tokenizer = load_tokenizer(options.model)
        config = AutoConfig.from_pretrained(options.model).get_text_config()
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


def _demonstrations(options: argparse.Namespace, stage: _Stage, episodes: list[Any]) -> tuple[Any, list[Any]]:
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
    return kept, data


def _imitate(options: argparse.Namespace, stage: _Stage, output: Path, kept: Any, data: list[Any]) -> None:
    import torch

    from ..imitation import Imitation, imitate

    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    model = load_model(options.model, options.dtype or ("auto" if options.lora_rank else "float32")).to(device)
    if options.lora_rank:
        from peft import LoraConfig, get_peft_model

        torch.manual_seed(options.seed)
        rank = options.lora_rank
        lora = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
        model = get_peft_model(model, lora)
    if options.gradient_checkpointing:
        model.enable_input_require_grads()
        is_renamed = hasattr(model, "activation_checkpointing_enable")
        (model.activation_checkpointing_enable if is_renamed else model.gradient_checkpointing_enable)()
    batch_size = min(options.batch_size, len(data))
    settings = Imitation(
        num_steps=options.steps or max(1, math.ceil(options.epochs * len(data) / batch_size)),
        batch_size=batch_size,
        learning_rate=options.learning_rate or (1e-4 if options.lora_rank else 1e-5),
        prompt_loss=options.prompt_loss,
        seed=options.seed,
        micro_batch_tokens=options.micro_batch_tokens,
    )
    tokenizer = stage.tokenizer
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    losses: list[float] = []
    with _bar("imitation", settings.num_steps) as advance:

        def on_step(step: int, loss: float) -> None:
            losses.append(loss)
            advance()

        model = imitate(model, data, settings, pad, on_step)
    if options.lora_rank:
        model = model.merge_and_unload()
    summary = {
        "base_model": options.model,
        "player": options.player,
        "from": options.sources,
        "environment": options.environment,
        "episodes": len(kept.trajectories),
        "dropped": kept.dropped,
        "turns": len(data),
        "guided_share": options.guided_share,
        "imitation": {name: getattr(settings, name) for name in Imitation.__dataclass_fields__},
        "lora_rank": options.lora_rank,
        "loss": {"first": losses[0], "last": losses[-1]},
    }
    _save(model, tokenizer, output, summary)
    print(f"Model saved to {output} (loss {losses[0]:.3f} at the first step, {losses[-1]:.3f} at the last).")


def _save(model: Any, tokenizer: Any, output: Path, summary: dict[str, Any]) -> None:
    """The whole model or none: its configuration, by which a folder is known as a model, comes last."""
    from ..files import write_text
    from ..redaction import without_secrets

    partial = output / f"_saving-{os.getpid()}"
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    for file in sorted(partial.iterdir(), key=lambda one: one.name == "config.json"):
        os.replace(file, output / file.name)
    shutil.rmtree(partial)
    write_text(output / "warm_start.json", json.dumps(without_secrets(summary), indent=2) + "\n")


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
