"""Group-relative advantages A_i over trajectories, never over rows (docs/method.md, sections 1 and 8).

Pure arithmetic in float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


_STD_EPSILON = 1e-4  # TRL's constant
_EQUAL_REWARDS = 1e-8


def group_advantages(
    rewards_G: Sequence[Sequence[float | None]], scale_rewards: str = "group"
) -> tuple[list[list[float]], list[bool]]:
    """A_i = (r_i - mean) / (sample std + 1e-4) over each group's usable trajectories.

    Args:
        rewards_G (`Sequence[Sequence[float | None]]`):
            The training rewards of each group. None = the trajectory is not usable and counts nowhere.
        scale_rewards (`str`, *optional*, defaults to `"group"`):
            TRL's field: `"group"` divides by the group's standard deviation, `"batch"` by that of all usable rewards,
            `"none"` by nothing.

    Returns:
        `tuple[list[list[float]], list[bool]]`: A_i in the shape of `rewards_G`, exactly 0.0 for unusable trajectories
        and in groups without contrast (fewer than two usable members, or max - min <= 1e-8); and for each group
        whether it is without contrast.
    """
    centred_G = [centred_rewards(group) for group in rewards_G]
    return scaled_advantages(centred_G, rewards_G, scale_rewards), [not any(centred) for centred in centred_G]


def centred_rewards(rewards: Sequence[float | None]) -> list[float]:
    """r_i - mean of one group: the sign of A_i, and whether it is 0, before other groups are known.

    Args:
        rewards (`Sequence[float | None]`):
            None = not usable.

    Returns:
        `list[float]`: exactly 0.0 for unusable trajectories and without contrast.
    """
    values = [r for r in rewards if r is not None]
    if len(values) < 2 or max(values) - min(values) <= _EQUAL_REWARDS:
        return [0.0] * len(rewards)
    mean = math.fsum(values) / len(values)
    return [0.0 if r is None else r - mean for r in rewards]


def scaled_advantages(
    centred_G: Sequence[Sequence[float]], rewards_G: Sequence[Sequence[float | None]], scale_rewards: str = "group"
) -> list[list[float]]:
    """A_i from the centred rewards of all groups; see [`group_advantages`]."""
    if scale_rewards not in ("group", "batch", "none"):
        raise ValueError(f"`scale_rewards` must be 'group', 'batch' or 'none', got {scale_rewards!r}.")
    usable = [[r for r in group if r is not None] for group in rewards_G]
    batch = np.array([r for group in usable for r in group], dtype=np.float64)
    batch_std = float(batch.std(ddof=1)) if len(batch) > 1 else 0.0
    advantages_G = []
    for centred, values in zip(centred_G, usable, strict=True):
        if not any(centred):
            advantages_G.append([0.0] * len(centred))
            continue
        scale = 1.0
        if scale_rewards == "group":
            scale = float(np.std(np.array(values, dtype=np.float64), ddof=1)) + _STD_EPSILON
        elif scale_rewards == "batch":
            scale = batch_std + _STD_EPSILON
        advantages_G.append([value / scale for value in centred])
    return advantages_G
