"""RLSD: the outcome gives the direction, a privileged second look scales the tokens (arXiv:2604.03128). Pure.

    w_k = clip(exp(s Delta_k), 1 - eps, 1 + eps),  s = sign(A)
    A~_k = A [(1 - lambda_n) + lambda_n w_k],      lambda_n = lambda max(0, 1 - n / zero_at)

over all reply tokens R_it. The sign of A stays; the mean of a trajectory does not, and a constant added to all Delta
changes the weights.
"""

from __future__ import annotations

from dataclasses import dataclass

from .base import Batch, Guarantees, Needs, Ragged, Teacher, Weighed, share_at, tilt, weigh_tokens
from .option_checks import check_choice, check_number, check_schedule, check_teacher


@dataclass(frozen=True)
class RLSD:
    """The weight rule of RLSD.

    Args:
        share (`float`, *optional*, defaults to `0.5`):
            lambda, the part of A that the weights move.
        zero_at (`int`, *optional*, defaults to `50`):
            Updates until lambda_n is 0 (SDAR's script: 100). 0 = constant, None = a third of the run.
        clip (`float`, *optional*, defaults to `0.2`):
            eps.
        blame_only (`bool`, *optional*, defaults to `False`):
            Weigh only where A < 0, as ms-swift offers.
        block (`str`, *optional*, defaults to `"random_success"`):
            What the teacher sees. The paper shows a reference solution, SERL's table `serl_immediate`.
        teacher, teacher_every, teacher_rate:
            Who plays the guided branch, see [`~taspo_trl.credit.base.Needs`].

    Raises:
        ConfigurationError: an option is outside its range.
    """

    share: float = 0.5
    zero_at: int | None = 50
    clip: float = 0.2
    blame_only: bool = False
    block: str = "random_success"
    teacher: Teacher = "rollout"
    teacher_every: int = 10
    teacher_rate: float = 0.05

    def __post_init__(self) -> None:
        check_schedule(self.share, self.zero_at)
        check_number("clip", self.clip, "(0, 1)", "It is epsilon: weights lie in 1 ± clip and stay positive.")
        check_choice("blame_only", self.blame_only, (False, True), "True weighs only where the advantage is negative.")
        check_teacher(self.block, self.teacher, self.teacher_every, self.teacher_rate)

    @property
    def needs(self) -> Needs:
        return Needs((self.block,), "reply", self.teacher, self.teacher_every, self.teacher_rate)

    @property
    def guarantees(self) -> Guarantees:
        reach = self.share * self.clip
        return Guarantees(bounds=(1.0 - reach, 1.0 + reach), per_trajectory=True)

    def reads_scores(self, batch: Batch) -> bool:
        """Whether lambda_n is not 0."""
        return share_at(batch, self.share, self.zero_at) != 0.0

    def __call__(self, batch: Batch, advantages: Ragged) -> Weighed:
        """A~_itk; a turn without a usable score of the block keeps A_it."""

        def weight(shift: float, advantage: float) -> float:
            return 1.0 if self.blame_only and advantage > 0 else tilt(shift, advantage, self.clip)

        return weigh_tokens(
            batch,
            advantages,
            share_at(batch, self.share, self.zero_at),
            lambda t, turn_idx: batch.span_shifts(t, turn_idx, self.block),
            weight,
        )
