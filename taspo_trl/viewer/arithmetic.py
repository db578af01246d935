"""From what a turn's evidence was to the weight that it got, as one line of real numbers.

Pure. A line is made of the recorded numbers and the options of the run's method, and is shown only where it ends at
the weight that was recorded; where it does not (other options, a record that lacks something) the rule's own line
stands there with the recorded weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..credit.base import cut, linear_decay, mean_and_std, mean_shift, sign, tilt
from ..credit.taspo import credit_weights
from ..credit.triage import ROLE_CREDIT
from .index import outcome_of
from .lenient import at, items, mapping, number, text
from .numbers import MINUS, less, plain, short, signed


Link = list[str]
"""[what the step does, the calculation, its result]"""
Line = list[Link]

_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Episode:
    """What a raw record says of its credit.

    Args:
        advantage (`float`):
            A_i.
        turn_advantages (`tuple[float, ...]`):
            A_it.
        weights, supports (`tuple[float | None, ...]`):
            w_it and what is behind it.
        shifts (`tuple[Mapping[str, list[float]], ...]`):
            For each turn the shifts of its scored tokens, by block.
        num_tokens (`tuple[int, ...]`):
            |R_it|.
        token_weights (`list`):
            w_itk for each turn; empty where weights do not differ inside turns.
        step (`int`):
            Updates before the batch.
        is_usable, success (`bool`):
            Whether it counts in its group, and its verdict.
        distill (`tuple[float, ...]`):
            m_k of each turn; empty without a distillation term.
        refused (`tuple[bool, ...]`, *optional*):
            Which actions the environment did not accept.
    """

    advantage: float
    turn_advantages: tuple[float, ...]
    weights: tuple[float | None, ...]
    supports: tuple[float | None, ...]
    shifts: tuple[Mapping[str, list[float]], ...]
    num_tokens: tuple[int, ...]
    token_weights: list[list[float]]
    step: int
    is_usable: bool
    success: bool
    distill: tuple[float, ...]
    refused: tuple[bool, ...] = ()

    @property
    def known(self) -> list[float]:
        """The supports that are there."""
        return [d for d in self.supports if d is not None]

    def shifts_of(self, t: int, block: str) -> list[float]:
        """Of the scored tokens of turn t under a block; empty without any."""
        return list(self.shifts[t].get(block, ()))


def lines_of_group(records: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> list[list[Line]]:
    """For each record one line for each turn.

    Args:
        records (`Sequence[Mapping[str, Any]]`):
            The raw records of a group.
        facts (`Mapping[str, Any]`):
            The method, as [`~taspo_trl.methods.facts.facts_of`] tells it.
    """
    group = [episode_of(record) for record in records]
    return [[_line(one, t, group, facts) for t in range(len(one.weights))] for one in group]


def episode_of(record: Mapping[str, Any]) -> Episode:
    """The numbers of a raw record; what it lacks is what leaves a turn alone."""
    turns, credit = [mapping(turn) for turn in items(record.get("turns"))], mapping(record.get("credit"))
    advantage = number(credit.get("advantage")) or 0.0
    own = [number(a) for a in items(credit.get("turn_advantages"))]
    return Episode(
        advantage=advantage,
        turn_advantages=tuple(advantage if at(own, t) is None else at(own, t) for t in range(len(turns))),
        weights=tuple(number(at(items(credit.get("weights")), t)) for t in range(len(turns))),
        supports=tuple(number(at(items(credit.get("supports")), t)) for t in range(len(turns))),
        shifts=tuple(_shifts(mapping(at(items(credit.get("scores")), t))) for t in range(len(turns))),
        num_tokens=tuple(len(items(turn.get("reply_ids"))) for turn in turns),
        token_weights=[[number(w) or 0.0 for w in items(row)] for row in items(credit.get("token_weights"))],
        step=int(number(record.get("step")) or 0),
        is_usable=outcome_of(record) != "infrastructure",
        success=record.get("success") is True,
        distill=tuple(number(m) or 0.0 for m in items(credit.get("distill"))),
        refused=tuple(turn.get("valid") is False for turn in turns),
    )


def _shifts(score: Mapping[str, Any]) -> dict[str, list[float]]:
    before = items(score.get("plain"))
    found = {}
    for block, after in mapping(score.get("guided")).items():
        pairs = [(number(p), number(g)) for p, g in zip(before, items(after), strict=False)]
        if pairs and len(pairs) == len(before) and all(p is not None and g is not None for p, g in pairs):
            found[block] = [g - p for p, g in pairs if p is not None and g is not None]
    return found


# ---- a line of any rule -----------------------------------------------------------------------------------------


def _line(one: Episode, t: int, group: Sequence[Episode], facts: Mapping[str, Any]) -> Line:
    weight = one.weights[t]
    if weight is None:
        return []
    links = [*_advantage(one, t, facts), *_weight(one, t, weight, group, facts)]
    return [*links, *_distilled(one, t, facts)]


def _weight(one: Episode, t: int, weight: float, group: Sequence[Episode], facts: Mapping[str, Any]) -> Line:
    rule = mapping(facts.get("weight"))
    name, options = text(rule.get("rule")), mapping(rule.get("options"))
    if name == "TurnWeights" and one.token_weights:
        name = "TokenWeights"
    if name not in LINES or one.supports[t] is None:
        return []
    make, own = LINES[name]
    try:
        links, reached = make(one, t, group, options, int(number(facts.get("num_steps")) or 0))
    except (ArithmeticError, KeyError, TypeError, ValueError, IndexError):
        return [["the rule", own, f"w {plain(weight)}"]]
    if abs(reached - weight) > _TOLERANCE * max(1.0, abs(weight)):
        return [["the rule", own, f"w {plain(weight)}"]]
    return links


# ---- advantage rules --------------------------------------------------------------------------------------------


def _advantage(one: Episode, t: int, facts: Mapping[str, Any]) -> Line:
    rule = mapping(facts.get("advantage"))
    name, options = text(rule.get("rule")), mapping(rule.get("options"))
    a, own = one.advantage, one.turn_advantages[t]
    if name == "Triage":
        strength = number(options.get("strength")) or 0.0
        part = (own - a) / strength if strength else 0.0
        role = next((role for role, value in ROLE_CREDIT.items() if abs(value - part) < 1e-6), None)
        if role is not None:
            how = f"A {signed(a)} + {short(strength)} · ({signed(part, 1)}, {role.replace('_', ' ')})"
            return [["the turn's role", how, f"A_it {signed(own)}"]]
    if name in _ADDED and own != a:
        what = _ADDED[name]
        return [[what, f"A {signed(a)}{less(a - own)} ({what})", f"A_it {signed(own)}"]]
    if name in _OWN_ADVANTAGES:
        return [["the rule", _OWN_ADVANTAGES[name], f"A_it {signed(own)}"]]
    return []


_ADDED = {
    "GiGPO": "against others in the same state",
    "HCAPO": "what hindsight says of the action",
    "Triage": "the turn's role",
}
"""Rules that add a term to A_i -> what the term is."""
_OWN_ADVANTAGES = {
    "HGPO": "mean over the peers of ever longer histories",
    "GraphGPO": "how much nearer to the goal, in the group's graph",
    "TAC": f"V(t+1) {MINUS} V(t)",
    "RLOO": "r less the others' mean",
}


# ---- weight rules -----------------------------------------------------------------------------------------------

Made = tuple[Line, float]
"""The line, and the weight that it reaches."""


def _taspo(one: Episode, t: int, group: Sequence[Episode], options: Mapping[str, Any], num_steps: int) -> Made:
    tau, reach = options["temperature"], options["weight_range"]
    eta = reach / 2 if options.get("step_size") is None else options["step_size"]
    capped = one.refused if options.get("cap_refused") else ()
    weights, mean, mean_q = _relative(one.supports, one.advantage, tau, reach, options.get("step_size"), capped)
    reached = weights[t]
    if one.advantage == 0 or len(one.known) < 2:
        return [_support(one, t, options), ["alone", "nothing to compare with", "w 1.000"]], reached
    d, s = one.supports[t] or 0.0, sign(one.advantage)
    q = math.tanh(s * (d - mean) / tau)
    free = 1.0 + eta * (q - mean_q)
    links = [
        _support(one, t, options),
        ["beside the episode's mean", f"{signed(d)}{less(mean)}", signed(d - mean)],
        [
            "into −1 … 1, in the outcome's direction",
            f"tanh({signed(d - mean) if s > 0 else f'{MINUS}({signed(d - mean)})'} / {short(tau)})",
            f"q {signed(q)}",
        ],
        ["mean one", f"1 + {short(eta)} · ({signed(q)}{less(mean_q)})", f"w {plain(free)}"],
    ]
    if abs(free - reached) > _TOLERANCE:
        among = f", refused actions at {'most' if s > 0 else 'least'} 1" if any(capped) else ""
        into = f"inside 1 ± {short(reach)}{among}, the mean kept at one"
        links.append(["into its range", into, f"w {plain(reached)}"])
    return links, reached


@lru_cache(maxsize=16)  # once for an episode, not for each of its turns
def _relative(
    supports: tuple[float | None, ...],
    advantage: float,
    tau: float,
    reach: float,
    eta: float | None,
    capped: tuple[bool, ...] = (),
) -> tuple[list[float], float, float]:
    """(w of each turn, mean d, mean q) of an episode."""
    known = [d for d in supports if d is not None]
    mean = math.fsum(known) / max(1, len(known))
    preferences = [math.tanh(sign(advantage) * (d - mean) / tau) for d in known]
    weights = credit_weights(supports, advantage, tau, reach, eta, capped)
    return weights, mean, math.fsum(preferences) / max(1, len(known))


def _support(one: Episode, t: int, options: Mapping[str, Any]) -> Link:
    if "form" in options:  # beside the admissible actions
        return ["support", "the action's shift beside those of the other admissible actions", _d(one, t)]
    if "shuffled" in options:
        return ["progress", "actions of the plan that it came nearer", f"p {signed(one.supports[t] or 0.0)}"]
    shifts = one.shifts_of(t, text(options.get("block")))
    clip, threshold = options["clip"], number(options.get("threshold")) or 0.0
    how = f"mean of {len(shifts) or 'its'} shifts inside ±{short(clip)}"
    if threshold:
        how += f", below {short(threshold)} as 0"
    return ["support", how, _d(one, t)]


def _d(one: Episode, t: int) -> str:
    return f"d {signed(one.supports[t] or 0.0)}"


def _tokens(one: Episode, t: int, group: Sequence[Episode], options: Mapping[str, Any], num_steps: int) -> Made:
    weights = one.token_weights[t]
    moved = [w for w in weights if w != 1.0]
    reached = math.fsum(weights) / len(weights)
    inside = f"{len(moved)} of {len(weights)} tokens at {plain(min(moved))} … {plain(max(moved))}" if moved else "none"
    return [
        _support(one, t, options),
        ["each action token by its own shift", inside + ", the others at 1", f"mean w {plain(reached)}"],
    ], reached


def _tilted(one: Episode, t: int, group: Sequence[Episode], options: Mapping[str, Any], num_steps: int) -> Made:
    """RLSD and SERL: exp of the shift, cut, mixed with 1."""
    shifts, a = one.shifts_of(t, options["block"]), one.turn_advantages[t]
    weights = one.token_weights[t] if one.token_weights else [1.0] * one.num_tokens[t]
    share = _share(one, options, num_steps)
    off = bool(options.get("blame_only")) and a > 0
    values = [1.0 if off else tilt(d, a, options["clip"]) for d in shifts]
    moved = sum(w != 1.0 for w in weights)
    mean = math.fsum(values) / len(values)
    reached = math.fsum(weights) / len(weights)
    own = 1.0 + share * (mean - 1.0) * len(shifts) / len(weights)
    part = "" if len(shifts) == len(weights) else f" · {len(shifts)}/{len(weights)} tokens"
    if abs(own - reached) > _TOLERANCE:  # weighs fewer tokens than were scored: the action's tags are left out
        return [
            ["shift", f"mean of {len(shifts)} tokens", f"Δ {signed(mean_shift(shifts) or 0.0)}"],
            [
                "mixed with 1",
                f"mean of 1 + {short(share)} · (clip(e^(sΔ), 1 ± {short(options['clip'])}) {MINUS} 1), {moved} tokens",
                f"w {plain(reached)}",
            ],
        ], reached
    return [
        ["shift", f"mean of {len(shifts)} tokens", f"Δ {signed(mean_shift(shifts) or 0.0)}"],
        [
            "in the outcome's direction, cut",
            f"mean of e^({'' if a > 0 else MINUS}Δ) inside 1 ± {short(options['clip'])}",
            plain(mean),
        ],
        ["mixed with 1", f"1 + {short(share)} · ({plain(mean)} {MINUS} 1){part}", f"w {plain(reached)}"],
    ], reached


def _stepopsd(one: Episode, t: int, group: Sequence[Episode], options: Mapping[str, Any], num_steps: int) -> Made:
    share, alpha, s = _share(one, options, num_steps), options["clip"], sign(one.turn_advantages[t])

    def kernel(shift: float) -> float:
        exponent = cut(s * shift, -20.0, 20.0)
        value = math.exp(exponent) if options["kernel"] == "exp" else 2.0 / (1.0 + math.exp(-exponent))
        return cut(value, 1.0 - alpha, 1.0 + alpha)

    def mean_of(turn: int) -> tuple[float, int]:
        values = [kernel(d) for d in one.shifts_of(turn, options["block"])]
        return (math.fsum(values) / len(values), len(values)) if values else (1.0, 0)

    scored = [u for u in range(len(one.weights)) if one.shifts_of(u, options["block"])]
    means = {u: 1.0 + share * (mean_of(u)[0] - 1.0) for u in scored}
    target = math.fsum(means.values()) / len(means)
    factor = cut(target / means[t], 0.5, 2.0) if options["normalise"] else 1.0
    mean, count = mean_of(t)
    whole = one.num_tokens[t]
    reached = (count * means[t] * factor + whole - count) / whole
    word = "e^" if options["kernel"] == "exp" else "2σ"
    return [
        [
            "in the outcome's direction, cut",
            f"mean of {word}({'' if s > 0 else MINUS}Δ) inside 1 ± {short(alpha)}, {count} tokens",
            plain(mean),
        ],
        ["mixed with 1", f"1 + {short(share)} · ({plain(mean)} {MINUS} 1)", f"m {plain(means[t])}"],
        ["all steps at one mean", f"· {plain(target)} / {plain(means[t])}", plain(means[t] * factor)],
        ["over the reply", f"{count} of {whole} tokens", f"w {plain(reached)}"],
    ], reached


def _agentopsd(one: Episode, t: int, group: Sequence[Episode], options: Mapping[str, Any], num_steps: int) -> Made:
    share, b, s = _share(one, options, num_steps), options["reach"], sign(one.turn_advantages[t])
    mean, std = mean_and_std(one.known)
    q = one.supports[t] or 0.0
    z = (q - mean) / (std + 1e-6)
    moved = cut(1.0 + b * s * z, 1.0 - b, 1.0 + b)
    reached = 1.0 + share * (moved - 1.0)
    return [
        ["by how much the belief in success rose", "B_t less B_(t−1)", f"q {signed(q)}"],
        ["beside the episode", f"({signed(q)}{less(mean)}) / {plain(std)}", f"z {signed(z)}"],
        ["cut", f"1 {'+' if s >= 0 else MINUS} {short(b)} · z inside 1 ± {short(b)}", plain(moved)],
        ["mixed with 1", f"1 + {short(share)} · ({plain(moved)} {MINUS} 1)", f"w {plain(reached)}"],
    ], reached


def _grsd(one: Episode, t: int, group: Sequence[Episode], options: Mapping[str, Any], num_steps: int) -> Made:
    def q_of(member: Episode, turn: int) -> float | None:
        d = member.supports[turn]
        return None if d is None else math.expm1(cut(sign(member.turn_advantages[turn]) * d, -20.0, 20.0))

    mixed = len({member.success for member in group if member.is_usable}) == 2
    all_q = [q_of(member, turn) for member in group if member.is_usable for turn in range(len(member.supports))]
    sizes = [abs(q) for q in all_q if q is not None]
    q, clip = q_of(one, t) or 0.0, options["clip"]
    scale = math.fsum(sizes) / len(sizes) if mixed and sizes else 0.0
    relative = cut(q / scale, -clip, clip) if scale else 0.0
    reached = max(options["floor"], 1.0 + options["gain"] * relative) if scale else 1.0
    s = "" if one.turn_advantages[t] > 0 else MINUS
    return [
        ["shift", "mean over the reply", f"δ {signed(one.supports[t] or 0.0)}"],
        ["in the outcome's direction", f"e^({s}δ) {MINUS} 1", f"q {signed(q)}"],
        [
            "beside the group",
            f"{signed(q)} / {plain(scale)} inside ±{short(clip)}",
            signed(relative),
        ],
        [
            "weight",
            f"1 + {short(options['gain'])} · ({signed(relative)}), at least {short(options['floor'])}",
            f"w {plain(reached)}",
        ],
    ], reached


def _turnsight(one: Episode, t: int, group: Sequence[Episode], options: Mapping[str, Any], num_steps: int) -> Made:
    reach, s = options["share"] * options["gain"], sign(one.turn_advantages[t])
    weight = one.weights[t] or 1.0
    z = math.atanh(cut((weight - 1.0) / reach, -0.999999, 0.999999)) * s  # its group's statistics are not recorded
    reached = 1.0 + reach * math.tanh(s * z)
    return [
        ["shift under its own future", "the horizon that most agree with", f"δ {signed(one.supports[t] or 0.0)}"],
        ["beside the group's tokens", "(δ less mean) / std", f"z {signed(z)}"],
        ["weight", f"1 + {short(reach)} · tanh({'' if s > 0 else MINUS}z)", f"w {plain(reached)}"],
    ], reached


def _opid(one: Episode, t: int, group: Sequence[Episode], options: Mapping[str, Any], num_steps: int) -> Made:
    a, added = one.turn_advantages[t], one.supports[t] or 0.0
    weights = (options["episode_weight"], options["step_weight"])
    how = f"{short(weights[0])} · shift" if weights[0] == weights[1] else "weighted shifts"
    reached = (a + added) / one.advantage if one.advantage else 1.0
    return [
        ["shift under the own digest", f"mean of {how} over the reply", signed(added, 5)],
        ["added to A", f"{signed(a)}{less(-added, 5)}", f"A~ {signed(a + added, 5)}"],
    ], reached


def _hta(one: Episode, t: int, group: Sequence[Episode], options: Mapping[str, Any], num_steps: int) -> Made:
    rows = one.token_weights[t] if one.token_weights else []
    moved = [w for w in rows if w != 1.0]
    spread = f"{plain(min(moved))} … {plain(max(moved))}" if moved else "1"
    return [["tokens of the action share it", f"· {spread}, their mean one", ""]], one.weights[t] or 1.0


def _share(one: Episode, options: Mapping[str, Any], num_steps: int) -> float:
    """lambda_n of the record's step."""
    zero_at = options["zero_at"]
    return linear_decay(options["share"], one.step, (num_steps / 3 or 50) if zero_at is None else zero_at)


Rule = Callable[[Episode, int, Sequence[Episode], Mapping[str, Any], int], Made]

_EXP = "A~ = A (1 + λ (mean of clip(e^(sΔ), 1 ± ε) − 1))"
LINES: Mapping[str, tuple[Rule, str]] = {
    "TurnWeights": (_taspo, "w = 1 + η (q − mean q), q = tanh(s (d − mean d) / τ), inside 1 ± ε"),
    "ContrastWeights": (_taspo, "w = 1 + η (q − mean q), q = tanh(s (d − mean d) / τ), inside 1 ± ε"),
    "TASPOFactor": (_taspo, "w = 1 + η (q − mean q), q = tanh(s (d − mean d) / τ), inside 1 ± ε"),
    "OracleWeights": (_taspo, "w of the turns' progress p; the placebo's in a random order"),
    "TokenWeights": (_tokens, "each action token: w = 1 + η (q − mean q), q = tanh(s (Δ − mean Δ) / τ)"),
    "RLSD": (_tilted, _EXP),
    "SERL": (_tilted, _EXP),
    "StepOPSD": (_stepopsd, "A~ = A (1 + λ (clip(2σ(sΔ), 1 ± α) − 1)) · mean of the steps / mean of this step"),
    "AgentOPSD": (_agentopsd, "w = 1 + λ (clip(1 + b s z, 1 ± b) − 1), z = (q − mean q) / std q"),
    "GRSD": (_grsd, "w = max(floor, 1 + gain · clip(q / mean |q|, ±c)), q = e^(sδ) − 1"),
    "TurnSight": (_turnsight, "w = 1 + λ · gain · tanh(s z), z = (δ − mean) / std"),
    "OPID": (_opid, "A~ = A + w_e Δ"),
    "HTA": (_hta, "A~ = L ρ A_it, the tokens' mean kept"),
}
"""Weight rule -> what makes its line, and its own line."""


# ---- distillation -----------------------------------------------------------------------------------------------


def _distilled(one: Episode, t: int, facts: Mapping[str, Any]) -> Line:
    term = mapping(facts.get("distill"))
    if not term:
        return []
    share = number(term.get("share")) or 0.0
    alone = [] if number(term.get("policy_share")) else [["outcome", "nothing is learned from A: its share is 0", ""]]
    if t >= len(one.distill):
        return [*alone, ["distilled", f"{short(share)} · m · loss of each reply token", ""]]
    m = one.distill[t]
    if m == 0:
        return [*alone, ["distilled", "no teacher's score of this turn", "0"]]
    count = one.num_tokens[t]
    how = f"{short(share)} · m on each of {count} reply tokens, m = {m:.3g}"
    return [*alone, ["distilled", how, f"{share * m * count:.3g} of the term"]]
