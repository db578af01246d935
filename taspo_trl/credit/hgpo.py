"""HGPO: turns are compared with those that share ever longer pieces of their history, longer ones counting more."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal, get_args

from .base import Batch, Needs, Ragged, normalised, returns
from .option_checks import check_choice, check_count, check_number


Normalisation = Literal["mean_std_norm", "mean_norm"]


@dataclass(frozen=True)
class HGPO:
    """A_it = sum_k L_k^alpha a_k / sum_k L_k^alpha with L_k = k + 1, over the k with a_k other than 0.

    For k = 1..min(K + 1, t), t counted from 1, the turns of the group whose last k states are equal form a k-group
    (one turn alone forms none); a_k = (G_it - mean) / (population std + 1e-6) there, and exactly 0 where the returns
    differ by at most 1e-8. G_it = gamma^(T_i - t) r_i. A turn whose state nobody shares gets 0, hence no gradient:
    without the base group there is no trajectory term. Signs may turn, and groups without contrast move.

    Args:
        history_length (`int`, *optional*, defaults to `2`):
            K, how many earlier states a comparison may ask for; at least 0. The paper takes the prompt's history.
        alpha (`float`, *optional*, defaults to `1.0`):
            alpha; 0 = all lengths alike.
        gamma (`float`, *optional*, defaults to `0.95`):
            gamma, in [0, 1].
        normalisation (`str`, *optional*, defaults to `"mean_std_norm"`):
            `"mean_norm"` leaves out the standard deviation, in A_i as well.
        base_group (`bool`, *optional*, defaults to `False`):
            Adds A_i as k = 0, with L_0 = 1.

    Raises:
        ConfigurationError: a value outside its range.
    """

    history_length: int = 2
    alpha: float = 1.0
    gamma: float = 0.95
    normalisation: Normalisation = "mean_std_norm"
    base_group: bool = False

    def __post_init__(self) -> None:
        check_choice("normalisation", self.normalisation, get_args(Normalisation), "'mean_norm' divides by nothing.")
        check_count("history_length", self.history_length, 0, "0 = the state alone.")
        check_number("alpha", self.alpha, "[0, inf)", "0 = all lengths count alike.")
        check_choice("base_group", self.base_group, (True, False), "True adds A_i.")
        check_number("gamma", self.gamma, "[0, 1]", "1 = no discount.")

    @property
    def needs(self) -> Needs:
        return Needs(state_key=True)

    def __call__(self, batch: Batch) -> Ragged:
        values = [[0.0] * len(t.turns) for t in batch.trajectories]
        gains = [returns(t, self.gamma) for t in batch.trajectories]
        has_std = self.normalisation == "mean_std_norm"
        for members in batch.usable:
            terms: defaultdict[tuple[int, int], list[tuple[int, float]]] = defaultdict(list)  # (k, a_k)
            if self.base_group:
                centred = normalised([batch.trajectories[i].reward for i in members])
                for i, a in zip(members, centred, strict=True):
                    for t in range(len(values[i])):
                        terms[i, t].append((0, batch.outcome[i] if has_std else a))
            for (k, *_), places in self._histories(batch, members).items():
                relative = normalised([gains[i][t] for i, t in places], "population" if has_std else "none")
                for place, a in zip(places, relative, strict=True):
                    terms[place].append((k, a))
            for (i, t), found in terms.items():
                counted = [((k + 1) ** self.alpha, a) for k, a in found if a != 0]
                if counted:
                    values[i][t] = math.fsum(w * a for w, a in counted) / math.fsum(w for w, _ in counted)
        return values

    def report(self, batch: Batch) -> dict[str, float]:
        """`credit/singleton_turns`: share of the turns whose state no other turn of the group shares."""
        keys = [
            (g, batch.state(batch.trajectories[i], t))
            for g, members in enumerate(batch.usable)
            for i in members
            for t in range(len(batch.trajectories[i].turns))
        ]
        alone = sum(count for count in Counter(keys).values() if count == 1)
        return {"credit/singleton_turns": alone / len(keys) if keys else 0.0}

    def _histories(
        self, batch: Batch, members: tuple[int, ...]
    ) -> dict[tuple[int, tuple[Hashable, ...]], list[tuple[int, int]]]:
        """(k, the last k states) -> the turns (i, t) of one group that end with them."""
        found: defaultdict[tuple[int, tuple[Hashable, ...]], list[tuple[int, int]]] = defaultdict(list)
        for i in members:
            trajectory = batch.trajectories[i]
            states = [batch.state(trajectory, t) for t in range(len(trajectory.turns))]
            for t in range(len(states)):
                for k in range(1, min(self.history_length, t) + 2):
                    found[k, tuple(states[t - k + 1 : t + 1])].append((i, t))
        return found
