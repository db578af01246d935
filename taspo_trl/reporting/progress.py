"""One line with the numbers worth watching while a run trains, in place of a dictionary for each log entry."""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from tqdm.auto import tqdm
from transformers import PrinterCallback, TrainerCallback
from transformers.trainer import DEFAULT_PROGRESS_CALLBACK
from transformers.utils import is_in_notebook


_WINDOW = 5  # single steps swing by ±0.12 with 8 tasks; a moving average is what can be read


class StepBar(TrainerCallback):
    """Shows how far a run is, with success, reward, guidance and invalid actions.

    [`TASPOTrainer`] takes it in place of the Trainer's own progress. On a terminal and in a notebook it is a bar;
    where the output is a file or a pipe, or with `disable_tqdm`, a line for each log entry:

    ```text
    training:  90%|████ | 54/60 [..., success 0.39, guided 73%, invalid actions 23%]
    step 54/60, 4.1 s a step: success 0.39, guided 73%, invalid actions 23%
    ```

    `success` is the mean of the last five log entries; `reward` is shown where it is not the success, and `guided`
    where the method has contexts. Every number stands in the run's log (`trainer_state.json`, trackers): for the
    dictionaries themselves pass transformers' `PrinterCallback`.

    Args:
        is_interactive (`bool`, *optional*):
            A bar (`True`) or lines (`False`). If `None`, a bar where one can be drawn, unless `disable_tqdm` is set.
    """

    def __init__(self, is_interactive: bool | None = None) -> None:
        self._wanted = is_interactive
        self._bar: tqdm | None = None
        self._success: deque[float] = deque(maxlen=_WINDOW)
        self._reward: deque[float] = deque(maxlen=_WINDOW)
        self._said: tuple[int, float] = (0, 0.0)
        self._is_training = False

    def on_train_begin(self, args, state, control, **kwargs: Any) -> None:
        self._said = (state.global_step, time.monotonic())
        self._is_training = True
        if not state.is_world_process_zero:
            return
        draws = self._wanted
        if draws is None:
            draws = can_draw() and not args.disable_tqdm
        if draws:
            self._bar = tqdm(total=state.max_steps, initial=state.global_step, desc="training", unit="step")

    def on_log(self, args, state, control, logs=None, **kwargs: Any) -> None:
        if not self._is_training or not state.is_world_process_zero or not logs:
            return
        if (line := evaluation_line(logs)) is not None:
            self._say(f"step {state.global_step}, {line}")
        if "success" not in logs:
            return
        for name, window in (("success", self._success), ("reward", self._reward)):
            if logs.get(name) is not None and math.isfinite(logs[name]):
                window.append(logs[name])
        told = self._told(logs)
        if self._bar is not None:
            self._bar.set_postfix_str(told)
            return
        (step, moment), now = self._said, time.monotonic()
        self._said = (state.global_step, now)
        pace = (now - moment) / max(1, state.global_step - step)
        self._say(f"step {state.global_step}/{state.max_steps}, {pace:.1f} s a step: {told}")

    def on_step_end(self, args, state, control, **kwargs: Any) -> None:
        if self._bar is not None:
            self._bar.update()

    def on_train_end(self, args, state, control, **kwargs: Any) -> None:
        self._is_training = False
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _told(self, logs: Mapping[str, Any]) -> str:
        success, reward = _mean(self._success), _mean(self._reward)
        parts = ["success unknown" if success is None else f"success {success:.2f}"]
        if reward is not None and (success is None or abs(success - reward) > 5e-3):
            parts.append(f"reward {reward:.2f}")
        if logs.get("guidance/coverage") is not None:
            parts.append(f"guided {logs['guidance/coverage']:.0%}")
        parts.append(f"invalid actions {logs.get('actions/invalid_share') or 0:.0%}")
        if failed := logs.get("episodes/failed_share"):
            parts.append(f"failed episodes {failed:.0%}")
        return ", ".join(parts)

    def _say(self, line: str) -> None:
        if self._bar is not None:
            self._bar.write(line)
        else:
            print(line, flush=True)


def instead_of_dictionaries(trainer: Any) -> None:
    """Let a [`StepBar`] show a Trainer's progress, unless it has one: the Trainer's own prints every number.

    What was passed beside the Trainer's own stays, also another `PrinterCallback`.
    """
    trainer.remove_callback(PrinterCallback if trainer.args.disable_tqdm else DEFAULT_PROGRESS_CALLBACK)
    if not any(isinstance(one, StepBar) for one in trainer.callback_handler.callbacks):
        trainer.add_callback(StepBar())


def can_draw() -> bool:
    """Whether standard error is a terminal or a notebook, where a bar can be drawn over."""
    return is_in_notebook() or bool(getattr(sys.stderr, "isatty", lambda: False)())


def evaluation_line(logs: Mapping[str, Any]) -> str | None:
    """What an evaluation's log entry says in a line; None for an entry of something else."""
    shares = [name for name in logs if name.startswith("eval") and name.endswith("_success") and f"{name}_low" in logs]
    if not shares:
        return None
    name = shares[0]
    low, high = logs[f"{name}_low"], logs.get(f"{name}_high")
    parts = [f"{name} {_percent(logs[name])} ({_percent(low)} to {_percent(high)})"]
    plays = logs.get(f"{name.removesuffix('_success')}_num_plays")
    return " ".join([*parts, f"over {plays:.0f} episodes"] if plays else parts)


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{share:.1%}".replace("%", " %")


def _mean(values: deque[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
