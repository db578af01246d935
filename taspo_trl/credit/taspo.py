"""From likelihood shifts to weights on a trajectory's outcome advantage (docs/method.md, E4 to E7).

Pure arithmetic on Python floats: no tensors, no model. The outcome decides the sign and the size of the advantage; the
shifts only move credit between the turns of one trajectory, inside `1 ± weight_range` and with mean one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..types import Trajectory
from .base import Batch, Guarantees, Needs, Ragged, Weighed, weigh_turns
from .option_checks import check_choice


def action_support(shifts: Sequence[float], clip: float = 2.0, threshold: float = 0.0) -> float | None:
    """How strongly the guidance supports one executed action (E4).

    d_it = (1 / |M_it|) * sum over k of clip(Delta_itk, -c, +c), where shifts below the threshold count as 0 and stay
    in the divisor.

    Args:
        shifts (`Sequence[float]`):
            Delta_itk of the turn's action tokens, |M_it| values.
        clip (`float`, *optional*, defaults to `2.0`):
            c, the bound on a single token's shift.
        threshold (`float`, *optional*, defaults to `0.0`):
            kappa: shifts with |Delta| < kappa count as 0.

    Returns:
        `float` or `None`: None when there are no shifts or one of them is not finite; the turn is then unscorable.

    Raises:
        ValueError: `clip` is not positive or `threshold` is negative.
    """
    if not clip > 0:
        raise ValueError(f"`clip` must be positive, got {clip!r}.")
    if not threshold >= 0:
        raise ValueError(f"`threshold` must not be negative, got {threshold!r}.")
    if len(shifts) == 0 or not all(math.isfinite(shift) for shift in shifts):
        return None
    mean = math.fsum(clipped(shift, clip, threshold) for shift in shifts) / len(shifts)
    return max(-clip, min(clip, mean))  # the division may round past the bound


def credit_weights(
    support: Sequence[float | None],
    advantage: float,
    temperature: float = 0.5,
    weight_range: float = 0.4,
    step_size: float | None = None,
    capped: Sequence[bool] = (),
) -> list[float]:
    """The weights of a trajectory's turns from their relative support (E5 to E7).

    d^_it = d_it - mean d_iu;  q_it = tanh(sign(A_i) * d^_it / tau);  w_it = 1 + eta * (q_it - mean q_iu), the means
    being taken over the scorable turns I_i. For a step size so large that this leaves the bounds, the weights are the
    solution of max eta * sum q (w - 1) - 1/2 * sum (w - 1)^2 subject to sum (w - 1) = 0 and |w - 1| <= eps_w, and on
    capped turns (ours, and no part of the paper) to A_i w <= A_i.

    Args:
        support (`Sequence[float | None]`):
            d_it, one value for each of the T_i turns. None or a non-finite value marks an unscorable turn.
        advantage (`float`):
            A_i; only its sign is used.
        temperature (`float`, *optional*, defaults to `0.5`):
            tau.
        weight_range (`float`, *optional*, defaults to `0.4`):
            eps_w: weights lie in [1 - eps_w, 1 + eps_w].
        step_size (`float`, *optional*):
            eta. None takes eps_w / 2, for which no bound is ever active.
        capped (`Sequence[bool]`, *optional*):
            Which of the T_i turns get no better credit than the outcome's: a weight of at most 1 where A_i > 0, of at
            least 1 where A_i < 0. None by default.

    Returns:
        `list[float]`: w_it, T_i values with mean 1. Unscorable turns get exactly 1.0, and so do all turns when the
        advantage is 0 or fewer than two turns are scorable.

    Raises:
        ValueError: `advantage` is not finite, `temperature` <= 0, `weight_range` outside [0, 1), `step_size` < 0 or
            not finite.
    """
    if not math.isfinite(advantage):
        raise ValueError(f"`advantage` must be a finite number, got {advantage!r}.")
    if not temperature > 0:
        raise ValueError(f"`temperature` must be positive, got {temperature!r}.")
    if not 0 <= weight_range < 1:
        raise ValueError(f"`weight_range` must lie in [0, 1), got {weight_range!r}: a weight must stay positive.")
    if step_size is not None and not 0 <= step_size < math.inf:
        raise ValueError(f"`step_size` must be a finite number that is not negative, got {step_size!r}.")

    weights = [1.0] * len(support)
    scorable = [(t, d) for t, d in enumerate(support) if d is not None and math.isfinite(d)]
    if advantage == 0 or len(scorable) < 2:
        return weights

    mean_support = math.fsum(d for _, d in scorable) / len(scorable)
    sign = math.copysign(1.0, advantage)
    preferences = [math.tanh(sign * (d - mean_support) / temperature) for _, d in scorable]  # E5, E6
    mean_preference = math.fsum(preferences) / len(preferences)
    eta = weight_range / 2 if step_size is None else step_size
    offsets = [eta * (q - mean_preference) for q in preferences]
    highs = [0.0 if capped and capped[t] else weight_range for t, _ in scorable]
    # What is capped from above for praise is for blame capped from below: the same problem with all signs turned.
    is_turned = any(capped) and advantage < 0
    offsets = _box_constrained([-x for x in offsets] if is_turned else offsets, weight_range, highs)
    for (t, _), offset in zip(scorable, offsets, strict=True):
        weights[t] = 1.0 - offset if is_turned else 1.0 + offset  # E7
    return weights


@dataclass(frozen=True)
class TurnWeights:
    """TASPO's weight rule: A~_it = A_i w_it with one weight for each turn (E1, E4 to E7).

    Args:
        clip (`float`, *optional*, defaults to `2.0`), threshold (`float`, *optional*, defaults to `0.0`):
            c and kappa of [`action_support`]; in training `shift_clip` and `shift_threshold`.
        temperature (`float`, *optional*, defaults to `0.5`), weight_range (`float`, *optional*, defaults to `0.4`), \
        step_size (`float`, *optional*):
            tau, eps_w and eta of [`credit_weights`]; in training `score_temperature`, `weight_range` and
            `weight_step_size`.
        block (`str`, *optional*, defaults to `"aligned"`):
            Whose shifts are weighed.
        cap_refused (`bool`, *optional*, defaults to `False`):
            An action that the environment refused has no better credit than the outcome's: a weight of at most 1 where
            A_i > 0, of at least 1 where A_i < 0. Ours, not the paper's.
    """

    clip: float = 2.0
    threshold: float = 0.0
    temperature: float = 0.5
    weight_range: float = 0.4
    step_size: float | None = None
    block: str = "aligned"
    cap_refused: bool = False

    def __post_init__(self) -> None:
        check_choice("cap_refused", self.cap_refused, (False, True), "False is the paper's.")

    @property
    def needs(self) -> Needs:
        return Needs(blocks=(self.block,), scope="action")

    @property
    def guarantees(self) -> Guarantees:
        return Guarantees(bounds=(1 - self.weight_range, 1 + self.weight_range), mean_one="turns", per_trajectory=True)

    def __call__(self, batch: Batch, advantages: Ragged) -> Weighed:
        supports = [supports_of(batch, t, self.block, self.clip, self.threshold) for t in batch.trajectories]
        return weigh_by_support(
            batch, advantages, supports, self.temperature, self.weight_range, self.step_size, self.cap_refused
        )


def weigh_by_support(
    batch: Batch,
    advantages: Ragged,
    supports: Sequence[Sequence[float | None]],
    temperature: float,
    weight_range: float,
    step_size: float | None,
    cap_refused: bool = False,
) -> Weighed:
    """E5 to E7 for every trajectory from the support of its turns, whatever form the support has.

    With `cap_refused` no refused action has better credit than the outcome's, A~_it <= A_i: what is not wanted again
    is neither praised more for a success nor blamed less for a failure.
    """
    weights, fallbacks = [], []
    for t, outcome, supported in zip(batch.trajectories, batch.outcome, supports, strict=True):
        fallback = fallback_of(batch, t, outcome)
        if not fallback and sum(d is not None for d in supported) < 2:
            fallback = "fewer_than_two_scorable_turns"
        fallbacks.append(fallback)
        weights.append(
            [1.0] * len(t.turns)
            if fallback
            else credit_weights(
                supported,
                outcome,
                temperature,
                weight_range,
                step_size,
                [not turn.valid for turn in t.turns] if cap_refused else (),
            )
        )
    return weigh_turns(batch, advantages, weights, supports, fallbacks)


def supports_of(batch: Batch, trajectory: Trajectory, block: str, clip: float, threshold: float) -> list[float | None]:
    """d_it of each turn; None for a turn without a usable score."""
    return [
        None if shifts is None else action_support(shifts, clip, threshold)
        for shifts in (batch.action_shifts(trajectory, turn_idx, block) for turn_idx in range(len(trajectory.turns)))
    ]


def fallback_of(batch: Batch, trajectory: Trajectory, outcome: float) -> str:
    """Why a trajectory is plain GRPO before its shifts are looked at; empty when it is not."""
    return batch.unguided.get(trajectory.uid, "") or ("zero_advantage" if outcome == 0 else "")


def clipped(shift: float, clip: float, threshold: float) -> float:
    """clip(Delta, -c, +c), or 0 below the threshold."""
    return 0.0 if abs(shift) < threshold else _cut(shift, clip)


def _box_constrained(offsets: list[float], bound: float, highs: list[float]) -> list[float]:
    """The x closest to `offsets` (sum 0) with sum x = 0 and -`bound` <= x <= `highs`: all are shifted by one mu, then
    cut. No high lies above the bound, nor below 0."""
    if all(-bound <= offset <= high for offset, high in zip(offsets, highs, strict=True)):
        return offsets  # no bound is active: the closed form of E7
    mu = _multiplier(offsets, bound, highs)
    # Beside a huge step size, mu lacks the digits for offsets of the size of the bound. Seen from the member that is
    # nearest to mu everything is small, and what lies beyond two bounds is cut in any case.
    anchor = min(offsets, key=lambda offset: abs(offset - mu))
    near = [_cut(offset - anchor, 2 * bound) for offset in offsets]
    mu = _multiplier(near, bound, highs)
    return [max(-bound, min(high, offset - mu)) for offset, high in zip(near, highs, strict=True)]


def _multiplier(offsets: list[float], bound: float, highs: list[float]) -> float:
    """The root mu of g(mu) = sum of the offsets - mu, each cut to [-`bound`, its high].

    g falls piecewise linearly, so that mu is found between two neighbours of its break points.
    """

    def total(mu: float) -> float:
        return math.fsum(max(-bound, min(high, offset - mu)) for offset, high in zip(offsets, highs, strict=True))

    breaks = sorted(
        [offset - high for offset, high in zip(offsets, highs, strict=True)] + [offset + bound for offset in offsets]
    )
    low, high = 0, len(breaks) - 1  # total(breaks[low]) >= 0 >= total(breaks[high])
    while high - low > 1:
        middle = (low + high) // 2
        if total(breaks[middle]) >= 0:
            low = middle
        else:
            high = middle
    left, right = breaks[low], breaks[high]
    at_left, at_right = total(left), total(right)
    return left if at_left == at_right else left + (right - left) * at_left / (at_left - at_right)


def _cut(value: float, bound: float) -> float:
    return max(-bound, min(bound, value))
