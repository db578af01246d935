"""The seam for credit: what a rule sees, what it gives back, what it needs, and what it promises.

Pure. A method is up to three choices: an *advantage rule* says what each turn is worth (A_it), a *weight rule* says
what each sampled token carries (A~_itk), a *distillation term* adds a loss of its own (`loss/distillation.py`). A
rule is a small frozen object in a file of its own; `methods/` puts rules together under a name.

Shapes are ragged, with trajectories in the order of [`Batch.trajectories`]: `Ragged` is `[trajectory][turn]`,
`TokenRagged` is `[trajectory][turn][token]` over the reply tokens R_it, the end token included. One group of two
episodes, of two turns and one turn, with replies of 3, 2 and 4 tokens:

    Ragged       [[A_00, A_01], [A_10]]
    TokenRagged  [[[a, a, a], [b, b]], [[c, c, c, c]]]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Protocol

from ..errors import InvariantError
from ..types import Alternatives, Credit, ReplyScore, Trajectory, TrajectoryGroup


Ragged = list[list[float]]
TokenRagged = list[list[list[float]]]
StateKey = Callable[[Trajectory, int], Hashable]
"""(trajectory, t) -> the state before the action of turn t, for t = 0..T_i (T_i: the state after the last action)."""

Scope = Literal["none", "action", "reply"]
Teacher = Literal["rollout", "stale", "ema", "frozen", "model"]


@dataclass(frozen=True)
class Needs:
    """What a rule asks of the stages before it. The stages are planned from this, and from nothing else.

    Args:
        blocks (`tuple[str, ...]`, *optional*, defaults to `()`):
            Names of the guidance blocks that are scored, each in a branch of its own; none = no second forward.
        scope (`str`, *optional*, defaults to `"none"`):
            Which tokens of a turn are scored: `"action"` (M_it), `"reply"` (R_it), or `"none"`.
        teacher (`str`, *optional*, defaults to `"rollout"`):
            Who plays the guided branch: `"rollout"` = pi_old, `"stale"` = a copy taken every `teacher_every` updates,
            `"ema"` = an average (each update: teacher <- (1 - `teacher_rate`) teacher + `teacher_rate` student),
            `"frozen"` = the initial policy, `"model"` = another model.
        plain_only (`bool`, *optional*, defaults to `False`):
            The teacher sees what the student sees: scores without any block.
        flat_groups (`bool`, *optional*, defaults to `False`):
            Trajectories with A_i = 0 get blocks and keep their rows too.
        vocabulary (`int`, *optional*, defaults to `0`):
            Distillation terms only: 0 = the sampled token, k > 0 = the top k, -1 = the whole distribution.
        top_of (`str`, *optional*, defaults to `"student"`):
            Whose top k is taken.
        temperature (`float`, *optional*, defaults to `1.0`):
            Of the distributions that a distillation term compares.
        state_key (`bool`, *optional*, defaults to `False`):
            Whether [`Batch.state_key`] is asked.
        values (`int`, *optional*, defaults to `0`):
            Continuations played from each state for [`Batch.values`]; 0 = none.
        final_scores (`bool`, *optional*, defaults to `False`):
            Advantage rules only: whether [`Batch.scores`] is read.
        alternatives (`int`, *optional*, defaults to `0`):
            Most actions of a turn, the executed one included, that are scored for [`Batch.alternatives`]; 0 = none.
        samples (`int`, *optional*, defaults to `0`):
            Replies that are sampled for a turn whose world lists no actions, to have alternatives there too.
        progress (`bool`, *optional*, defaults to `False`):
            Whether [`Batch.progress`] is read, which the simulator alone knows: an oracle.
    """

    blocks: tuple[str, ...] = ()
    scope: Scope = "none"
    teacher: Teacher = "rollout"
    teacher_every: int = 10
    teacher_rate: float = 0.05
    plain_only: bool = False
    flat_groups: bool = False
    vocabulary: int = 0
    top_of: Literal["student", "teacher"] = "student"
    temperature: float = 1.0
    state_key: bool = False
    values: int = 0
    final_scores: bool = False
    alternatives: int = 0
    samples: int = 0
    progress: bool = False


_EQUAL = 1e-8

NOTHING = Needs()
"""No block, no forward, no state."""


@dataclass(frozen=True)
class Guarantees:
    """What a weight rule promises of A~ against A; checked at every step, see [`check_guarantees`].

    Args:
        keeps_sign (`bool`, *optional*, defaults to `True`):
            A~ never has the other sign.
        bounds (`tuple[float, float]`, *optional*):
            A~ / A lies inside.
        mean_one (`str`, *optional*):
            `"turns"`: the mean of A~ / A over the T_i turns is 1. `"action_tokens"`: over each trajectory's pool of
            scored action tokens. `"each_action"`: over the action tokens of each turn.
        identity_at_zero (`bool` or `str`, *optional*, defaults to `True`):
            Where every shift of a trajectory is 0, A~ = A exactly. `"group"`: where every shift of its group is 0.
        flat_is_zero (`bool`, *optional*, defaults to `True`):
            A_it = 0 gives A~ = 0.
        per_trajectory (`bool`, *optional*, defaults to `False`):
            A~ of a trajectory depends on no other's scores. It may then be known before theirs.
    """

    keeps_sign: bool = True
    bounds: tuple[float, float] | None = None
    mean_one: Literal["turns", "action_tokens", "each_action"] | None = None
    identity_at_zero: bool | Literal["group"] = True
    flat_is_zero: bool = True
    per_trajectory: bool = False


@dataclass(frozen=True)
class Batch:
    """The played, scored groups of one rollout batch, the same on every process.

    Args:
        groups (`tuple[TrajectoryGroup, ...]`):
            With their rewards.
        outcome (`tuple[float, ...]`):
            A_i of each trajectory, computed once for guidance, credit and metrics alike; 0.0 for unusable ones.
        scores (`Mapping[tuple[str, int], ReplyScore]`, *optional*):
            (trajectory uid, turn index) -> log-probabilities with and without each block. A turn that is not there was
            not asked for.
        step (`int`, *optional*, defaults to `0`):
            n, completed optimizer updates.
        num_steps (`int`, *optional*, defaults to `0`):
            Updates of the whole run, for schedules that are scaled; 0 = unknown.
        state_key (`Callable`, *optional*):
            Which turns stand in the same state.
        unguided (`Mapping[str, str]`, *optional*):
            Trajectory uid -> why it has no guidance.
        values (`Mapping[tuple[str, int], float]`, *optional*):
            (trajectory uid, t) -> V of the state before turn t (t = T_i: after the last action).
        alternatives (`Mapping[tuple[str, int], Alternatives]`, *optional*):
            (trajectory uid, t) -> what could have been done in turn t, scored; a turn without any is not there.
        progress (`Mapping[tuple[str, int], float]`, *optional*):
            (trajectory uid, t) -> by how much the action of turn t brought the goal nearer, as the simulator knows it;
            a turn of which it knows nothing is not there.
    """

    groups: tuple[TrajectoryGroup, ...]
    outcome: tuple[float, ...]
    scores: Mapping[tuple[str, int], ReplyScore] = field(default_factory=dict)
    step: int = 0
    num_steps: int = 0
    state_key: StateKey | None = None
    values: Mapping[tuple[str, int], float] = field(default_factory=dict)
    unguided: Mapping[str, str] = field(default_factory=dict)
    alternatives: Mapping[tuple[str, int], Alternatives] = field(default_factory=dict)
    progress: Mapping[tuple[str, int], float] = field(default_factory=dict)

    @cached_property
    def trajectories(self) -> tuple[Trajectory, ...]:
        """All trajectories, group by group."""
        return tuple(t for group in self.groups for t in group.trajectories)

    @cached_property
    def outcome_of(self) -> Mapping[str, float]:
        """A_i by trajectory uid."""
        return {t.uid: a for t, a in zip(self.trajectories, self.outcome, strict=True)}

    @cached_property
    def usable(self) -> tuple[tuple[int, ...], ...]:
        """For each group, where its usable trajectories stand in [`Batch.trajectories`]: all that statistics see."""
        places = iter(range(len(self.trajectories)))
        return tuple(
            tuple(i for t, i in zip(group.trajectories, places, strict=False) if t.is_usable) for group in self.groups
        )

    def part(self, uids: Collection[str], **changes: Any) -> Batch:
        """Some of the trajectories, each in its group, with their outcomes.

        Args:
            uids (`Collection[str]`):
                Which.
            **changes (`Any`):
                Other fields, as in [`dataclasses.replace`].
        """
        groups = [
            replace(group, trajectories=tuple(t for t in group.trajectories if t.uid in uids)) for group in self.groups
        ]
        kept = tuple(group for group in groups if group.trajectories)
        outcome = tuple(self.outcome_of[t.uid] for group in kept for t in group.trajectories)
        return replace(self, groups=kept, outcome=outcome, **changes)

    def state(self, trajectory: Trajectory, turn_idx: int) -> Hashable:
        """[`state_key`] of turn t; a rule that asks for it says so in its needs."""
        if self.state_key is None:
            raise InvariantError("A credit rule asked for a state, but its needs did not: the batch has no state key.")
        return self.state_key(trajectory, turn_idx)

    def shifts(self, trajectory: Trajectory, turn_idx: int, block: str) -> tuple[float, ...] | None:
        """Delta_itk over R_it (NaN outside the asked scope); None for a turn that has no usable score of `block`."""
        score = self.scores.get((trajectory.uid, turn_idx))
        return None if score is None else score.shifts(block)

    def action_shifts(self, trajectory: Trajectory, turn_idx: int, block: str) -> tuple[float, ...] | None:
        """Delta_itk over M_it; None for a turn that has no usable score of `block`, or no action tokens."""
        shifts = self.shifts(trajectory, turn_idx, block)
        if shifts is None:
            return None
        mask = trajectory.turns[turn_idx].action_mask
        return tuple(shift for shift, is_action in zip(shifts, mask, strict=True) if is_action) or None

    def span_shifts(
        self, trajectory: Trajectory, turn_idx: int, block: str, span: Sequence[bool] | None = None
    ) -> tuple[float | None, ...] | None:
        """Delta_itk over R_it, None outside `span` (by default all of R_it).

        None for the whole turn when it has no usable score of `block`, no token in the span, or a shift there that is
        not finite: such a turn keeps the neutral weight.
        """
        shifts = self.shifts(trajectory, turn_idx, block)
        if shifts is None:
            return None
        inside = [True] * len(shifts) if span is None else span
        spanned = tuple(shift if one else None for shift, one in zip(shifts, inside, strict=True))
        known = [shift for shift in spanned if shift is not None]
        return spanned if known and all(map(math.isfinite, known)) else None


@dataclass(frozen=True)
class Weighed:
    """What a weight rule gives.

    Args:
        advantages (`TokenRagged`):
            A~_itk.
        weights (`Ragged`, *optional*):
            w_it as the rule computed it, for records and pictures; None = the mean of A~ / A_i over the turn.
        supports (`Sequence[Sequence[float | None]]`, *optional*):
            The evidence behind each turn's weight (TASPO: d_it); None where a turn has none.
        fallbacks (`Sequence[str]`, *optional*):
            For each trajectory why A~ = A; empty where it is not.
        token_weights (`TokenRagged | None`, *optional*):
            Weights inside the turns, where they differ there.
        metrics (`Mapping[str, float]`, *optional*):
            What the rule reports of this step, by metric name.
    """

    advantages: TokenRagged
    weights: Ragged | None = None
    supports: Sequence[Sequence[float | None]] | None = None
    fallbacks: Sequence[str] | None = None
    token_weights: TokenRagged | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


class AdvantageRule(Protocol):
    """(a) What each turn is worth."""

    @property
    def needs(self) -> Needs: ...

    def __call__(self, batch: Batch) -> Ragged:
        """A_it; 0.0 for every turn of an unusable trajectory."""


class WeightRule(Protocol):
    """(b) What each sampled token carries.

    A rule with a schedule may also have `reads_scores(batch)`: whether scores change anything at the batch's step.
    Where they do not, nothing is scored.
    """

    @property
    def needs(self) -> Needs: ...

    @property
    def guarantees(self) -> Guarantees: ...

    def __call__(self, batch: Batch, advantages: Ragged) -> Weighed:
        """A~_itk from A_it and the scores."""


@dataclass(frozen=True)
class OutcomeAdvantage:
    """A_it = A_i, the group-relative advantage of the trajectory: GRPO's rule."""

    needs: Needs = NOTHING

    def __call__(self, batch: Batch) -> Ragged:
        return [[a] * len(t.turns) for t, a in zip(batch.trajectories, batch.outcome, strict=True)]


@dataclass(frozen=True)
class NoWeights:
    """A~_itk = A_it on every sampled token of the turn."""

    needs: Needs = NOTHING
    guarantees: Guarantees = Guarantees(bounds=(1.0, 1.0), mean_one="turns")

    def __call__(self, batch: Batch, advantages: Ragged) -> Weighed:
        return Weighed(broadcast(batch, advantages))


def returns(trajectory: Trajectory, gamma: float) -> list[float]:
    """G_it = gamma^(T_i - t) r_i for the T_i turns, the reward coming with the last one."""
    num_turns = len(trajectory.turns)
    return [gamma ** (num_turns - 1 - t) * trajectory.reward for t in range(num_turns)]


def normalised(
    values: Sequence[float], std: Literal["none", "sample", "population"] = "none", epsilon: float = 1e-6
) -> list[float]:
    """(x - mean) / (std + `epsilon`), without a divisor for `"none"`.

    Values that differ by at most 1e-8, and a value alone, give exactly 0: rounding is not evidence.
    """
    if not values or max(values) - min(values) <= _EQUAL:
        return [0.0] * len(values)
    mean = math.fsum(values) / len(values)
    centred = [value - mean for value in values]
    if std == "none":
        return centred
    members = len(values) - 1 if std == "sample" else len(values)
    scale = math.sqrt(math.fsum(c * c for c in centred) / members) + epsilon
    return [c / scale for c in centred]


def broadcast(batch: Batch, values: Ragged) -> TokenRagged:
    """One value of each turn on all of its reply tokens."""
    return [
        [[value] * len(turn.reply_ids) for turn, value in zip(t.turns, row, strict=True)]
        for t, row in zip(batch.trajectories, values, strict=True)
    ]


def linear_decay(start: float, step: int, zero_at: float) -> float:
    """lambda_n = start * max(0, 1 - n / zero_at); `zero_at` 0 or less keeps `start`."""
    return start if zero_at <= 0 else start * max(0.0, 1.0 - step / zero_at)


def share_at(batch: Batch, share: float, zero_at: int | None, counted_from: int = 0) -> float:
    """lambda_n; `zero_at` None = a third of the run, as the published 50 of 150 updates (50 where it has no end)."""
    end = (batch.num_steps / 3 or 50) if zero_at is None else zero_at
    return linear_decay(share, batch.step + counted_from, end)


def sign(value: float) -> float:
    """s: 1.0, -1.0, or 0.0 for a value of 0."""
    return math.copysign(1.0, value) if value else 0.0


def cut(value: float, low: float, high: float) -> float:
    """clip(value, low, high)."""
    return max(low, min(high, value))


def tilt(shift: float, advantage: float, clip: float) -> float:
    """w_k = clip(exp(s Delta_k), 1 - eps, 1 + eps), the token weight of RLSD and SERL; 1.0 for A = 0."""
    return cut(math.exp(cut(sign(advantage) * shift, -20.0, 20.0)), 1.0 - clip, 1.0 + clip)


def weigh_tokens(
    batch: Batch,
    advantages: Ragged,
    share: float,
    shifts_of: Callable[[Trajectory, int], Sequence[float | None] | None],
    weight_of: Callable[[float, float], float],
) -> Weighed:
    """A~_k = A [(1 - lambda) + lambda w_k], each token's weight from its own shift.

    Args:
        share (`float`):
            lambda, in [0, 1].
        shifts_of (`Callable`):
            (trajectory, t) -> Delta_itk over R_it, None on tokens that keep A; None = the whole turn does.
        weight_of (`Callable`):
            (Delta_k, A_it) -> w_k.
    """
    weights: TokenRagged = []
    supports: list[list[float | None]] = []
    fallbacks: list[str] = []
    for t, row in zip(batch.trajectories, advantages, strict=True):
        of_turns = [shifts_of(t, u) for u in range(len(t.turns))]
        weights.append(
            [
                [
                    1.0 if d is None else 1.0 + share * (weight_of(d, a) - 1.0)
                    for d in shifts or [None] * len(o.reply_ids)
                ]
                for a, o, shifts in zip(row, t.turns, of_turns, strict=True)
            ]
        )
        supports.append([mean_shift(shifts) for shifts in of_turns])
        fallbacks.append(why_unchanged(t, row, any(shifts is not None for shifts in of_turns), share))
    return Weighed(product(advantages, weights), None, supports, fallbacks, weights)


def weigh_turns(
    batch: Batch,
    advantages: Ragged,
    weights: Ragged,
    supports: Sequence[Sequence[float | None]],
    fallbacks: Sequence[str],
) -> Weighed:
    """A~_itk = A_it w_it on every reply token of the turn."""
    rows = [[a * w for a, w in zip(*pair, strict=True)] for pair in zip(advantages, weights, strict=True)]
    return Weighed(broadcast(batch, rows), weights, supports, fallbacks)


def product(advantages: Ragged, weights: TokenRagged) -> TokenRagged:
    """A_it w_itk."""
    return [
        [[a * w for w in turn] for a, turn in zip(row, turns, strict=True)]
        for row, turns in zip(advantages, weights, strict=True)
    ]


def mean_shift(shifts: Sequence[float | None] | None) -> float | None:
    """The mean of the shifts that are there; None without any."""
    known = [shift for shift in shifts or () if shift is not None]
    return math.fsum(known) / len(known) if known else None


def mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    """Mean and population standard deviation; zeros without values."""
    if not values:
        return 0.0, 0.0
    mean = math.fsum(values) / len(values)
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))


def by_group(batch: Batch, advantages: Ragged) -> list[tuple[TrajectoryGroup, Ragged]]:
    """Each group with the rows of its trajectories."""
    rows = iter(advantages)
    return [(group, [next(rows) for _ in group.trajectories]) for group in batch.groups]


def why_unchanged(trajectory: Trajectory, row: Sequence[float], scored: bool, share: float = 1.0) -> str:
    """Why A~ = A on a whole trajectory; empty where a rule may move it."""
    if not trajectory.is_usable:
        return "unusable"
    if not any(row):
        return "zero_advantage"
    if share == 0:
        return "zero_share"
    return "" if scored else "no_scored_turn"


def combined(*needs: Needs) -> Needs:
    """The needs of rules that work together. They must agree on the teacher.

    Raises:
        InvariantError: two rules that ask for forwards name different teachers.
    """
    asking = [one for one in needs if one.blocks or one.plain_only]
    teachers = {(one.teacher, one.teacher_every, one.teacher_rate) for one in asking}
    if len(teachers) > 1:
        raise InvariantError(f"Rules of one method ask for different teachers: {sorted(teachers)}.")
    first = asking[0] if asking else NOTHING
    scopes: tuple[Scope, ...] = ("none", "action", "reply")
    vocabulary = next((one.vocabulary for one in needs if one.vocabulary), 0)
    return Needs(
        blocks=tuple(dict.fromkeys(block for one in needs for block in one.blocks)),
        scope=max((one.scope for one in needs), key=scopes.index, default="none"),
        teacher=first.teacher,
        teacher_every=first.teacher_every,
        teacher_rate=first.teacher_rate,
        plain_only=any(one.plain_only for one in needs),
        flat_groups=any(one.flat_groups for one in needs),
        vocabulary=vocabulary,
        top_of=next((one.top_of for one in needs if one.vocabulary), "student"),
        temperature=next((one.temperature for one in needs if one.temperature != 1.0), 1.0),
        state_key=any(one.state_key for one in needs),
        values=max((one.values for one in needs), default=0),
        final_scores=any(one.final_scores for one in needs),
        alternatives=max((one.alternatives for one in needs), default=0),
        samples=max((one.samples for one in needs), default=0),
        progress=any(one.progress for one in needs),
    )


def credits_of(batch: Batch, advantages: Ragged, weighed: Weighed, method: str) -> dict[str, Credit]:
    """What a rule did to each trajectory, by uid, as it is recorded."""
    return {t.uid: _credit_of(batch, i, t, advantages[i], weighed, method) for i, t in enumerate(batch.trajectories)}


def _credit_of(batch: Batch, i: int, t: Trajectory, row: list[float], weighed: Weighed, method: str) -> Credit:
    outcome, tokens = batch.outcome[i], weighed.advantages[i]
    weights = weighed.weights[i] if weighed.weights is not None else [_mean_weight(outcome, turn) for turn in tokens]
    inside = weighed.token_weights[i] if weighed.token_weights is not None else None
    if inside is not None and all(len(set(turn)) <= 1 for turn in inside):
        inside = None
    told = inside or [[w] * len(turn) for w, turn in zip(weights, tokens, strict=True)]
    is_told = [[outcome * w for w in turn] for turn in told] == tokens
    scores = [batch.scores.get((t.uid, turn_idx)) for turn_idx in range(len(t.turns))]
    is_scored = any(score is not None for score in scores)
    return Credit(
        traj_uid=t.uid,
        advantage=outcome,
        weights=tuple(weights),
        supports=tuple(weighed.supports[i]) if weighed.supports is not None else (None,) * len(t.turns),
        scores=tuple(score or ReplyScore(unscorable="no_reply") for score in scores) if is_scored else (),
        fallback=weighed.fallbacks[i] if weighed.fallbacks is not None else "",
        token_weights=None if inside is None else tuple(tuple(turn) for turn in inside),
        method=method,
        turn_advantages=None if all(a == outcome for a in row) else tuple(row),
        token_advantages=None if is_told else tuple(tuple(turn) for turn in tokens),
    )


def _mean_weight(outcome: float, tokens: list[float]) -> float:
    if not outcome or all(a == outcome for a in tokens):
        return 1.0
    return math.fsum(tokens) / len(tokens) / outcome


_SLACK = 1e-9


def check_guarantees(batch: Batch, advantages: Ragged, weighed: Weighed, needs: Needs, promised: Guarantees) -> None:
    """Raise [`~taspo_trl.errors.InvariantError`] unless A~ has the shape of the batch and keeps what was promised.

    Args:
        batch (`Batch`), advantages (`Ragged`), weighed (`Weighed`):
            What a weight rule was given and what it gave.
        needs (`Needs`), promised (`Guarantees`):
            The rule's.
    """
    peers = {t.uid: group.trajectories for group in batch.groups for t in group.trajectories}
    for i, (t, row, tokens) in enumerate(zip(batch.trajectories, advantages, weighed.advantages, strict=True)):
        if [len(turn.reply_ids) for turn in t.turns] != [len(one) for one in tokens]:
            raise _breach(t, "one value for each reply token", [len(one) for one in tokens])
        values = [(a, x) for a, turn in zip(row, tokens, strict=True) for x in turn]
        if not all(math.isfinite(x) for _, x in values):
            raise _breach(t, "finite values", [x for _, x in values if not math.isfinite(x)][:3])
        if promised.keeps_sign and any(a * x < 0 for a, x in values):
            raise _breach(t, "the sign of A", [(a, x) for a, x in values if a * x < 0][:3])
        if promised.flat_is_zero and any(a == 0 and x != 0 for a, x in values):
            raise _breach(t, "A~ = 0 where A = 0", [x for a, x in values if a == 0 and x != 0][:3])
        ratios = [[x / a if a else 1.0 for x in turn] for a, turn in zip(row, tokens, strict=True)]
        if promised.bounds is not None:
            low, high = promised.bounds
            out = [r for turn in ratios for r in turn if not low - _SLACK <= r <= high + _SLACK]
            if out:
                raise _breach(t, f"A~ / A inside [{low:g}, {high:g}]", out[:3])
        _check_means(t, ratios, promised, weighed.weights[i] if weighed.weights is not None else None)
        quiet = peers[t.uid] if promised.identity_at_zero == "group" else (t,)
        if (
            promised.identity_at_zero
            and any(a != x for a, x in values)
            and all(_all_shifts_zero(batch, one, needs) for one in quiet)
        ):
            raise _breach(t, "A~ = A where every shift is 0", [(a, x) for a, x in values if a != x][:3])


def _check_means(t: Trajectory, ratios: Ragged, promised: Guarantees, weights: list[float] | None) -> None:
    pools: list[list[float]] = []
    if promised.mean_one == "turns":
        # A turn without reply tokens carries no loss, but counts in T_i with its weight.
        of_turns = [math.fsum(turn) / len(turn) if turn else 1.0 for turn in ratios]
        pools = [of_turns if weights is None else weights]
    elif promised.mean_one is not None:
        action = [
            [r for r, is_action in zip(turn, one.action_mask, strict=True) if is_action]
            for turn, one in zip(ratios, t.turns, strict=True)
        ]
        pools = action if promised.mean_one == "each_action" else [[r for turn in action for r in turn]]
    for pool in pools:
        if pool and abs(math.fsum(pool) / len(pool) - 1.0) > 1e-6:
            raise _breach(t, f"mean one over {promised.mean_one}", math.fsum(pool) / len(pool))


def _all_shifts_zero(batch: Batch, t: Trajectory, needs: Needs) -> bool:
    places = [(turn_idx, block) for turn_idx in range(len(t.turns)) for block in needs.blocks]
    seen = [shift for place in places for shift in batch.shifts(t, *place) or () if not math.isnan(shift)]
    others = [batch.alternatives.get((t.uid, turn_idx)) for turn_idx, _ in places] if needs.alternatives else []
    return all(shift == 0 for shift in seen) and not any(one is not None and one.are_shifted for one in others)


def _breach(t: Trajectory, rule: str, value: object) -> InvariantError:
    return InvariantError(
        f"The credit of trajectory {t.uid!r} breaks its rule's promise ({rule}): {value!r}. This is a bug in "
        "taspo_trl; please report it with the trajectory's record."
    )
