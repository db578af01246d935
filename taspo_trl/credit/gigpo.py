"""GiGPO: states that a group visits again are free baselines for the actions taken there; PACE-Q as an option."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal, get_args

from ..errors import ConfigurationError
from .base import Batch, Needs, Ragged, normalised, returns
from .option_checks import check_choice, check_number


Normalisation = Literal["mean_std_norm", "mean_norm"]
Peers = Literal["state", "action"]


@dataclass(frozen=True)
class GiGPO:
    """A_it = A_i + omega * A^S_it with A^S_it = (G_it - mean G) / F over the group's turns that stand in one state.

    G_it = gamma^(T_i - t) r_i. A state with a single turn gives A^S = 0. A trajectory that stands in a state twice is
    its own peer; the earlier visit loses. A^S may turn the sign of A_i, and moves groups without contrast too: among
    successes the earlier one is better.

    Args:
        normalisation (`str`, *optional*, defaults to `"mean_std_norm"`):
            `"mean_std_norm"`: F is the sample standard deviation over the state's turns + 1e-6. `"mean_norm"`: F = 1,
            and A_i = r_i - mean, without its standard deviation either.
        omega (`float`, *optional*, defaults to `1.0`):
            omega, the share of the state's term; not negative.
        gamma (`float`, *optional*, defaults to `0.95`):
            gamma, in [0, 1].
        similarity (`float`, *optional*, defaults to `1.0`):
            From which `difflib` ratio two texts are one state; 1 = only equal ones. The texts of a group are taken in
            alphabetical order, and each joins the state whose first text is nearest to it. The published code takes
            them in the order of the trajectories, on which nothing depends here.
        peers (`str`, *optional*, defaults to `"state"`):
            `"action"` is PACE-Q: mean G over the same state *and* action takes the place of G_it.

    Raises:
        ConfigurationError: a value outside its range; in the call, texts that are compared but are no texts.
    """

    normalisation: Normalisation = "mean_std_norm"
    omega: float = 1.0
    gamma: float = 0.95
    similarity: float = 1.0
    peers: Peers = "state"

    def __post_init__(self) -> None:
        check_choice("normalisation", self.normalisation, get_args(Normalisation), "'mean_norm' divides by nothing.")
        check_choice("peers", self.peers, get_args(Peers), "'state' is GiGPO, 'action' is PACE-Q.")
        check_number("omega", self.omega, "[0, inf)", "0 leaves A_i alone.")
        check_number("gamma", self.gamma, "[0, 1]", "1 = no discount.")
        check_number("similarity", self.similarity, "(0, 1]", "1 = only equal states.")

    @property
    def needs(self) -> Needs:
        return Needs(state_key=True)

    def __call__(self, batch: Batch) -> Ragged:
        values = [[a] * len(t.turns) for t, a in zip(batch.trajectories, batch.outcome, strict=True)]
        gains = [returns(t, self.gamma) for t in batch.trajectories]
        std: Literal["sample", "none"] = "sample" if self.normalisation == "mean_std_norm" else "none"
        for members in batch.usable:
            if std == "none":
                centred = normalised([batch.trajectories[i].reward for i in members])
                for i, a in zip(members, centred, strict=True):
                    values[i] = [a] * len(values[i])
            for places in self._states(batch, members):
                relative = normalised([gains[i][t] for i, t in places], std)
                if self.peers == "action":
                    relative = _means([batch.trajectories[i].turns[t].action for i, t in places], relative)
                for (i, t), a in zip(places, relative, strict=True):
                    values[i][t] += self.omega * a
        return values

    def report(self, batch: Batch) -> dict[str, float]:
        """`credit/singleton_turns`: share of the turns whose state no other turn of the group shares."""
        sizes = [len(places) for members in batch.usable for places in self._states(batch, members)]
        return {"credit/singleton_turns": sizes.count(1) / sum(sizes) if sizes else 0.0}

    def _states(self, batch: Batch, members: Iterable[int]) -> list[list[tuple[int, int]]]:
        """The turns (i, t) of one group, state by state."""
        found: defaultdict[Hashable, list[tuple[int, int]]] = defaultdict(list)
        for i in members:
            trajectory = batch.trajectories[i]
            for t in range(len(trajectory.turns)):
                found[batch.state(trajectory, t)].append((i, t))
        if self.similarity == 1:
            return list(found.values())
        if odd := [key for key in found if not isinstance(key, str)]:
            raise ConfigurationError(
                f"`similarity` ({self.similarity!r}) compares texts, but a state is {odd[0]!r}: take the state key "
                "'observation', or a similarity of 1."
            )
        merged: dict[str, list[tuple[int, int]]] = {}
        for text in sorted(map(str, found)):
            nearest = get_close_matches(text, merged, n=1, cutoff=self.similarity)
            merged.setdefault(nearest[0] if nearest else text, []).extend(found[text])
        return list(merged.values())


def _means(actions: list[str], values: list[float]) -> list[float]:
    """Each value replaced by the mean over its action."""
    of = {one: [v for v, action in zip(values, actions, strict=True) if action == one] for one in set(actions)}
    return [math.fsum(of[action]) / len(of[action]) for action in actions]
