"""Whether a run survives kills: signal 9 at random moments, inside saves included, then it goes on from `last`.

    python benchmarks/kill_and_resume.py

Trains a tiny random model on the household world, once unbroken and then again and again with kills, on one process
and on two. What a run leaves (weights, records, logged numbers, evaluations) must equal what the unbroken run leaves,
times and paths apart. Prints a table and writes `benchmarks/results/kill_and_resume.json`; exits with 1 when anything
differs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from common import save
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM, TrainerCallback

from taspo_trl import TASPOConfig, TASPOTrainer
from taspo_trl.checkpoints import checkpoint_to_resume, checkpoints_of
from taspo_trl.environments import HouseholdEnvironment
from taspo_trl.quickstart.tokenizer import make_tokenizer


LAYOUTS: dict[str, dict[str, Any]] = {
    "a batch for each step": {"per_device_train_batch_size": 8},
    "two steps for a batch": {"per_device_train_batch_size": 4, "steps_per_generation": 2, "logging_steps": 3},
    "two passes": {"per_device_train_batch_size": 8, "num_iterations": 2, "beta": 0.01},
}
TIMES = ("time", "seconds", "runtime", "per_second", "per_call")


# ---- a run ----------------------------------------------------------------------------------------------------------


class Began(TrainerCallback):
    """Leaves a file when training begins: what was killed before it was the start of Python."""

    def __init__(self, path: Path):
        self.path = path

    def on_train_begin(self, args, state, control, **kwargs):
        self.path.touch()


def train(folder: Path, steps: int, processes: int, layout: dict[str, Any]) -> None:
    """Train to the end, from the last checkpoint where there is one."""
    tokenizer = make_tokenizer("small")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=192,  # so that a save takes long enough to be hit
            intermediate_size=768,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=1024,
            attention_dropout=0.1,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=None,
        )
    )
    values = {**layout, "per_device_train_batch_size": layout["per_device_train_batch_size"] // processes}
    args = TASPOConfig(
        output_dir=str(folder / "run"),
        **{
            "use_cpu": True,
            "report_to": "none",
            "disable_tqdm": True,
            "num_generations": 4,
            "max_completion_length": 8,
            "max_turns": 3,
            "max_steps": steps,
            "logging_steps": 1,
            "save_strategy": "steps",
            "save_steps": 1,
            "save_total_limit": 2,
            "eval_strategy": "steps",
            "eval_steps": 2,
            "per_device_eval_batch_size": 8,
            "gradient_checkpointing": False,
            "learning_rate": 1e-2,
            **values,
        },
    )
    trainer = TASPOTrainer(
        model,
        args=args,
        train_dataset=HouseholdEnvironment.dataset("train", preset="small", size=6),
        eval_dataset=HouseholdEnvironment.dataset("valid_seen", preset="small", size=2),
        environment_factory=HouseholdEnvironment,
        processing_class=tokenizer,
        reward_funcs=[odd_sums],
        callbacks=[Began(folder / "began")],
    )
    found = checkpoints_of(args.output_dir)
    trainer.train(resume_from_checkpoint=checkpoint_to_resume("last" if found else None, args.output_dir))
    trainer.save_state()
    trainer.save_model()
    trainer.end()
    (folder / "ended").touch()


def odd_sums(trajectories, **kwargs):
    """A reward that depends on every sampled token."""
    return [sum(sum(turn.reply_ids) for turn in one.turns) % 7 for one in trajectories]


def start(folder: Path, steps: int, processes: int, layout: dict[str, Any]) -> list[int]:
    """Fork the processes of one run: the packages are imported already, so that a kill costs no half minute."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    children = []
    for rank in range(processes):
        child = os.fork()
        if not child:
            output = os.open(folder / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.environ["PYTHONHASHSEED"] = "0"
            if processes > 1:
                os.environ.update(
                    RANK=str(rank),
                    LOCAL_RANK=str(rank),
                    WORLD_SIZE=str(processes),
                    LOCAL_WORLD_SIZE=str(processes),
                    MASTER_ADDR="127.0.0.1",
                    MASTER_PORT=str(port),
                )
            code = 1
            try:
                train(folder, steps, processes, layout)
                code = 0
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                os._exit(code)
        children.append(child)
    return children


def wait_or_kill(folder: Path, children: list[int], moment: float, in_save: bool) -> str:
    """`ended`, `failed`, or where the kill struck: `start`, `step` or `save`.

    Args:
        folder, children: of the run.
        moment: Seconds after the training began, or after a save began that the dice chose; infinite for no kill.
        in_save: Whether it is counted from a save.
    """
    drafts, began, target = folder / "run" / "_saving", folder / "began", None
    saves, was_saving, chosen = 0, False, random.randint(1, 3)
    codes: dict[int, int] = {}
    while len(codes) < len(children):
        for child in children:
            if child not in codes:
                done, status = os.waitpid(child, os.WNOHANG)
                if done:
                    codes[child] = status
        if any(codes.values()):
            break
        now = time.monotonic()
        is_saving = drafts.exists()
        saves += is_saving and not was_saving
        was_saving = is_saving
        if target is None and began.exists() and (saves >= chosen if in_save else True):
            target = now + moment
        if target is not None and now >= target:
            break
        time.sleep(0.0005)
    is_killed = len(codes) < len(children) and not any(codes.values())
    for child in children:
        if child not in codes:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    if not is_killed:
        return "failed" if any(codes.values()) else "ended"
    return "save" if any(drafts.glob("checkpoint-*")) or any(drafts.glob("model")) else "step"


# ---- what it leaves -------------------------------------------------------------------------------------------------


def left_by(run: Path) -> dict[str, Any]:
    """All that a run leaves, without times and paths."""
    state = json.loads((run / "trainer_state.json").read_text())
    log = [without_times(entry) for entry in state["log_history"] if "train_runtime" not in entry]
    return {
        "weights": {name: value.numpy().tobytes() for name, value in load_file(run / "model.safetensors").items()},
        "checkpoints": [one.name for one in checkpoints_of(run)],
        "records": {
            file.name: [without_times(json.loads(line)) for line in file.read_text().splitlines()]
            for file in sorted((run / "_trajectories").glob("*.jsonl"))
        },
        "metrics": log,
        "evaluations": {
            file.name: without_times(json.loads(file.read_text())) for file in sorted((run / "_evaluations").iterdir())
        },
    }


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in value.items() if not any(word in k for word in TIMES)}
    if isinstance(value, list):
        return [without_times(one) for one in value]
    return value


def differences(whole: dict[str, Any], broken: dict[str, Any]) -> list[str]:
    return [name for name in whole if json.dumps(repr(whole[name])) != json.dumps(repr(broken[name]))]


# ---- kills ----------------------------------------------------------------------------------------------------------


def broken_run(folder: Path, most: int, steps: int, processes: int, layout: dict[str, Any]) -> dict[str, int]:
    """A run that is killed up to `most` times and goes on each time; how often it was, and where."""
    folder.mkdir(parents=True)
    kills = {"step": 0, "save": 0}
    while True:
        (folder / "began").unlink(missing_ok=True)
        count = sum(kills.values())
        in_save = count % 3 > 0
        moment = float("inf") if count >= most else random.uniform(0, 0.05 if in_save else 2.5)
        end = wait_or_kill(folder, start(folder, steps, processes, layout), moment, in_save)
        if end == "ended":
            return kills
        if end == "failed":
            raise SystemExit(f"a resume failed; see {folder / 'output.txt'}:\n{tail(folder / 'output.txt')}")
        kills[end] += 1


def tail(path: Path) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-30:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=24, help="at least so many, on one and on two processes each")
    parser.add_argument("--kills_per_run", type=int, default=4)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--layouts", nargs="+", default=list(LAYOUTS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-results", action="store_true", help="write no results file")
    options = parser.parse_args()
    random.seed(options.seed)
    console, rows = Console(), []
    with tempfile.TemporaryDirectory() as made:
        for processes in options.processes:
            whole, total, number = {}, {name: {"step": 0, "save": 0} for name in options.layouts}, 0
            differing: dict[str, set[str]] = {name: set() for name in options.layouts}
            runs = dict.fromkeys(options.layouts, 0)
            while sum(sum(one.values()) for one in total.values()) < options.kills:
                name = options.layouts[number % len(options.layouts)]
                layout = LAYOUTS[name]
                if name not in whole:
                    folder = Path(made, f"whole-{processes}-{number}")
                    broken_run(folder, 0, options.steps, processes, layout)
                    whole[name] = left_by(folder / "run")
                folder = Path(made, f"broken-{processes}-{number}")
                left = options.kills - sum(sum(one.values()) for one in total.values())
                kills = broken_run(folder, min(options.kills_per_run, left), options.steps, processes, layout)
                for where, count in kills.items():
                    total[name][where] += count
                differing[name] |= set(differences(whole[name], left_by(folder / "run")))
                runs[name] += 1
                number += 1
                shutil.rmtree(folder)
                console.print(f"{processes} processes, {name}: {kills}, differences {sorted(differing[name])}")
            rows += [
                {
                    "processes": processes,
                    "layout": name,
                    "runs": runs[name],
                    "kills_between_saves": total[name]["step"],
                    "kills_inside_saves": total[name]["save"],
                    "failed_resumes": 0,
                    "differences": sorted(differing[name]),
                }
                for name in options.layouts
            ]
    table = Table("processes", "layout", "runs", "kills between saves", "inside saves", "differences")
    for row in rows:
        table.add_row(
            *(str(row[key]) for key in ("processes", "layout", "runs", "kills_between_saves", "kills_inside_saves")),
            ", ".join(row["differences"]) or "none",
        )
    console.print(table)
    if not options.no_results:
        print(f"Written to {save('kill_and_resume', {'seed': options.seed, 'steps': options.steps, 'rows': rows})}.")
    return int(any(row["differences"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
