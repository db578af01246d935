"""What could be better in TASPO's credit: variants that are tried here alone, and gradients of whole distributions.

Over the episodes and continuations of `credit_quality.py`, which calls this: other tokens, other blocks, equal doses
and capped weights are functions of one scoring pass over the turns that have Monte-Carlo labels.
`docs/credit_quality.md` says what came of each.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from taspo_trl.analyzer.extractive import ExtractiveAnalyzer
from taspo_trl.cli.models import load_model, load_policy
from taspo_trl.credit.base import Batch, Needs, OutcomeAdvantage, sign
from taspo_trl.credit.contrast import contrast_supports
from taspo_trl.credit.taspo import action_support, weigh_by_support
from taspo_trl.environments import HouseholdEnvironment
from taspo_trl.environments.workers import EnvironmentPool
from taspo_trl.generation import SamplingSettings
from taspo_trl.guidance.block import Composer
from taspo_trl.methods import METHODS
from taspo_trl.rollout.advantages import group_advantages
from taspo_trl.rollout.loop import RolloutSettings
from taspo_trl.rollout.rewards import RewardSettings
from taspo_trl.rollout.templates import ChatRenderer
from taspo_trl.scoring.alternatives import alternative_turns, score_alternatives
from taspo_trl.truth import difference, play_values
from taspo_trl.truth.assess import truths_of
from taspo_trl.truth.gradients import ComparedTerm, TurnToCompare, turn_cosines
from taspo_trl.truth.report import credit_report, labelled, perfect_credit, turn_credit
from taspo_trl.truth.sample import guided, play_groups
from taspo_trl.truth.values import sampled_trajectories
from taspo_trl.types import Alternatives, Block, Guidance, Trajectory, TrajectoryGroup


Key = tuple[str, int]
Credits = Mapping[Key, float]
TEMPERATURE, RANGE = 0.5, 0.4  # TASPO's
DOSES = (0.05, 0.12)  # RMS of weight - 1; the second is near that of weights from progress itself
NUM_GRADIENT_TURNS = 200
NUM_RESAMPLES = 2000


@dataclass(frozen=True)
class Setting:
    """What `taspo credit` was asked for.

    Args:
        model (`Path`):
            The policy's folder.
        progress (`Path`):
            Continuations that were played.
        split, groups, label_turns, continuations:
            As on the command line.
    """

    model: Path
    progress: Path
    split: str = "valid_seen"
    groups: int = 60
    label_turns: int = 2000
    continuations: int = 16


class Saved:
    """The episodes of a setting again, their labels, and every block that a variant needs."""

    def __init__(self, setting: Setting):
        self.policy = load_policy(str(setting.model), "cpu")
        rollout = RolloutSettings(
            max_completion_length=8, model_window=self.policy.window, vocab_size=self.policy.vocab_size
        )
        self.factories: dict[str | None, Any] = {None: HouseholdEnvironment}
        pool = EnvironmentPool(self.factories)
        playing: dict[str, Any] = {
            "engine": self.policy.engine,
            "pool": pool,
            "renderer": ChatRenderer(self.policy.tokenizer),
            "rollout": rollout,
            "sampling": SamplingSettings(1.0),
        }
        try:
            tags, probe = pool.traits[None].action_tags, pool.probes[None]
            data = HouseholdEnvironment.dataset(setting.split, preset="small")
            rows = [data[k] for k in range(setting.groups)]
            groups = play_groups(
                rows, **playing, rewards=RewardSettings(pool.traits[None].training_reward, invalid_action_penalty=0.0)
            )
            trajectories = [t for group in groups for t in group.trajectories]
            self.values = play_values(
                sampled_trajectories(trajectories, setting.label_turns, 0),
                **playing,
                num_continuations=setting.continuations,
                progress_path=setting.progress,
            )
            advantages, _ = group_advantages(
                [[t.reward if t.is_usable else None for t in group.trajectories] for group in groups], "group"
            )
            self.made = {
                blocks[0]: guided(
                    groups,
                    advantages,
                    Needs(blocks, "action"),
                    tokenizer=self.policy.tokenizer,
                    analyzer=ExtractiveAnalyzer(),
                    factories=self.factories,
                    skill_of=lambda t: probe.generic_skill(t.family),
                    action_tags=tags,
                )[0]
                for blocks in (
                    ("aligned",),
                    ("shuffled",),
                    ("oracle_plan",),
                    ("random_success", "sibling_or_feedback"),
                )
            }
        finally:
            pool.close()
        self.composer = Composer(self.policy.tokenizer, action_tags=tags)
        outcome_of = {
            t.uid: a
            for group, row in zip(groups, advantages, strict=True)
            for t, a in zip(group.trajectories, row, strict=True)
        }

        def kept(t: Trajectory) -> bool:
            return t.uid in self.values.num_turns and outcome_of[t.uid] != 0 and bool(self.made["aligned"].get(t.uid))

        chosen = [
            TrajectoryGroup(group.group_id, tuple(filter(kept, group.trajectories)))
            for group in groups
            if any(map(kept, group.trajectories))
        ]
        outcome = tuple(outcome_of[t.uid] for group in chosen for t in group.trajectories)
        self.batch = Batch(tuple(chosen), outcome)

    @property
    def trajectories(self) -> tuple[Trajectory, ...]:
        """Guided episodes with Monte-Carlo labels whose outcome moves the policy."""
        return self.batch.trajectories

    @cached_property
    def truths(self) -> Any:
        return truths_of(self.batch, self.factories, self.values)


# ---- blocks -----------------------------------------------------------------------------------------------------


def all_blocks(saved: Saved) -> dict[str, Guidance]:
    """For each trajectory the blocks as made, and those refreshed with what was done before each turn."""
    found = {}
    for t in saved.trajectories:
        blocks: dict[str, Block] = {}
        for name in ("aligned", "shuffled"):
            of = saved.made[name].get(t.uid)
            if not of:
                continue
            blocks[name] = of.blocks[name]
            lines = statements_of(of)
            for way, left in (("left", left_to_do), ("after", after_the_last_done)):
                blocks[f"{way}:{name}"] = _block(saved.composer, [left(lines, t, k) for k in range(len(t.turns))])
        plan = saved.made["oracle_plan"][t.uid].blocks.get("oracle_plan")
        if plan is not None and plan.turns[0] is not None:
            blocks |= {"oracle_plan": plan, "plan_of_the_start": Block.whole(plan.turns[0], len(t.turns))}
        found[t.uid] = Guidance(t.uid, "variants", {name: block for name, block in blocks.items() if block})
    return found


Line = tuple[str, frozenset[str]]
"""A statement, and the actions that its evidence quotes."""


def statements_of(guidance: Guidance) -> list[Line]:
    quotes = {one.evidence_id: {_plain(s.action_quote) for s in one.sources} for one in guidance.evidence}
    return [
        (one.text, frozenset(quote for of in one.evidence_ids for quote in quotes.get(of, ())))
        for one in guidance.statements
    ]


def left_to_do(lines: Sequence[Line], t: Trajectory, turn_idx: int) -> list[str]:
    """What is not done yet before a turn: its quoted action was not accepted in an earlier one."""
    done = {_plain(turn.action) for turn in t.turns[:turn_idx] if turn.valid}
    return [text for text, quotes in lines if not quotes & done]


def after_the_last_done(lines: Sequence[Line], t: Trajectory, turn_idx: int) -> list[str]:
    """What stands behind the last line that is done: evidence is told in the order of play."""
    done = {_plain(turn.action) for turn in t.turns[:turn_idx] if turn.valid}
    last = max((k for k, (_, quotes) in enumerate(lines) if quotes & done), default=-1)
    return [text for text, _ in lines[last + 1 :]]


def _block(composer: Composer, left: Sequence[Sequence[str]]) -> Block:
    """A turn with nothing left has no block, and so the neutral weight."""
    ids = [composer.block("\n".join(f"- {text}" for text in texts)) or None for texts in left]
    return Block(tuple(ids), tuple("" for _ in ids))


def _plain(action: str) -> str:
    return " ".join(action.lower().split())


# ---- tokens -----------------------------------------------------------------------------------------------------

Mask = Callable[[Sequence[Sequence[int]]], list[list[bool]]]
"""The tokens of the actions of a turn -> which of them count."""


def all_tokens(actions: Sequence[Sequence[int]]) -> list[list[bool]]:
    return [[True] * len(one) for one in actions]


def where_alternatives_differ(actions: Sequence[Sequence[int]]) -> list[list[bool]]:
    """Tokens before which another action reads the same, and at which it goes on otherwise."""
    masks = []
    for one in actions:
        others = [other for other in actions if other is not one]
        masks.append(
            [
                any(tuple(other[:k]) == tuple(one[:k]) and tuple(other[k : k + 1]) != (token,) for other in others)
                for k, token in enumerate(one)
            ]
        )
    return masks


def behind_the_nearest(actions: Sequence[Sequence[int]]) -> list[list[bool]]:
    """Tokens from the one at which the alternative with the longest common beginning goes on otherwise."""
    masks = []
    for one in actions:
        shared = max((_common(one, other) for other in actions if other is not one), default=0)
        masks.append([k >= shared for k in range(len(one))])
    return masks


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((k for k, (a, b) in pairs if a != b), min(len(one), len(other)))


# ---- supports ---------------------------------------------------------------------------------------------------

Support = Callable[[Alternatives, Sequence[Sequence[int]], str], float | None]
"""(a turn's actions with their scores, their tokens, a block) -> d of the executed one."""


def shift(mask: Mask) -> Support:
    """E4 over some of the action's tokens."""

    def support(found: Alternatives, tokens: Sequence[Sequence[int]], block: str) -> float | None:
        guided_ = found.guided.get(block)
        if guided_ is None:
            return None
        counts = mask(tokens)[0]
        return action_support(
            [g - p for g, p, one in zip(guided_[0], found.plain[0], counts, strict=True) if one], clip=2.0
        )

    return support


def contrast(form: Any, mask: Mask | None = None) -> Support:
    """The package's contrasts, over all tokens or some."""

    def support(found: Alternatives, tokens: Sequence[Sequence[int]], block: str) -> float | None:
        if mask is not None and block in found.guided:
            counts = mask(tokens)
            if not all(map(any, counts)):
                return None
            # Tokens that do not count shift nothing; the divisor of E4 must not count them either.
            effects = [
                action_support([g - p for g, p, one in zip(gs, ps, row, strict=True) if one])
                for gs, ps, row in zip(found.guided[block], found.plain, counts, strict=True)
            ]
            totals = [math.fsum(row) for row in found.plain]
            weights = [math.exp(total - max(totals)) for total in totals]
            baseline = math.fsum(w * (e or 0.0) for w, e in zip(weights, effects, strict=True)) / math.fsum(weights)
            return None if effects[0] is None else effects[0] - baseline
        supports = contrast_supports(found, block, form)
        return None if supports is None else supports[0]

    return support


@dataclass(frozen=True)
class Variant:
    """One way from scores to weights.

    Args:
        support (`Callable`):
            What a turn's evidence is.
        block (`str`), control (`str`):
            Under which guidance, and under another task's; no control for an oracle's.
        base (`str`, *optional*, defaults to `"taspo"`):
            The variant that it is compared with.
        cap (`str`, *optional*, defaults to `""`):
            `"refused"`: the package's `cap_refused`. `"successes"`: in good outcomes alone.
    """

    support: Support
    block: str = "aligned"
    control: str = "shuffled"
    base: str = "taspo"
    cap: str = ""


E4, CONTRAST, PROBABILITY = shift(all_tokens), contrast("shift"), contrast("probability")
_LEFT, _AFTER = ("left:aligned", "left:shuffled"), ("after:aligned", "after:shuffled")
_P = "contrast_probability"
_START = "oracle's plan of the start"
VARIANTS: Mapping[str, Variant] = {
    "taspo": Variant(E4),
    "contrast": Variant(CONTRAST),
    _P: Variant(PROBABILITY),
    "tokens where alternatives differ": Variant(shift(where_alternatives_differ)),
    "tokens behind the nearest alternative": Variant(shift(behind_the_nearest)),
    "contrast, tokens where alternatives differ": Variant(
        contrast("shift", where_alternatives_differ), base="contrast"
    ),
    "what is left": Variant(E4, *_LEFT),
    "what comes after": Variant(E4, *_AFTER),
    f"{_P}, what is left": Variant(PROBABILITY, *_LEFT, base=_P),
    f"{_P}, what comes after": Variant(PROBABILITY, *_AFTER, base=_P),
    _START: Variant(E4, "plan_of_the_start", ""),
    "oracle's present plan": Variant(E4, "oracle_plan", "", base=_START),
    f"{_P}, {_START}": Variant(PROBABILITY, "plan_of_the_start", "", base=_P),
    f"{_P}, oracle's present plan": Variant(PROBABILITY, "oracle_plan", "", base=f"{_P}, {_START}"),
    "capped in successes": Variant(E4, cap="successes"),
    "capped": Variant(E4, cap="refused"),
    f"{_P}, capped in successes": Variant(PROBABILITY, base=_P, cap="successes"),
    f"{_P}_capped": Variant(PROBABILITY, base=_P, cap="refused"),
}


def supports_of(saved: Saved, scores: Mapping[Key, Scored], support: Support, block: str) -> list[list[float | None]]:
    found: list[list[float | None]] = []
    for t in saved.trajectories:
        row: list[float | None] = []
        for k in range(len(t.turns)):
            one = scores.get((t.uid, k))
            row.append(None if one is None else support(one.alternatives, one.tokens, block))
        found.append(row)
    return found


@dataclass(frozen=True)
class Scored:
    """A turn's actions, their tokens and their scores; the executed action comes first."""

    alternatives: Alternatives
    tokens: tuple[tuple[int, ...], ...]


def scored(saved: Saved) -> dict[Key, Scored]:
    guidance = all_blocks(saved)
    blocks = tuple(dict.fromkeys(name for of in guidance.values() for name in of.blocks))
    given: Any = (saved.trajectories, guidance, saved.policy.tokenizer)
    found = score_alternatives(
        saved.policy.model, *given, blocks=blocks, most=32, pad_token_id=saved.policy.pad_token_id
    ).alternatives
    turns = alternative_turns(*given, blocks=blocks, most=32, window=saved.policy.window)
    return {one.key: Scored(found[one.key], one.actions) for one in turns}


def credit(
    batch: Batch, supports: Sequence[Sequence[float | None]], temperature: float = TEMPERATURE, cap: str = ""
) -> dict[Key, float]:
    rows = OutcomeAdvantage()(batch)
    if cap != "successes":
        return turn_credit(batch, weigh_by_support(batch, rows, supports, temperature, RANGE, None, cap == "refused"))
    free, capped = (credit(batch, supports, temperature, one) for one in ("", "refused"))
    return {key: (capped if batch.outcome_of[key[0]] > 0 else free)[key] for key in free}


# ---- reports ----------------------------------------------------------------------------------------------------


def variants_report(saved: Saved, scores: Mapping[Key, Scored]) -> dict[str, Any]:
    """Every variant against its control, against TASPO's own form, and at equal dose."""
    batch, truths = saved.batch, saved.truths
    supports = {
        name: supports_of(saved, scores, one.support, one.block) for name, one in VARIANTS.items() if not one.cap
    }
    credits: dict[str, Credits] = {"grpo": turn_credit(batch, _flat(batch))}
    for name, one in VARIANTS.items():
        own = supports.get(name) or supports_of(saved, scores, one.support, one.block)
        credits[name] = credit(batch, own, cap=one.cap)
        if one.control:
            other = supports_of(saved, scores, one.support, one.control)
            credits[f"{name}@shuffled"] = credit(batch, other, cap=one.cap)
    for kind, truth in truths.items():
        credits[f"perfect {kind}"] = perfect_credit(batch, truth.labels)
    report = credit_report(batch, credits, truths, num_resamples=NUM_RESAMPLES)
    for kind, truth in truths.items():
        rows = {name: labelled(batch, found, truth.labels) for name, found in credits.items()}
        for name, method in report["methods"].items():
            for name_of_part in ("examples", "families", "accepted", "minus grpo"):
                method[kind].pop(name_of_part, None)
            for base in {"taspo", VARIANTS[name].base} - {name} if name in VARIANTS else ():
                paired = difference(rows[name], rows[base], truth.threshold, NUM_RESAMPLES)
                method[kind][f"minus {base}"] = {m: paired[m].to_json() for m in ("auc", "rank_correlation")}
    report["equal_dose"] = {f"{dose:g}": equal_dose(saved, supports, dose) for dose in DOSES}
    return report


def _flat(batch: Batch) -> Any:
    return METHODS["grpo"].make().assign(batch).weighed


def equal_dose(saved: Saved, supports: Mapping[str, Sequence[Sequence[float | None]]], dose: float) -> dict[str, Any]:
    """Per form the temperature with which weights move this far, and how much of that goes where values are.

    `correlation` is that of s (w - 1) with the Monte-Carlo advantage less its episode's mean, over all turns: what a
    step of this dose gains, as a share of what it could gain.
    """
    batch, labels = saved.batch, saved.truths["values"].labels
    sums = {}
    found: dict[str, Any] = {}
    for name, own in supports.items():
        temperature = equal_dose_temperature(batch, own, dose)
        weighed = credit(batch, own, temperature)
        sums[name] = _moved(batch, weighed, labels)
        found[name] = {"temperature": temperature, "dose": _dose(batch, weighed)}
    draws = np.random.default_rng(0).multinomial(
        len(batch.groups), [1 / len(batch.groups)] * len(batch.groups), NUM_RESAMPLES
    )
    for name, own_sums in sums.items():
        found[name]["correlation"] = _interval(_ratio(own_sums.sum(0)), _ratio(draws @ own_sums))
        other = sums["taspo"]
        found[name]["minus taspo"] = _interval(
            _ratio(own_sums.sum(0)) - _ratio(other.sum(0)), _ratio(draws @ own_sums) - _ratio(draws @ other)
        )
    return found


def equal_dose_temperature(batch: Batch, supports: Sequence[Sequence[float | None]], dose: float) -> float:
    low, high = 1e-4, 1e3  # the smaller, the larger the dose
    for _ in range(40):
        middle = math.sqrt(low * high)
        if _dose(batch, credit(batch, supports, middle)) > dose:
            low = middle
        else:
            high = middle
    return high


def _dose(batch: Batch, credits: Credits) -> float:
    squares = [(credits[t.uid, k] / a - 1) ** 2 for t, a in _members(batch) for k in range(len(t.turns))]
    return math.sqrt(math.fsum(squares) / len(squares))


def _members(batch: Batch) -> list[tuple[Trajectory, float]]:
    return list(zip(batch.trajectories, batch.outcome, strict=True))


def _moved(batch: Batch, credits: Credits, labels: Mapping[Key, float]) -> np.ndarray:
    """(groups, 3): sums of x y, x x, y y, where x = s (w - 1) and y = Q less its episode's mean."""
    rows = np.zeros((len(batch.groups), 3))
    for g, group in enumerate(batch.groups):
        for t in group.trajectories:
            a = batch.outcome_of[t.uid]
            keys = [(t.uid, k) for k in range(len(t.turns)) if (t.uid, k) in labels and (t.uid, k) in credits]
            if len(keys) < 2:
                continue
            x = np.array([sign(a) * (credits[key] / a - 1) for key in keys])
            y = np.array([labels[key] for key in keys])
            y -= y.mean()
            rows[g] += x @ y, x @ x, y @ y
    return rows


def _ratio(sums: np.ndarray) -> Any:
    with np.errstate(invalid="ignore", divide="ignore"):
        return sums[..., 0] / np.sqrt(sums[..., 1] * sums[..., 2])


def _interval(value: Any, drawn: np.ndarray) -> list[float]:
    low, high = np.nanquantile(drawn, [0.025, 0.975])
    return [float(value), float(low), float(high)]


# ---- gradients of forms over the vocabulary -----------------------------------------------------------------------


def gradients_report(saved: Saved, teacher: Path | None = None) -> dict[str, Any]:
    """Cosines of each form's gradient with the true direction, over the same turns; means weighted by |Q|."""
    others = _of_another_task(saved)
    labels = saved.truths["values"].labels
    turns = []
    for t in saved.trajectories:
        made = saved.made["random_success"].get(t.uid)
        if not made or {"random_success", "sibling_or_feedback"} - set(made.blocks):
            continue
        blocks = {name: block.turns[0] or () for name, block in made.blocks.items()}
        blocks |= {f"{name}@shuffled": ids for name, ids in others.get(t.uid, {}).items()}
        for k, turn in enumerate(t.turns):
            if labels.get((t.uid, k)) and turn.reply_ids and turn.splice_index is not None:
                turns.append(TurnToCompare(t, k, saved.batch.outcome_of[t.uid], labels[t.uid, k], blocks))
    random.Random(0).shuffle(turns)
    turns = turns[:NUM_GRADIENT_TURNS]
    terms: dict[str, ComparedTerm] = {}
    for name in ("opsd", "grpo_opsd", "sdpo", "grpo_sdpo"):
        term = METHODS[name].make().distill
        assert term is not None
        (block,) = term.needs.blocks
        terms |= {name: ComparedTerm(term, block), f"{name}@shuffled": ComparedTerm(term, f"{block}@shuffled")}
    if teacher is not None:
        term = METHODS["opd"].make().distill
        assert term is not None
        terms["opd"] = ComparedTerm(term, None, load_model(str(teacher)).eval())
    found = turn_cosines(saved.policy.model, turns, terms)
    group_of = {t.uid: group.group_id for group in saved.batch.groups for t in group.trajectories}
    groups = sorted({group_of[one.trajectory.uid] for one in turns})
    place = {name: k for k, name in enumerate(groups)}
    draws = np.random.default_rng(0).multinomial(len(groups), [1 / len(groups)] * len(groups), NUM_RESAMPLES)

    def sums(value: Callable[[Mapping[str, float]], float | None]) -> np.ndarray:
        rows = np.zeros((len(groups), 2))
        for one, cosines in zip(turns, found, strict=True):
            known = value(cosines)
            if known is not None:
                rows[place[group_of[one.trajectory.uid]]] += abs(one.value) * known, abs(one.value)
        return rows

    def mean(rows: np.ndarray) -> list[float]:
        drawn = draws @ rows
        return _interval(rows[:, 0].sum() / rows[:, 1].sum(), drawn[:, 0] / drawn[:, 1])

    methods: dict[str, Any] = {}
    for name in ("grpo", *terms):
        methods[name] = {"cosine": mean(sums(lambda cosines, name=name: cosines.get(name)))}
        for other in ("grpo", f"{name}@shuffled"):
            if other != name and (other == "grpo" or other in terms):
                methods[name][f"minus {other}"] = mean(
                    sums(lambda c, a=name, b=other: c[a] - c[b] if a in c and b in c else None)
                )
    return {
        "turns": len(turns),
        "groups": len(groups),
        "teacher": teacher.name if teacher else None,
        "methods": methods,
    }


def _of_another_task(saved: Saved) -> dict[str, dict[str, tuple[int, ...]]]:
    """Trajectory -> the same blocks of the next group's first guided member whose task reads differently."""
    firsts = []
    for group in saved.batch.groups:
        made = next((one for t in group.trajectories if (one := saved.made["random_success"].get(t.uid))), None)
        if made:
            firsts.append((group.task_text, {name: block.turns[0] or () for name, block in made.blocks.items()}))
    found = {}
    for g, group in enumerate(saved.batch.groups):
        turned = firsts[g % max(1, len(firsts)) :] + firsts[: g % max(1, len(firsts))]
        blocks = next((blocks for text, blocks in turned if text != group.task_text), {})
        found |= {t.uid: blocks for t in group.trajectories}
    return found


def reports(setting: Setting, teacher: Path | None = None) -> dict[str, Any]:
    """Both reports, for `credit_quality.json`."""
    saved = Saved(setting)
    return {"variants": variants_report(saved, scored(saved)), "gradients": gradients_report(saved, teacher)}
