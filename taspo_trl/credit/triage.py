"""TRIAGE with a rule judge: each turn's role in the episode moves its advantage up or down.

The published judge is a language model that reads the pairs around a turn; both judges here are rule stand-ins.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from ..types import Trajectory, Turn
from .base import Batch, Needs, Ragged
from .option_checks import check_choice, check_number


Judge = Literal["text", "oracle"]
Role = Literal["decisive", "exploration", "no_progress", "regression"]

ROLE_CREDIT: dict[Role, float] = {"decisive": 1.0, "exploration": 0.5, "no_progress": -0.1, "regression": -0.5}
"""c(role)."""
WINDOW = 5
"""Action-observation pairs before a turn that the judge sees. The rules have no use for those after it."""
_LOOKING = frozenset({"go", "look", "examine", "inventory", "open", "close", "search", "click", "think", "help"})
_FILLERS = frozenset({"a", "an", "the", "in", "on", "at", "to", "of", "with", "and", "under", "some", "two", "it"})
_PLACE = re.compile(r"\s(?:from|to|with|in/on|in|into|onto)\s.*", re.DOTALL)


@dataclass(frozen=True)
class Triage:
    """A_it = A_i + lambda * c(role), c = 1 decisive, 0.5 exploration, -0.1 no progress, -0.5 regression.

    `judge="text"`, first rule that holds: an answer "Nothing happens.", or the same action and answer as in one of the
    five pairs before = regression; an accepted action that does more than look or go, to a thing that the task names =
    decisive; a place or an answer that the five pairs before do not hold = exploration; else no progress.
    `judge="oracle"` knows the simulator: the plan gets shorter = decisive; longer = regression; else an answer not
    seen before in the episode = exploration; else no progress. A turn without a known plan keeps A_i. No judge sees
    the outcome. Signs may turn, and groups without contrast move.

    Args:
        judge (`str`, *optional*, defaults to `"text"`):
            `"text"` or `"oracle"`.
        strength (`float`, *optional*, defaults to `0.5`):
            lambda, not negative. The paper's value is not known; this one is ours.

    Raises:
        ConfigurationError: a value outside its range.
    """

    judge: Judge = "text"
    strength: float = 0.5

    def __post_init__(self) -> None:
        check_choice("judge", self.judge, get_args(Judge), "'oracle' knows the simulator.")
        check_number("strength", self.strength, "[0, inf)", "0 leaves A_i alone.")

    @property
    def needs(self) -> Needs:
        return Needs(progress=self.judge == "oracle")

    def __call__(self, batch: Batch) -> Ragged:
        return [
            [a + self.strength * self._credit(batch, t, k) if t.is_usable else 0.0 for k in range(len(t.turns))]
            for t, a in zip(batch.trajectories, batch.outcome, strict=True)
        ]

    def report(self, batch: Batch) -> dict[str, float]:
        """`credit/role/<role>`: share of the turns of usable trajectories that were judged so."""
        usable = [t for t in batch.trajectories if t.is_usable]
        roles = [self.role(batch, t, turn_idx) for t in usable for turn_idx in range(len(t.turns))]
        return {f"credit/role/{role}": roles.count(role) / max(1, len(roles)) for role in ROLE_CREDIT}

    def role(self, batch: Batch, trajectory: Trajectory, turn_idx: int) -> Role | None:
        """The role of one turn; None where the oracle does not know."""
        if self.judge == "text":
            return _role_in_text(trajectory, turn_idx)
        gained = batch.progress.get((trajectory.uid, turn_idx))
        if gained is None:
            return None
        if gained != 0:
            return "decisive" if gained > 0 else "regression"
        return "exploration" if _is_new(trajectory.turns[: turn_idx + 1]) else "no_progress"

    def _credit(self, batch: Batch, trajectory: Trajectory, turn_idx: int) -> float:
        role = self.role(batch, trajectory, turn_idx)
        return 0.0 if role is None else ROLE_CREDIT[role]


def _role_in_text(trajectory: Trajectory, turn_idx: int) -> Role:
    turn, earlier = trajectory.turns[turn_idx], trajectory.turns[max(0, turn_idx - WINDOW) : turn_idx]
    pairs = [(one.action, one.next_observation) for one in earlier]
    if turn.next_observation.strip() == "Nothing happens." or (turn.action, turn.next_observation) in pairs:
        return "regression"
    verb, *thing = _PLACE.sub("", turn.action.lower()).split() or [""]
    named = set(re.findall(r"[a-z]+", trajectory.task_text.lower())) - _FILLERS
    named |= {word.removesuffix("s") for word in named}  # "two mugs" names "mug 1"
    if turn.valid and verb not in _LOOKING and named & set(thing):
        return "decisive"
    new_place = verb == "go" and turn.action not in [one.action for one in earlier]
    return "exploration" if new_place or _is_new((*earlier, turn)[-WINDOW:]) else "no_progress"


def _is_new(turns: Sequence[Turn]) -> bool:
    """Whether the last answer is none of the texts that were before the eyes in these turns."""
    return turns[-1].next_observation not in {one.observation for one in turns}
