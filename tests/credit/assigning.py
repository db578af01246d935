"""The credit of one trajectory, or of a few, from what was scored of their actions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from taspo_trl.credit import TokenWeights, TurnWeights
from taspo_trl.credit.base import Batch
from taspo_trl.methods import Recipe
from taspo_trl.types import Credit, ReplyScore, Trajectory, TrajectoryGroup
from tests.builders import trajectory, turn


class ActionScore(NamedTuple):
    """Log-probabilities of the action tokens of a turn."""

    plain: Sequence[float] = ()
    guided: Sequence[float] = ()
    unscorable: str = ""

    def over(self, mask: Sequence[bool]) -> ReplyScore:
        """The same over the reply tokens."""
        if self.unscorable and not self.plain:
            return ReplyScore(unscorable=self.unscorable)
        plain, guided = iter(self.plain), iter(self.guided)
        return ReplyScore(
            tuple(next(plain) if one else math.nan for one in mask),
            {"aligned": tuple(next(guided) if one else math.nan for one in mask)},
            self.unscorable,
        )


def weight_rule(allocation: str = "action", **settings: Any) -> TurnWeights | TokenWeights:
    return TokenWeights(**settings) if allocation == "token" else TurnWeights(**settings)


def assign_credit(
    uid: str,
    advantage: float,
    scores: Sequence[ActionScore],
    masks: Sequence[Sequence[bool]],
    no_guidance: str = "",
    **settings: Any,
) -> Credit:
    """The credit of a trajectory with one score for each turn."""
    played = trajectory([turn([1, 2, 3], range(len(mask)), action_mask=tuple(mask)) for mask in masks], uid)
    of_turns = {(uid, k): score.over(mask) for k, (score, mask) in enumerate(zip(scores, masks, strict=False))}
    return credits_of([played], [advantage], of_turns, {uid: no_guidance} if no_guidance else {}, **settings)[uid]


def credits_of(
    trajectories: Sequence[Trajectory],
    advantages: Sequence[float],
    scores: Mapping[tuple[str, int], ReplyScore],
    unguided: Mapping[str, str],
    **settings: Any,
) -> Mapping[str, Credit]:
    """The credit of several trajectories by uid."""
    batch = Batch((TrajectoryGroup("g", tuple(trajectories)),), tuple(advantages), scores, unguided=unguided)
    return Recipe("taspo", weight=weight_rule(**settings)).assign(batch).credits


def token_advantages(credit: Credit, lengths: Sequence[int]) -> list[list[float]]:
    """A~_itk over the reply tokens of each turn."""
    if credit.token_weights is not None:
        return [[credit.advantage * w for w in turn] for turn in credit.token_weights]
    return [[credit.advantage * w] * n for w, n in zip(credit.weights, lengths, strict=True)]
