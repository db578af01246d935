"""The ceiling of turn credit: weights from the simulator's own progress, and their placebo. No method may see this.

    p_it = D(before turn t) - D(after), D = actions of the simulator's plan to the goal (or -info["progress"])
    oracle:   w_it = 1 + (range / 2) (q_it - mean q),  q_it = tanh(s (p_it - mean p) / tau)
    placebo:  the same w_i1 .. w_iT in a random order, drawn for each trajectory from its row's seed and its uid
    A~_it = A_i w_it

Both have mean one over the turns, lie in [1 - range, 1 + range] and keep the sign of A_i. What the oracle learns more
than `grpo` is what any rule of this dose could gain in this world; what the placebo learns otherwise than `grpo`, the
unevenness of weights does by itself.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from ..seeds import derive_seed
from ..types import Trajectory
from .base import Batch, Guarantees, Needs, Ragged, Weighed, weigh_turns, why_unchanged
from .option_checks import check_number
from .taspo import credit_weights


@dataclass(frozen=True)
class OracleWeights:
    """The weights of TASPO (E5 to E7) with progress in the place of support.

    Args:
        weight_range (`float`, *optional*, defaults to `0.4`):
            Weights lie in [1 - `weight_range`, 1 + `weight_range`]. 0.4 is TASPO's; about 0.95 asks how much there is
            to gain at all. As an option its name is `range`.
        temperature (`float`, *optional*, defaults to `0.5`):
            tau, in actions of the plan.
        shuffled (`bool`, *optional*, defaults to `False`):
            The placebo.

    Raises:
        ConfigurationError: a value outside its range.
    """

    weight_range: float = 0.4
    temperature: float = 0.5
    shuffled: bool = False

    def __post_init__(self) -> None:
        check_number("range", self.weight_range, "[0, 1)", "A weight must stay positive; 0 is plain GRPO.")
        check_number("temperature", self.temperature, "(0, inf)", "TASPO takes 0.5.")

    @property
    def needs(self) -> Needs:
        return Needs(progress=True)

    @property
    def guarantees(self) -> Guarantees:
        # There are no shifts here that could all be 0.
        bounds = (1 - self.weight_range, 1 + self.weight_range)
        return Guarantees(bounds=bounds, mean_one="turns", identity_at_zero=False)

    def __call__(self, batch: Batch, advantages: Ragged) -> Weighed:
        weights, supports, fallbacks = list[list[float]](), [], []
        for t, outcome, row in zip(batch.trajectories, batch.outcome, advantages, strict=True):
            gained = [batch.progress.get((t.uid, turn_idx)) for turn_idx in range(len(t.turns))]
            reason = why_unchanged(t, row, scored=True)
            if not reason and sum(one is not None for one in gained) < 2:
                reason = "fewer_than_two_turns_with_progress"
            weighed = credit_weights(gained, 0.0 if reason else outcome, self.temperature, self.weight_range)
            weights.append(_in_random_order(weighed, t) if self.shuffled else weighed)
            supports.append(gained)
            fallbacks.append(reason)
        return weigh_turns(batch, advantages, weights, supports, fallbacks)


def _in_random_order(weights: list[float], trajectory: Trajectory) -> list[float]:
    draw = random.Random(derive_seed("placebo", trajectory.seed, trajectory.uid))
    return draw.sample(weights, len(weights))
