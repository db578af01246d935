"""The credit report: methods against labels on the same scored groups, with intervals, controls and examples.

Pure: what was played, scored and labelled comes in, plain data goes out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..credit.base import Batch, NoWeights, OutcomeAdvantage, Ragged, Weighed, weigh_turns
from ..credit.taspo import credit_weights
from ..types import Trajectory
from .measures import MEASURES, Agreement, Labelled, agreement, difference, reliability
from .progress import Labels


CONTROL = "shuffled"
"""What a method's name gets behind an @ when its blocks are those of another task."""


@dataclass(frozen=True)
class Truth:
    """One kind of labels.

    Args:
        labels (`Labels`):
            What turns were worth.
        threshold (`float`, *optional*, defaults to `0.0`):
            Above it a turn should have more credit than the others.
        halves (`tuple[Labels, Labels]`, *optional*):
            The labels of either half of the continuations.
        standard_errors (`Labels`, *optional*):
            Of the labels.
    """

    labels: Labels
    threshold: float = 0.0
    halves: tuple[Labels, Labels] | None = None
    standard_errors: Labels = field(default_factory=dict)

    def facts(self, trajectories: Sequence[Trajectory]) -> dict[str, Any]:
        """How much can be read from them."""
        data: dict[str, Any] = {"turns": len(self.labels), "threshold": self.threshold}
        data["share_above"] = _mean([label > self.threshold for label in self.labels.values()])
        if self.halves is None:
            return data | {"reliability": 1.0, "ceiling_rank_correlation": 1.0}
        first, second = self.halves
        rows = []
        for t in trajectories:
            known = [(t.uid, u) for u in range(len(t.turns)) if (t.uid, u) in first and (t.uid, u) in second]
            rows.append(([first[turn] for turn in known], [second[turn] for turn in known]))
        found = reliability(rows)
        return data | {
            "reliability": _number(found),
            "ceiling_rank_correlation": _number(math.sqrt(found) if found > 0 else math.nan),
            "mean_standard_error": _number(_mean(list(self.standard_errors.values()))),
        }


@dataclass(frozen=True)
class LabelWeights:
    """Weights from the labels themselves (E5 to E7): what the best guidance could give through the method's own form.

    Args:
        labels (`Mapping[tuple[str, int], float]`):
            (trajectory uid, turn index) -> what it was worth; turns without a label keep the neutral weight.
        temperature (`float`, *optional*, defaults to `0.5`), weight_range (`float`, *optional*, defaults to `0.4`):
            tau and eps_w.
    """

    labels: Labels
    temperature: float = 0.5
    weight_range: float = 0.4
    needs = NoWeights().needs
    guarantees = NoWeights().guarantees

    def __call__(self, batch: Batch, advantages: Ragged) -> Weighed:
        supports = [
            [self.labels.get((t.uid, turn_idx)) for turn_idx in range(len(t.turns))] for t in batch.trajectories
        ]
        # Support is what a success should have more of; a label is that in failures as well.
        weights = [
            credit_weights(row, a, self.temperature, self.weight_range)
            for row, a in zip(supports, batch.outcome, strict=True)
        ]
        return weigh_turns(batch, advantages, weights, supports, [""] * len(weights))


def perfect_credit(batch: Batch, labels: Labels) -> dict[tuple[str, int], float]:
    """The credit of [`LabelWeights`]."""
    advantages = OutcomeAdvantage()(batch)
    return turn_credit(batch, LabelWeights(labels)(batch, advantages))


def turn_credit(batch: Batch, weighed: Weighed) -> dict[tuple[str, int], float]:
    """C_it: the mean of A~ over the reply tokens of a turn; a turn without any has none."""
    return {
        (t.uid, turn_idx): math.fsum(tokens) / len(tokens)
        for t, row in zip(batch.trajectories, weighed.advantages, strict=True)
        for turn_idx, tokens in enumerate(row)
        if tokens
    }


Chosen = Callable[[Trajectory, int], bool]


def _of_family(family: str) -> Chosen:
    return lambda t, turn_idx: t.family == family


def labelled(
    batch: Batch, credit: Mapping[tuple[str, int], float], labels: Labels, chosen: Chosen = lambda t, turn_idx: True
) -> list[Labelled]:
    """The trajectories with A_i != 0 and at least two turns that have credit, a label, and are chosen."""
    group_of = {t.uid: group.group_id for group in batch.groups for t in group.trajectories}
    rows = []
    for t, outcome in zip(batch.trajectories, batch.outcome, strict=True):
        keys = [(t.uid, u) for u in range(len(t.turns)) if (t.uid, u) in labels and chosen(t, u)]
        keys = [key for key in keys if key in credit]
        if outcome == 0 or len(keys) < 2:
            continue
        values = [credit[key] for key in keys]
        weights = [value / outcome for value in values]
        rows.append(Labelled(group_of[t.uid], values, [labels[key] for key in keys], weights))
    return rows


def credit_report(
    batch: Batch,
    credits: Mapping[str, Mapping[tuple[str, int], float]],
    truths: Mapping[str, Truth],
    *,
    num_resamples: int = 2000,
    num_examples: int = 3,
) -> dict[str, Any]:
    """Every method against every kind of labels.

    Args:
        batch ([`~taspo_trl.credit.base.Batch`]):
            The groups.
        credits (`Mapping[str, Mapping]`):
            Method -> its [`turn_credit`]. `"grpo"` and `"<method>@shuffled"` are what differences are taken to.
        truths (`Mapping[str, Truth]`):
            Name -> labels.
        num_resamples (`int`, *optional*, defaults to `2000`):
            Of the bootstrap over groups.
        num_examples (`int`, *optional*, defaults to `3`):
            Weights shown at either end.
    """
    report: dict[str, Any] = {"groups": len(batch.groups), "trajectories": len(batch.trajectories), "labels": {}}
    report["success"] = _mean([t.success for t in batch.trajectories])
    report["turns"] = sum(len(t.turns) for t in batch.trajectories)
    report["methods"] = {name: _weights_of(batch, credit) for name, credit in credits.items()}
    for kind, truth in truths.items():
        report["labels"][kind] = truth.facts(batch.trajectories)
        rows = {name: labelled(batch, credit, truth.labels) for name, credit in credits.items()}
        for name, credit in credits.items():

            def part(chosen: Chosen, credit: Any = credit, truth: Truth = truth) -> Agreement:
                return agreement(labelled(batch, credit, truth.labels, chosen), truth.threshold, num_resamples)

            found: dict[str, Any] = {
                "all": part(lambda t, u: True).to_json(),
                "successes": part(lambda t, u: t.success).to_json(),
                "failures": part(lambda t, u: not t.success).to_json(),
                "accepted": part(lambda t, u: t.turns[u].valid).to_json(),
                "families": {
                    family: part(_of_family(family)).to_json()["auc"]
                    for family in sorted({t.family for t in batch.trajectories})
                },
            }
            for other in ("grpo", f"{name}@{CONTROL}"):
                if other in credits and other != name:
                    paired = difference(rows[name], rows[other], truth.threshold, num_resamples)
                    found[f"minus {other}"] = {measure: paired[measure].to_json() for measure in MEASURES}
            found["examples"] = _examples(batch, credit, truth, num_examples)
            report["methods"][name][kind] = found
    return report


def _weights_of(batch: Batch, credit: Mapping[tuple[str, int], float]) -> dict[str, Any]:
    """Weights by whether the environment accepted the action, and where the largest of each success lies."""
    accepted: list[float] = []
    refused: list[float] = []
    tops, shares = [], []
    moved = usable = 0
    for t, outcome in zip(batch.trajectories, batch.outcome, strict=True):
        if outcome == 0:
            continue
        weights = {u: credit[t.uid, u] / outcome for u in range(len(t.turns)) if (t.uid, u) in credit}
        usable += 1
        is_moved = any(abs(w - 1) > 1e-9 for w in weights.values())
        moved += is_moved
        for u, weight in weights.items():
            (accepted if t.turns[u].valid else refused).append(weight)
        if t.success and is_moved:
            top = max(weights, key=lambda u: weights[u])
            tops.append(not t.turns[top].valid)
            shares.append(_mean([not turn.valid for turn in t.turns]))
    return {
        "moved_share": _number(moved / usable if usable else math.nan),
        "mean_weight_accepted": _number(_mean(accepted)),
        "mean_weight_refused": _number(_mean(refused)),
        "top_weight_refused_in_successes": _number(_mean(tops)),
        "refused_share_in_successes": _number(_mean(shares)),
    }


def _examples(
    batch: Batch, credit: Mapping[tuple[str, int], float], truth: Truth, number: int
) -> dict[str, list[dict[str, Any]]]:
    """The turns whose weight moved credit most in the direction of the labels, and most against it."""
    found = []
    for t, outcome in zip(batch.trajectories, batch.outcome, strict=True):
        keys = [(t.uid, u) for u in range(len(t.turns)) if (t.uid, u) in truth.labels and (t.uid, u) in credit]
        if outcome == 0 or len(keys) < 2:
            continue
        mean = _mean([truth.labels[key] for key in keys])
        for key in keys:
            gained = (credit[key] - outcome) * (truth.labels[key] - mean)
            found.append((gained, t, key[1], credit[key] / outcome, truth.labels[key]))
    found.sort(key=lambda one: one[0])
    ends = {"helpful": found[::-1][:number], "harmful": found[:number]}
    return {
        end: [
            {
                "trajectory": t.uid,
                "turn": u,
                "task": t.task_text,
                "success": t.success,
                "observation": t.turns[u].observation,
                "action": t.turns[u].action,
                "answer": t.turns[u].next_observation,
                "weight": round(weight, 4),
                "label": round(label, 4),
            }
            for gained, t, u, weight, label in chosen
            if abs(gained) > 1e-12
        ]
        for end, chosen in ends.items()
    }


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
