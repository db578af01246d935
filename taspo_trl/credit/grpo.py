"""GRPO: the outcome against the group's mean, over trajectories or, as in verl-agent, over rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from .base import NOTHING, Batch, Needs, Ragged, normalised
from .option_checks import check_choice


Statistics = Literal["trajectories", "rows"]


@dataclass(frozen=True)
class GRPO:
    """A_it = A_i, the same on every turn of a trajectory.

    `stats="rows"` is verl-agent's reading: every turn is a row that holds 10 r_i, and mean and standard deviation go
    over the rows of the group. Long trajectories then count more, so that long successes depress everybody.

    Args:
        stats (`str`, *optional*, defaults to `"trajectories"`):
            `"trajectories"`: A_i as it was computed for the whole batch. `"rows"`: (10 r_i - mean over rows) / (sample
            std over rows + 1e-6). The penalty for invalid actions stays a share of r_i; verl-agent takes it from the
            row alone.

    Raises:
        ConfigurationError: `stats` is something else.
    """

    stats: Statistics = "trajectories"

    def __post_init__(self) -> None:
        check_choice("stats", self.stats, get_args(Statistics), "'rows' is verl-agent's.")

    @property
    def needs(self) -> Needs:
        return NOTHING

    def __call__(self, batch: Batch) -> Ragged:
        values = [[a] * len(t.turns) for t, a in zip(batch.trajectories, batch.outcome, strict=True)]
        if self.stats == "rows":
            for members in batch.usable:
                rows = [(i, turn_idx) for i in members for turn_idx in range(len(values[i]))]
                rewards = [10.0 * batch.trajectories[i].reward for i, _ in rows]
                for (i, turn_idx), advantage in zip(rows, normalised(rewards, "sample"), strict=True):
                    values[i][turn_idx] = advantage
        return values
