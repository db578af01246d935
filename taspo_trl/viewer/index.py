"""The list of trajectories: one row each, small enough that the page keeps all of them at hand.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..types import StopReason
from .blocks import has_guidance
from .lenient import at, items, mapping, number, text, whole


_SEARCHED_CHARS = 400
"""Of each action, in the text search."""

NOT_RECORDED = "not recorded"
_FLAGGED = 0.01
"""A smaller tilt moves nothing that one would look at."""


@dataclass(frozen=True)
class Row:
    """What the list shows of a trajectory, and what its filters ask."""

    uid: str
    group_id: str
    member: int | None
    step: int | None
    rollout: int | None
    family: str
    environment: str
    task: str
    outcome: str
    """success, failure, infrastructure, or unknown where the record gives no verdict."""
    stop: str
    turns: int
    invalid: int
    reward: float | None
    advantage: float | None
    has_guidance: bool | None
    """None when the record holds no guidance, as after a crash."""
    credit: str
    """weighted, the reason why all weights are 1, or `NOT_RECORDED`."""
    weights: tuple[float, ...]
    """w_it; empty when all are 1 or none is recorded."""
    actions: str
    """What the text search looks through."""
    tilts: tuple[float, ...] = ()
    """[`tilts_of`], where any turn carries more or less than A_i; else empty."""
    flagged: int = 0
    """Turns whose action the environment refused and that yet carry more credit than A_i, in a success's favour."""
    method: str = ""
    is_partial: bool = False

    @property
    def is_usable(self) -> bool:
        return self.outcome in ("success", "failure")


def row_of(record: Mapping[str, Any], is_partial: bool = False) -> Row:
    """The row of a raw record."""
    turns = [mapping(turn) for turn in items(record.get("turns"))]
    credit, guidance = record.get("credit"), record.get("guidance")
    fallback = text(mapping(credit).get("fallback"))
    weights = [number(weight) for weight in items(mapping(credit).get("weights"))]
    is_weighted = not fallback and len(weights) == len(turns)
    tilts = tilts_of(record)
    advantage = number(mapping(credit).get("advantage"))
    return Row(
        uid=text(record.get("uid")),
        group_id=text(record.get("group_id")),
        member=whole(record.get("generation_idx")),
        step=whole(record.get("step")),
        rollout=whole(record.get("rollout")),
        family=text(record.get("family")),
        environment=text(record.get("environment")),
        task=text(record.get("task_text")),
        outcome=outcome_of(record),
        stop=text(record.get("stop_reason")),
        turns=len(turns),
        invalid=sum(turn.get("valid") is False for turn in turns),
        reward=number(record.get("reward")),
        advantage=advantage,
        has_guidance=has_guidance(guidance) if isinstance(guidance, Mapping) else None,
        # A reason may go on with details behind a colon, which would be a category for each trajectory.
        credit=(fallback.split(":")[0] or "weighted") if isinstance(credit, Mapping) else NOT_RECORDED,
        weights=tuple(1.0 if weight is None else weight for weight in weights) if is_weighted else (),
        actions="\n".join(text(turn.get("action"))[:_SEARCHED_CHARS] for turn in turns),
        is_partial=is_partial,
        tilts=tilts if any(tilts) else (),
        flagged=sum(
            (advantage or 0.0) > 0 and turn.get("valid") is False and tilt > _FLAGGED
            for turn, tilt in zip(turns, tilts, strict=True)
        ),
        method=text(mapping(credit).get("method")) or ("taspo" if isinstance(credit, Mapping) else ""),
    )


def tilts_of(record: Mapping[str, Any]) -> tuple[float, ...]:
    """For each turn by how much its tokens carry more (credit, > 0) or less (blame, < 0) than A_i, in units of |A_i|.

    sign(A_i) (w_it - 1): a weight above 1 is more credit in a success and more blame in a failure. Where A_i is 0 the
    turn's own advantage, as it is.
    """
    credit = mapping(record.get("credit"))
    num_turns = len(items(record.get("turns")))
    advantage = number(credit.get("advantage")) or 0.0
    if advantage:
        weights = [number(at(items(credit.get("weights")), t)) for t in range(num_turns)]
        return tuple(0.0 if w is None else (w - 1.0) * (1.0 if advantage > 0 else -1.0) for w in weights)
    own = [number(at(items(credit.get("turn_advantages")), t)) for t in range(num_turns)]
    return tuple(0.0 if a is None else a for a in own)


def columns(rows: Sequence[Row], group_numbers: Sequence[int], keys: Sequence[str]) -> dict[str, list[Any]]:
    """The rows as columns, in which names stand once.

    Args:
        rows (`Sequence[Row]`):
            The trajectories in the order of the run.
        group_numbers (`Sequence[int]`):
            For each row the number of its group in the page.
        keys (`Sequence[str]`):
            For each row a name that no other has.
    """
    return {
        "key": list(keys),
        "uid": [row.uid for row in rows],
        "group": list(group_numbers),
        "member": [row.member for row in rows],
        "step": [row.step for row in rows],
        "rollout": [row.rollout for row in rows],
        "family": [row.family for row in rows],
        "environment": [row.environment for row in rows],
        "outcome": [row.outcome for row in rows],
        "stop": [row.stop for row in rows],
        "turns": [row.turns for row in rows],
        "invalid": [row.invalid for row in rows],
        "reward": [number(row.reward, 4) for row in rows],
        "advantage": [number(row.advantage, 4) for row in rows],
        "guided": [row.has_guidance for row in rows],
        "credit": [row.credit for row in rows],
        "weights": [[round(100 * weight) for weight in row.weights] for row in rows],  # percent
        "tilts": [[round(100 * tilt) for tilt in row.tilts] for row in rows],  # percent
        "flagged": [row.flagged for row in rows],
        "partial": [row.is_partial for row in rows],
    }


def unique(names: Sequence[str]) -> list[str]:
    """`names` with ` (2)`, ` (3)`, ... behind the ones that stood there before."""
    taken: set[str] = set()
    result = []
    for name in names:
        one, count = name, 1
        while one in taken:
            count += 1
            one = f"{name} ({count})"
        taken.add(one)
        result.append(one)
    return result


def outcome_of(record: Mapping[str, Any]) -> str:
    """success, failure, infrastructure, or unknown where the record gives no verdict."""
    stop = record.get("stop_reason")
    is_infrastructure = stop in tuple(StopReason) and StopReason(stop).is_infrastructure
    if is_infrastructure or not items(record.get("turns")):
        return "infrastructure"
    success = record.get("success")
    return "success" if success is True else "failure" if success is False else "unknown"
