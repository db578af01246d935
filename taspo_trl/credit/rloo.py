"""RLOO: a trajectory's reward against the mean of the others of its group; REINFORCE++ baseline as an option."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from .base import NOTHING, Batch, Needs, Ragged, normalised
from .option_checks import check_choice


Scale = Literal["none", "batch"]


@dataclass(frozen=True)
class RLOO:
    """A_it = r_i - mean of the other usable rewards = n / (n - 1) * (r_i - mean over the n usable members).

    A trajectory without a usable peer has no baseline and gets 0 (verl returns its raw reward); a group whose rewards
    differ by at most 1e-8 gets 0. Statistics go over trajectories, never over rows.

    Args:
        scale (`str`, *optional*, defaults to `"none"`):
            `"batch"` is the baseline form of REINFORCE++: (r_i - mean of the group) / s, where s is the sample
            standard deviation of these differences over the whole batch: the only setting in which groups see each
            other.

    Raises:
        ConfigurationError: `scale` is something else.
    """

    scale: Scale = "none"

    def __post_init__(self) -> None:
        check_choice("scale", self.scale, get_args(Scale), "'none' is RLOO, 'batch' the baseline of REINFORCE++.")

    @property
    def needs(self) -> Needs:
        return NOTHING

    def __call__(self, batch: Batch) -> Ragged:
        centred = {
            i: value
            for members in batch.usable
            if len(members) > 1
            for i, value in zip(members, normalised([batch.trajectories[i].reward for i in members]), strict=True)
        }
        if self.scale == "batch":
            # A mean of 0 in every group makes 0 the mean of the batch.
            std = math.sqrt(math.fsum(c * c for c in centred.values()) / max(1, len(centred) - 1))
            values = {i: c / std if std else 0.0 for i, c in centred.items()}
        else:
            values = {
                i: centred[i] * len(members) / (len(members) - 1)
                for members in batch.usable
                for i in members
                if i in centred
            }
        return [[values.get(i, 0.0)] * len(t.turns) for i, t in enumerate(batch.trajectories)]

    def report(self, batch: Batch) -> dict[str, float]:
        """`credit/without_peer`: share of usable trajectories that have no usable peer, hence no baseline."""
        sizes = [len(members) for members in batch.usable]
        return {"credit/without_peer": sizes.count(1) / sum(sizes) if sum(sizes) else 0.0}
