"""Ours: how strongly guidance supports an action beside what else could have been done (E4 with a baseline).

    contrast:              d_it = e(a_t) - sum over b of pi(b) e(b),  e = mean clipped shift of an action's tokens (E4)
    contrast_probability:  d_it = p(a_t) - sum over b of pi(b) p(b),  p = guided probability among the actions

b runs over the admissible actions, pi are the policy's probabilities among them. Pure. An action that the policy was
sure of has no shift, whatever guidance says of it; seen against its alternatives it has. The baseline is the mean over
the actions under the policy itself, as that of an advantage is. E5 to E7 follow as ever.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from ..types import Alternatives, Trajectory
from .base import Batch, Guarantees, Needs, Ragged, Weighed
from .option_checks import check_choice, check_count
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
            [-1, 1], exactly 0 where no action shifts at all; elsewhere the policy's own probability is compared with
            the others' as well as what guidance made of it.
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
    if guided == alternatives.plain:
        return [0.0] * len(guided)  # guidance says nothing of this turn
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
        alternatives (`int`, *optional*, defaults to `32`):
            Most actions of a turn that are compared, the executed one included; of more, so many are drawn.
        samples (`int`, *optional*, defaults to `4`):
            Where the world lists no actions: replies that the policy is asked for besides its own. 0 asks for none.
        cap_refused (`bool`, *optional*, defaults to `False`):
            As in [`~taspo_trl.credit.taspo.TurnWeights`].

    Raises:
        ConfigurationError: a value outside its range.
    """

    form: Form = "shift"
    clip: float = 2.0
    threshold: float = 0.0
    temperature: float = 0.5
    weight_range: float = 0.4
    step_size: float | None = None
    block: str = "aligned"
    alternatives: int = 32
    samples: int = 4
    cap_refused: bool = False

    def __post_init__(self) -> None:
        check_choice("form", self.form, get_args(Form), "'shift' is E4 with a baseline.")
        check_count("alternatives", self.alternatives, 2, "The executed action is one of them.")
        check_count("samples", self.samples, 0, "0 leaves turns alone whose world lists no actions.")
        check_choice("cap_refused", self.cap_refused, (False, True), "False is the paper's.")

    @property
    def needs(self) -> Needs:
        return Needs((self.block,), "action", alternatives=self.alternatives, samples=self.samples)

    @property
    def guarantees(self) -> Guarantees:
        return Guarantees(bounds=(1 - self.weight_range, 1 + self.weight_range), mean_one="turns", per_trajectory=True)

    def __call__(self, batch: Batch, advantages: Ragged) -> Weighed:
        supports = [[self._support(batch, t, k) for k in range(len(t.turns))] for t in batch.trajectories]
        return weigh_by_support(
            batch, advantages, supports, self.temperature, self.weight_range, self.step_size, self.cap_refused
        )

    def _support(self, batch: Batch, trajectory: Trajectory, turn_idx: int) -> float | None:
        alternatives = batch.alternatives.get((trajectory.uid, turn_idx))
        if alternatives is None:
            return None
        found = contrast_supports(alternatives, self.block, self.form, self.clip, self.threshold)
        return None if found is None else found[0]
