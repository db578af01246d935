"""From likelihood shifts to weights on a trajectory's outcome advantage (method.md, E4 to E7).

Pure arithmetic on Python floats: no tensors, no model. The outcome decides the sign and the size of the advantage; the
shifts only move credit between the turns of one trajectory, inside `1 ± weight_range` and with mean one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..errors import InvariantError
from ..types import Credit, TurnScore


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
    mean = math.fsum(_clipped(shift, clip, threshold) for shift in shifts) / len(shifts)
    return max(-clip, min(clip, mean))  # the division may round past the bound


def credit_weights(
    support: Sequence[float | None],
    advantage: float,
    temperature: float = 0.5,
    weight_range: float = 0.4,
    step_size: float | None = None,
) -> list[float]:
    """The weights of a trajectory's turns from their relative support (E5 to E7).

    d^_it = d_it - mean d_iu;  q_it = tanh(sign(A_i) * d^_it / tau);  w_it = 1 + eta * (q_it - mean q_iu), the means
    being taken over the scorable turns I_i. For a step size so large that this leaves the bounds, the weights are the
    solution of max eta * sum q (w - 1) - 1/2 * sum (w - 1)^2 subject to sum (w - 1) = 0 and |w - 1| <= eps_w.

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
    offsets = _box_constrained([eta * (q - mean_preference) for q in preferences], weight_range)
    for (t, _), offset in zip(scorable, offsets, strict=True):
        weights[t] = 1.0 + offset  # E7
    return weights


def token_weights(
    shifts: Sequence[Sequence[float] | None],
    advantage: float,
    *,
    clip: float = 2.0,
    threshold: float = 0.0,
    temperature: float = 0.5,
    weight_range: float = 0.4,
    step_size: float | None = None,
) -> list[list[float] | None]:
    """Token-level allocation, the ablation: E5 to E7 over the pool of all action tokens of a trajectory.

    The support of a token is its own clipped shift. Mean one holds over the pool; since tokens of short and long turns
    then weigh alike, the coefficient-weighted mean over the trajectory is *not* preserved.

    Args:
        shifts (`Sequence[Sequence[float] | None]`):
            Delta_itk for each turn's action tokens; None, empty or non-finite = the turn is unscorable.
        advantage (`float`):
            A_i.
        clip, threshold, temperature, weight_range, step_size:
            As in [`action_support`] and [`credit_weights`].

    Returns:
        `list[list[float] | None]`: the weight of each action token, None for an unscorable turn. All ones with fewer
        than two tokens in the pool.
    """
    pool: list[float] = []
    for turn in shifts:
        if turn is not None and action_support(turn, clip, threshold) is not None:
            pool.extend(_clipped(shift, clip, threshold) for shift in turn)
    flat = iter(credit_weights(pool, advantage, temperature, weight_range, step_size))
    return [
        [next(flat) for _ in turn] if turn is not None and action_support(turn, clip, threshold) is not None else None
        for turn in shifts
    ]


def assign_credit(
    traj_uid: str,
    advantage: float,
    scores: Sequence[TurnScore],
    action_masks: Sequence[Sequence[bool]],
    *,
    allocation: str = "action",
    clip: float = 2.0,
    threshold: float = 0.0,
    temperature: float = 0.5,
    weight_range: float = 0.4,
    step_size: float | None = None,
    no_guidance: str = "",
) -> Credit:
    """The credit of one trajectory, with the reason when it falls back to GRPO.

    Args:
        traj_uid (`str`):
            The trajectory.
        advantage (`float`):
            A_i.
        scores (`Sequence[TurnScore]`):
            One for each turn; may be empty when the trajectory was not scored.
        action_masks (`Sequence[Sequence[bool]]`):
            M_it over the reply tokens of each turn; needed for token-level allocation.
        allocation (`str`, *optional*, defaults to `"action"`):
            `"action"`: one weight for each turn. `"token"`: one for each action token.
        no_guidance (`str`, *optional*):
            Why the trajectory has no guidance; becomes the fallback reason.

    Returns:
        `Credit`: weights checked against the method's guarantees.

    Raises:
        InvariantError: a weight leaves its bounds or the mean is not one within 1e-6.
    """
    num_turns = len(action_masks)
    supports = [None if score.unscorable else action_support(score.shifts, clip, threshold) for score in scores] or [
        None
    ] * num_turns
    num_scorable = sum(d is not None for d in supports)
    if no_guidance:
        fallback = no_guidance
    elif advantage == 0:
        fallback = "zero_advantage"
    elif num_scorable < 2 and allocation == "action":
        fallback = "fewer_than_two_scorable_turns"
    else:
        fallback = ""

    per_token = None
    if fallback:
        weights = [1.0] * num_turns
    elif allocation == "action":
        weights = credit_weights(supports, advantage, temperature, weight_range, step_size)
        _check(traj_uid, weights, weight_range)
    else:
        shifts = [None if d is None else score.shifts for d, score in zip(supports, scores, strict=True)]
        allocated = token_weights(
            shifts,
            advantage,
            clip=clip,
            threshold=threshold,
            temperature=temperature,
            weight_range=weight_range,
            step_size=step_size,
        )
        _check(traj_uid, [w for turn in allocated if turn is not None for w in turn], weight_range)
        per_token = tuple(_spread(mask, turn) for mask, turn in zip(action_masks, allocated, strict=True))
        weights = [math.fsum(turn) / len(turn) if turn else 1.0 for turn in per_token]
        if sum(len(turn) for turn in shifts if turn is not None) < 2:
            fallback = "fewer_than_two_scorable_tokens"

    return Credit(
        traj_uid=traj_uid,
        advantage=advantage,
        weights=tuple(weights),
        supports=tuple(supports),
        scores=tuple(scores),
        fallback=fallback,
        token_weights=per_token,
    )


def _clipped(shift: float, clip: float, threshold: float) -> float:
    return 0.0 if abs(shift) < threshold else _cut(shift, clip)


def _spread(mask: Sequence[bool], weights: Sequence[float] | None) -> tuple[float, ...]:
    """Weights of the action tokens laid over all reply tokens; tokens outside the action keep weight 1."""
    if weights is None:
        return (1.0,) * len(mask)
    flat = iter(weights)
    return tuple(next(flat) if is_action else 1.0 for is_action in mask)


def _box_constrained(offsets: list[float], bound: float) -> list[float]:
    """The x closest to `offsets` (sum 0) with sum x = 0 and |x| <= `bound`: all are shifted by one mu, then cut."""
    if all(abs(offset) <= bound for offset in offsets):
        return offsets  # no bound is active: the closed form of E7
    mu = _multiplier(offsets, bound)
    # Beside a huge step size, mu lacks the digits for offsets of the size of the bound. Seen from the member that is
    # nearest to mu everything is small, and what lies beyond two bounds is cut in any case.
    anchor = min(offsets, key=lambda offset: abs(offset - mu))
    near = [_cut(offset - anchor, 2 * bound) for offset in offsets]
    mu = _multiplier(near, bound)
    return [_cut(offset - mu, bound) for offset in near]


def _multiplier(offsets: list[float], bound: float) -> float:
    """The root mu of g(mu) = sum of the offsets - mu, each cut to ±`bound`.

    g falls piecewise linearly, so that mu is found between two neighbours of its break points.
    """

    def total(mu: float) -> float:
        return math.fsum(_cut(offset - mu, bound) for offset in offsets)

    breaks = sorted([offset - bound for offset in offsets] + [offset + bound for offset in offsets])
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


def _check(traj_uid: str, weights: Sequence[float], weight_range: float) -> None:
    """Raise unless the weights keep what E1 promises."""
    if not weights:
        return
    slack = 1e-9
    mean = math.fsum(weights) / len(weights)
    out = [w for w in weights if not (1 - weight_range - slack <= w <= 1 + weight_range + slack and w > 0)]
    if out or abs(mean - 1) > 1e-6:
        raise InvariantError(
            f"Weights of trajectory {traj_uid!r} break E1 (bounds 1 ± {weight_range}, mean 1): mean {mean!r}, "
            f"outside {out[:3]!r}. This is a bug in taspo_trl; please report it with the trajectory's record."
        )
