"""One run of the study in a process of its own: warm start, training, held-out plays.

    python -m benchmarks.study.play FOLDER

The configuration is the first line of its input, the result goes to `FOLDER/result.json`. Its input stays open as long
as its master lives: where that is killed, this process ends too.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taspo_trl.files import write_text


CURVES = (
    "success",
    "reward",
    "entropy",
    "turns/mean",
    "turns/mean_success",
    "actions/invalid_share",
    "guidance/coverage",
    "credit/weighted_share",
    "credit/weight_std",
    "credit/auc_progress",
    "distill/loss",
    "step_time",
)
"""Logged names of which a value for each update is kept."""
SPLITS = ("valid_seen", "valid_unseen")
MAX_POSITIONS = 2048  # long episodes' replays under a block are longer than the quickstart's


def play(configuration: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Train and evaluate as a configuration says; `folder` holds the run's files while it lasts.

    Returns:
        `dict`: `first_batch` (a digest: all methods of a seed start alike), `policy` (a digest of the weights that
        training starts from), `curves` (name -> a value for each update), `evaluations` (`"sampled@20"` -> split ->
        families and outcomes of all tasks) and `seconds` by part.
    """
    from transformers.utils import logging

    logging.disable_progress_bar()
    seconds: dict[str, float] = {}
    with _timed(seconds, "policy"):
        model, tokenizer = _policy(configuration)
        policy = _weights_digest(model)
    evaluations: dict[str, Any] = {}
    trainer = _trainer(configuration, model, tokenizer, folder)
    updates = configuration["updates"]
    try:
        if updates:
            trainer.add_callback(_at_checkpoints(configuration, trainer, evaluations, seconds))
            with _timed(seconds, "training"):
                trainer.train()
            seconds["training"] -= seconds.get("checkpoints", 0.0)
        with _timed(seconds, "evaluation"):
            tasks = configuration["evaluation"]
            evaluations[f"sampled@{updates}"] = _plays(trainer, 1.0, tasks["tasks"])
            evaluations[f"greedy@{updates}"] = _plays(trainer, 0.0, tasks["greedy_tasks"])
        steps = [entry for entry in trainer.state.log_history if "success" in entry]
    finally:
        trainer.close()
    return {
        "policy": policy,
        "first_batch": _first_batch(folder) if updates else None,
        "curves": {name: [_plain(step.get(name)) for step in steps] for name in CURVES if _is_logged(name, steps)},
        "evaluations": evaluations,
        "seconds": {name: round(value, 2) for name, value in seconds.items()},
    }


def warm_start(setting: Mapping[str, Any]) -> Any:
    """The recipe of a setting's policy."""
    from taspo_trl.quickstart.demonstrations import DemonstrationSettings
    from taspo_trl.quickstart.policy import WarmStart

    steps = setting.get("warm_start_steps", 1500)
    shown = DemonstrationSettings(preset=setting["preset"], noise_share=setting["noise_share"])
    return WarmStart(num_steps=steps, num_turns=steps * 64 // 3, demonstrations=shown)


def _policy(configuration: Mapping[str, Any]) -> tuple[Any, Any]:
    model, tokenizer = _built(warm_start(configuration["setting"]))
    model.config.max_position_embeddings = MAX_POSITIONS  # rotary positions have no table that would end
    return model, tokenizer


def _built(recipe: Any) -> tuple[Any, Any]:
    """The policy of a recipe, made by one process while the others wait."""
    from filelock import FileLock

    from taspo_trl.quickstart.policy import cached_folder, tiny_policy

    place = cached_folder(recipe)
    with FileLock(f"{place}.lock"):
        return tiny_policy(recipe)


def _teacher(setting: Mapping[str, Any], size: str) -> str:
    """The folder of a policy that was warm-started without faults, for methods with a second model."""
    from dataclasses import replace

    from taspo_trl.quickstart.policy import cached_folder

    recipe = warm_start(setting)
    shown = replace(recipe.demonstrations, careless_share=0.0, noise_share=0.05)
    recipe = replace(recipe, demonstrations=shown, hidden_size=256 if size == "large" else recipe.hidden_size)
    _built(recipe)
    return str(cached_folder(recipe))


def arguments(configuration: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Fields of [`~taspo_trl.TASPOConfig`] of a run."""
    method = {name: value for name, value in configuration["method"].items() if name not in ("name", "teacher")}
    training, evaluation = dict(configuration["training"]), configuration["evaluation"]
    group = training["num_generations"]
    if "teacher" in configuration["method"]:
        method["teacher_model"] = _teacher(configuration["setting"], configuration["method"]["teacher"])
    return {
        "output_dir": str(folder),
        "seed": configuration["seed"],
        "eval_seed": configuration["seed"],
        "max_steps": max(1, configuration["updates"]),
        "per_device_train_batch_size": group * training.pop("tasks_per_update"),
        "per_device_eval_batch_size": evaluation["batch_size"],
        **training,
        **method,
        "lr_scheduler_type": "constant",
        "gradient_checkpointing": False,
        "use_cpu": True,
        "bf16": False,  # the same arithmetic on every processor
        "full_determinism": True,  # first batches are paired by digest, however busy the machine is
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }


def _trainer(configuration: Mapping[str, Any], model: Any, tokenizer: Any, folder: Path) -> Any:
    from taspo_trl import TASPOConfig, TASPOTrainer
    from taspo_trl.environments import HouseholdEnvironment

    preset, turns = configuration["setting"]["preset"], configuration["setting"]["turns"]

    class Household(HouseholdEnvironment):
        """With as many turns as the setting says."""

        def __init__(self) -> None:
            super().__init__(preset)
            self.max_turns = turns

        def reset(self, **row: Any) -> Any:
            start = super().reset(**row)
            self.max_turns = turns
            return start

    tasks = configuration["evaluation"]["tasks"]
    return TASPOTrainer(
        model=model,
        args=TASPOConfig(**arguments(configuration, folder)),
        processing_class=tokenizer,
        train_dataset=HouseholdEnvironment.dataset("train", preset=preset),
        eval_dataset={split: HouseholdEnvironment.dataset(split, preset=preset, size=tasks) for split in SPLITS},
        environment_factory=Household,
    )


def _plays(trainer: Any, temperature: float, tasks: int) -> dict[str, Any]:
    """Split -> plays of its first held-out tasks, as compact as they can be paired from."""
    kept, trainer.args.eval_temperature = trainer.args.eval_temperature, temperature
    try:
        found = {}
        for split, whole in trainer.eval_dataset.items():
            rows = whole.select(range(tasks))
            trainer.evaluate(rows, metric_key_prefix=f"eval_{split}")
            found[split] = compact(rows["task_id"], trainer.last_evaluation.plays)
        return found
    finally:
        trainer.args.eval_temperature = kept


def compact(task_ids: Any, plays: Any) -> dict[str, Any]:
    """The plays in the order of the tasks: a digest of their ids, families, and a character for each outcome."""
    by_task = {play.task_id: play for play in plays}
    ordered = [by_task[task_id] for task_id in task_ids]
    families = sorted({play.family for play in ordered})
    return {
        "tasks": hashlib.blake2b("\n".join(task_ids).encode(), digest_size=8).hexdigest(),
        "families": families,
        "family": "".join(format(families.index(play.family), "x") for play in ordered),
        "success": "".join("-" if not play.is_usable else str(int(play.success)) for play in ordered),
        "turns": [play.num_turns for play in ordered],
    }


def _at_checkpoints(
    configuration: Mapping[str, Any], trainer: Any, evaluations: dict[str, Any], seconds: dict[str, float]
) -> Any:
    from transformers import TrainerCallback

    class AtCheckpoints(TrainerCallback):
        """Plays the held-out tasks in the middle of the training."""

        # Not at the end of the step before: an evaluation's log would take the place of that step's own.
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step in configuration["checkpoints"]:
                with _timed(seconds, "checkpoints"):
                    tasks = configuration["evaluation"]["checkpoint_tasks"]
                    evaluations[f"sampled@{state.global_step}"] = _plays(trainer, 1.0, tasks)

    return AtCheckpoints()


def _first_batch(folder: Path) -> str:
    """A digest of what was sampled before the first update."""
    from taspo_trl.records import read_records

    digest = hashlib.blake2b(digest_size=8)
    first = sorted((folder / "_trajectories").glob("*.jsonl"))[0]
    found = [record.trajectory for record in read_records(first) if record.rollout == 0]
    for one in sorted(found, key=lambda trajectory: trajectory.uid):
        digest.update(repr((one.task_text, [(turn.observation, turn.reply_text) for turn in one.turns])).encode())
    return digest.hexdigest()


def _weights_digest(model: Any) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _is_logged(name: str, steps: list[dict[str, Any]]) -> bool:
    return any(step.get(name) is not None for step in steps)


def _plain(value: Any) -> float | None:
    return round(float(value), 6) if value is not None and math.isfinite(value) else None


@contextlib.contextmanager
def _timed(seconds: dict[str, float], name: str) -> Any:
    started = time.perf_counter()
    yield
    seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - started


def _end_with_master() -> None:
    sys.stdin.read()
    os._exit(3)


def main() -> None:
    folder = Path(sys.argv[1])
    configuration = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_master, daemon=True).start()
    import torch

    torch.set_num_threads(1)
    write_text(folder / "result.json", json.dumps(play(configuration, folder / "run")))


if __name__ == "__main__":
    main()
