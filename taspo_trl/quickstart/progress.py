"""One progress bar over training steps with the numbers worth watching, in place of a dictionary for each step."""

from __future__ import annotations

from collections import deque
from typing import Any

from tqdm.auto import tqdm
from transformers import TrainerCallback


_WINDOW = 5  # single steps swing by ±0.12 with 8 tasks; a moving average is what can be read


class StepBar(TrainerCallback):
    """Shows success (mean of the last 5 steps), guidance coverage and invalid actions."""

    def __init__(self) -> None:
        self._bar: tqdm | None = None
        self._success: deque[float] = deque(maxlen=_WINDOW)

    def on_train_begin(self, args, state, control, **kwargs: Any) -> None:
        self._bar = tqdm(total=state.max_steps, desc="training", unit="step")

    def on_log(self, args, state, control, logs=None, **kwargs: Any) -> None:
        if self._bar is None or not logs or "success" not in logs:
            return
        if logs["success"] is not None:
            self._success.append(logs["success"])
        self._bar.set_postfix_str(
            f"success {sum(self._success) / max(1, len(self._success)):.2f}, "
            f"guided {logs.get('guidance/coverage') or 0:.0%}, "
            f"invalid actions {logs.get('actions/invalid_share') or 0:.0%}"
        )

    def on_step_end(self, args, state, control, **kwargs: Any) -> None:
        if self._bar is not None:
            self._bar.update()

    def on_train_end(self, args, state, control, **kwargs: Any) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
