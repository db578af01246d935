"""FACTOR: turns get differences of a potential, tokens share each turn's credit (arXiv:2608.07118). Pure.

    TAC  A*_t = r_t + V(t+1) - V(t), V(0) = b_i, V(T_i) = 0, r_t = 0 but r_i at the end; sum_t A*_t = r_i - b_i = A^seq
    HTA  rho_k = (1 - eta_n) / L + eta_n softmax_k(s clip(Delta_k, -c, c) / tau), s = sign(A*_t);  A~_k = L rho_k A*_t

on the L action tokens of a turn, whose mean stays A*_t; tokens outside the action get A^seq. b_i is the group's mean.
The published V is a value head; here it is a table over siblings, or the mean of continuations played on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ..types import Trajectory, TrajectoryGroup, Turn
from . import base
from .base import Batch, Guarantees, Needs, Ragged, Weighed
from .option_checks import check_choice, check_count, check_number, check_schedule, check_teacher


@dataclass(frozen=True)
class TAC:
    """The advantage rule. `value` gives V: `"siblings"`, the mean reward of the others that stood in the state, or
    `"continuations"`, [`~taspo_trl.credit.base.Batch.values`] from that many episodes played on; b_i where unknown.
    `baseline="leave_one_out"`: b_i without the own reward, as in the released code. The first `warmup` updates take
    A^seq / T_i (released code: 10, while its head learns). Raises ConfigurationError."""

    value: Literal["siblings", "continuations"] = "siblings"
    continuations: int = 4
    baseline: Literal["group_mean", "leave_one_out"] = "group_mean"
    warmup: int = 0

    def __post_init__(self) -> None:
        check_choice("value", self.value, ("siblings", "continuations"), "There is no value head here.")
        check_count("continuations", self.continuations, 2, "The released code plays 4.")
        check_choice("baseline", self.baseline, ("group_mean", "leave_one_out"), "The paper takes the group's mean.")
        check_count("warmup", self.warmup, 0, "0 starts at once.")

    @property
    def needs(self) -> Needs:
        return Needs(values=self.continuations) if self.value == "continuations" else Needs(state_key=True)

    def __call__(self, batch: Batch) -> Ragged:
        """A*_it; 0.0 for unusable trajectories."""
        return [self._row(batch, group, t) for group in batch.groups for t in group.trajectories]

    def _row(self, batch: Batch, group: TrajectoryGroup, t: Trajectory) -> list[float]:
        others = [other for other in group.trajectories if other.is_usable and other.uid != t.uid]
        if not (t.is_usable and others):
            return [0.0] * len(t.turns)
        own = [t] if self.baseline == "group_mean" else []
        b = base.mean_shift([one.reward for one in others + own]) or 0.0
        if batch.step < self.warmup:
            return [(t.reward - b) / len(t.turns)] * len(t.turns)
        v = [b, *(self._value(batch, others, t, u, b) for u in range(1, len(t.turns))), t.reward]  # r_i: V(T_i) is 0
        return [v[u + 1] - v[u] for u in range(len(t.turns))]

    def _value(self, batch: Batch, others: list[Trajectory], t: Trajectory, u: int, b: float) -> float:
        if self.value == "continuations":
            return batch.values.get((t.uid, u), b)
        met = [o.reward for o in others if batch.state(t, u) in {batch.state(o, v) for v in range(len(o.turns))}]
        return math.fsum(met) / len(met) if met else b


@dataclass(frozen=True)
class HTA:
    """The weight rule; a turn without a usable score shares A*_t equally. `share` is eta, `zero_at` the update where
    it is 0 (0 = constant, None = a third of the run), updates counted from 1, none moved in the first `warmup`; `clip`
    is c, `temperature` tau. `outside`: tokens outside the action get A^seq, the sum of the row (`"sequence"`), or A_it
    (`"turn"`). Raises ConfigurationError."""

    share: float = 0.7
    zero_at: int | None = 50
    warmup: int = 10
    clip: float = 3.0
    temperature: float = 1.0
    outside: Literal["sequence", "turn"] = "sequence"
    block: str = "serl_immediate"

    def __post_init__(self) -> None:
        check_schedule(self.share, self.zero_at)
        check_count("warmup", self.warmup, 0, "0 starts at once.")
        check_number("clip", self.clip, "(0, inf)", "The paper takes 3.")
        check_number("temperature", self.temperature, "(0, inf)", "The paper takes 1.")
        check_choice("outside", self.outside, ("sequence", "turn"), "The paper takes the sequence.")
        check_teacher(self.block)

    @property
    def needs(self) -> Needs:
        return Needs((self.block,), "action")

    @property
    def guarantees(self) -> Guarantees:
        own = self.outside == "turn"  # A^seq may have another sign than A*_t, and need not be 0 beside it
        return Guarantees(
            keeps_sign=own, mean_one="each_action", identity_at_zero=own, flat_is_zero=own, per_trajectory=True
        )

    def reads_scores(self, batch: Batch) -> bool:
        """Whether eta is not 0."""
        return self._eta(batch) != 0.0

    def _eta(self, batch: Batch) -> float:
        return 0.0 if batch.step < self.warmup else base.share_at(batch, self.share, self.zero_at, counted_from=1)

    def __call__(self, batch: Batch, advantages: Ragged) -> Weighed:
        """A~_itk."""
        eta = self._eta(batch)
        tokens, weights, supports, fallbacks = list[Ragged](), list[Ragged](), [], []
        for t, row in zip(batch.trajectories, advantages, strict=True):
            shifts = [batch.span_shifts(t, u, self.block, turn.action_mask) for u, turn in enumerate(t.turns)]
            weights.append([self._spread(*one, eta) for one in zip(shifts, row, t.turns, strict=True)])
            tokens.append([])
            for a, ws, turn in zip(row, weights[-1], t.turns, strict=True):
                beside = math.fsum(row) if self.outside == "sequence" else a
                tokens[-1].append([a * w if x else beside for w, x in zip(ws, turn.action_mask, strict=True)])
            supports.append([base.mean_shift(d) for d in shifts])
            fallbacks.append(base.why_unchanged(t, row, any(d is not None for d in shifts), eta))
        return Weighed(tokens, None, supports, fallbacks, weights)

    def _spread(self, shifts: tuple[float | None, ...] | None, a: float, turn: Turn, eta: float) -> list[float]:
        """L rho_k on the scored action tokens, 1.0 elsewhere."""
        scale, c = base.sign(a) / self.temperature, self.clip
        heights = [None if d is None else scale * base.cut(d, -c, c) for d in shifts or [None] * len(turn.reply_ids)]
        top = max((h for h in heights if h is not None), default=0.0)
        e = [None if h is None else math.exp(h - top) for h in heights]
        mean = base.mean_shift(e) or 1.0
        return [1.0 if one is None else 1.0 + eta * (one / mean - 1.0) for one in e]
