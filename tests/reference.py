"""An independent float64 reference of the method's equations E1 to E8, in NumPy.

Written from the equations alone, in their nested form: a mean over trajectories of a mean over turns of a mean over
tokens. It shares no code with the package and takes plain lists.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class PlayedTurn:
    """What E8 needs of one turn, one value for each sampled token."""

    logps: Sequence[float]
    old_logps: Sequence[float]
    ref_logps: Sequence[float]
    entropies: Sequence[float]
    weights: Sequence[float]
    """w_it repeated over the reply, or one value for each token (token-level allocation)."""


@dataclass(frozen=True)
class PlayedTrajectory:
    advantage: float
    turns: Sequence[PlayedTurn]


def advantages(rewards: Sequence[float]) -> np.ndarray:
    """A_i of one group of usable trajectories."""
    values = np.asarray(rewards, dtype=np.float64)
    if len(values) < 2 or values.max() - values.min() <= 1e-8:
        return np.zeros(len(values))
    mean = values.sum() / len(values)
    std = math.sqrt(((values - mean) ** 2).sum() / (len(values) - 1))
    return (values - mean) / (std + 1e-4)


def shifts(plain: Sequence[float], guided: Sequence[float]) -> np.ndarray:
    """E3."""
    return np.asarray(guided, dtype=np.float64) - np.asarray(plain, dtype=np.float64)


def support(deltas: Sequence[float], clip: float, threshold: float) -> float:
    """E4; NaN for a turn that cannot be scored."""
    deltas = np.asarray(deltas, dtype=np.float64)
    if len(deltas) == 0 or not np.isfinite(deltas).all():
        return math.nan
    counted = np.where(np.abs(deltas) < threshold, 0.0, np.minimum(np.maximum(deltas, -clip), clip))
    return float(counted.sum() / len(deltas))


def weights(
    supports: Sequence[float],
    advantage: float,
    temperature: float,
    weight_range: float,
    step_size: float | None = None,
) -> np.ndarray:
    """E5 to E7; NaN marks what is not in I_i."""
    values = np.asarray(supports, dtype=np.float64)
    result = np.ones(len(values))
    inside = np.isfinite(values)
    if advantage == 0 or inside.sum() < 2:
        return result
    centred = values[inside] - values[inside].mean()  # E5
    scores = np.tanh(np.sign(advantage) * centred / temperature)  # E6
    eta = weight_range / 2 if step_size is None else step_size
    result[inside] = 1 + box_solution(eta * (scores - scores.mean()), weight_range)  # E7
    return result


def box_solution(target: np.ndarray, bound: float) -> np.ndarray:
    """argmax of target @ x - x @ x / 2 subject to sum x = 0 and |x| <= bound: the KKT multiplier by bisection."""
    low, high = target.min() - bound, target.max() + bound
    for _ in range(200):
        middle = (low + high) / 2
        if np.clip(target - middle, -bound, bound).sum() > 0:
            low = middle
        else:
            high = middle
    return np.clip(target - (low + high) / 2, -bound, bound)


def token_weights(
    deltas_T: Sequence[Sequence[float]],
    advantage: float,
    clip: float,
    threshold: float,
    temperature: float,
    weight_range: float,
    step_size: float | None = None,
) -> list[np.ndarray]:
    """Token-level allocation: every action token of a scorable turn is its own member of the pool."""
    pool = []
    for deltas in deltas_T:
        if math.isnan(support(deltas, clip, threshold)):
            pool.extend([math.nan] * len(deltas))
        else:
            pool.extend(support([delta], clip, threshold) for delta in deltas)
    flat = weights(pool, advantage, temperature, weight_range, step_size)
    return np.split(flat, np.cumsum([len(deltas) for deltas in deltas_T])[:-1])


def surrogate(ratio: float, advantage: float, low: float, high: float, dual: float) -> float:
    """PPO's clipped objective with the dual clip for A < 0 (to be maximised)."""
    clipped = min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)
    return max(clipped, dual * advantage) if advantage < 0 else clipped


def loss(
    trajectories: Sequence[PlayedTrajectory],
    *,
    low: float = 0.2,
    high: float = 0.2,
    dual: float = 3.0,
    beta: float = 0.0,
    entropy_coef: float = 0.0,
) -> float:
    """E8 as nested means; a turn without tokens counts in T_i and adds nothing."""
    total = 0.0
    for trajectory in trajectories:
        of_trajectory = 0.0
        for turn in trajectory.turns:
            of_turn = 0.0
            for logp, old, ref, entropy, weight in zip(
                turn.logps, turn.old_logps, turn.ref_logps, turn.entropies, turn.weights, strict=True
            ):
                gain = surrogate(math.exp(logp - old), trajectory.advantage * weight, low, high, dual)
                k3 = math.exp(ref - logp) - (ref - logp) - 1
                of_turn += -gain + beta * k3 - entropy_coef * entropy
            of_trajectory += of_turn / len(turn.logps) if len(turn.logps) else 0.0
        total += of_trajectory / len(trajectory.turns)
    return total / len(trajectories)
