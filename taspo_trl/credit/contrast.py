"""Ours: how strongly guidance supports an action beside what else could have been done (E4 with a baseline).

Pure. An action that the policy was sure of has no shift, whatever guidance says of it; seen against its alternatives
it has. The baseline is the mean over the admissible actions under the policy itself, as that of an advantage is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..types import Alternatives, Trajectory
from .base import Batch, Guarantees, Needs, Ragged, Weighed
from .taspo import action_support, weigh_by_support


Form = Literal["shift", "probability"]


def contrast_supports(
    alternatives: Alternatives, block: str, form: Form = "shift", clip: float = 2.0, threshold: float = 0.0
) -> list[float] | None:
    """The support of each admissible action, relative to what the policy would have done.

    With pi(a) the policy's probabilities among the actions: e(a) - sum over b of pi(b) e(b), where e is the mean
    clipped shift of the action's tokens (E4) or the guided probability among the actions. The mean under pi is 0.

    Args:
        alternatives (`Alternatives`):
            The actions of one turn.
        block (`str`):
            Whose guidance.
        form (`str`, *optional*, defaults to `"shift"`):
            `"shift"`: values in [-2c, 2c], exactly 0 where all actions shift alike. `"probability"`: values in
            [-1, 1]; without any shift it is the policy's own probability that is compared.
        clip (`float`, *optional*, defaults to `2.0`), threshold (`float`, *optional*, defaults to `0.0`):
            c and kappa, as in [`~taspo_trl.credit.taspo.action_support`].

    Returns:
        `list[float]` or `None`: None without guided scores, with fewer than two actions, or where a score is not
        finite.
    """
    guided = alternatives.guided.get(block)
    if guided is None or len(alternatives.actions) < 2:
        return None
    rows = (*alternatives.plain, *guided)
    if not all(row and all(map(math.isfinite, row)) for row in rows):
        return None
    policy = _normalised(alternatives.plain)
    if form == "probability":
        effects = _normalised(guided)
    else:
        pairs = zip(alternatives.plain, guided, strict=True)
        shifts = [[g - p for p, g in zip(plain, one, strict=True)] for plain, one in pairs]
        effects = [action_support(one, clip, threshold) or 0.0 for one in shifts]
    if max(effects) == min(effects):
        return [0.0] * len(effects)  # rounding makes no order
    baseline = math.fsum(p * e for p, e in zip(policy, effects, strict=True))
    return [effect - baseline for effect in effects]


def _normalised(logps: Sequence[Sequence[float]]) -> list[float]:
    """Probabilities of the actions among each other."""
    totals = [math.fsum(row) for row in logps]
    most = max(totals)
    weights = [math.exp(total - most) for total in totals]
    whole = math.fsum(weights)
    return [weight / whole for weight in weights]


@dataclass(frozen=True)
class ContrastWeights:
    """TASPO's weights (E5 to E7) from contrasted supports. Not part of the published method.

    Args:
        form (`str`, *optional*, defaults to `"shift"`):
            As in [`contrast_supports`].
        clip (`float`, *optional*, defaults to `2.0`), threshold (`float`, *optional*, defaults to `0.0`):
            c and kappa.
        temperature (`float`, *optional*, defaults to `0.5`), weight_range (`float`, *optional*, defaults to `0.4`), \
        step_size (`float`, *optional*):
            tau, eps_w and eta of [`~taspo_trl.credit.taspo.credit_weights`].
        block (`str`, *optional*, defaults to `"aligned"`):
            Whose guidance.
    """

    form: Form = "shift"
    clip: float = 2.0
    threshold: float = 0.0
    temperature: float = 0.5
    weight_range: float = 0.4
    step_size: float | None = None
    block: str = "aligned"

    @property
    def needs(self) -> Needs:
        return Needs(blocks=(self.block,), scope="action", alternatives=True)

    @property
    def guarantees(self) -> Guarantees:
        # The executed action may have no shift of its own and yet stand out.
        bounds = (1 - self.weight_range, 1 + self.weight_range)
        return Guarantees(bounds=bounds, mean_one="turns", identity_at_zero=False)

    def __call__(self, batch: Batch, advantages: Ragged) -> Weighed:
        supports = [[self._support(batch, t, k) for k in range(len(t.turns))] for t in batch.trajectories]
        return weigh_by_support(batch, advantages, supports, self.temperature, self.weight_range, self.step_size)

    def _support(self, batch: Batch, trajectory: Trajectory, turn_idx: int) -> float | None:
        alternatives = batch.alternatives.get((trajectory.uid, turn_idx))
        if alternatives is None:
            return None
        found = contrast_supports(alternatives, self.block, self.form, self.clip, self.threshold)
        return None if found is None else found[0]
