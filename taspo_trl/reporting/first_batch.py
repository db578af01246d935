"""What the first rollout batch tells of a run that cannot learn as it was meant to, with a remedy for each."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ..methods import Recipe
from ..records import TrajectoryRecord
from ..redaction import redacted
from ..types import FinishReason, StopReason, Trajectory


logger = logging.getLogger(__name__)

_SHOWN_CHARS = 160
_JUDGED = (StopReason.SOLVED, StopReason.FAILED, StopReason.ENV_TRUNCATED)

_ASKED = "asked"
_REMEDIES = {
    "no_other_success": "A member learns from a success of another one: it comes as the policy improves, with more "
    "`num_generations`, or with a warm-started policy.",
    "fewer_than_two_candidates": "Turns need an action that is found in the reply's tokens "
    "(`actions/unlocated_share`); an episode of a single such turn has nothing to weigh.",
    "no_skill_for_family": "Give the environment a text: `generic_skill(family)`.",
    "no_evidence": "What the analyzer said did not hold: `taspo view` shows each rejected item with its reason. "
    "Take a stronger analyzer.",
    "time_budget": "Raise `analyzer_time_budget` or `analyzer_workers`, or take a faster analyzer.",
    _ASKED: "The analyzer gave no usable answer: `analyzer/errors/...` counts why, and `taspo doctor --config ...` "
    "asks it once.",
}
_ALIKE = {
    "no_evidence_from_others": "no_evidence",
    "abstained": "no_evidence",
    "all_rejected": "no_evidence",
    "no_success": "no_other_success",
}
_LOOK_UP = "docs/metrics.md says what each reason means; `taspo view` shows it on each episode."
_UNSCORABLE = {
    "no_splice_index": "The chat template hides the place for guidance: docs/templates.md says which ones do.",
    "over_window": "Context, guidance and reply do not fit the model: lower `max_prompt_length` or "
    "`max_guidance_tokens`.",
    "empty_mask": "No reply token could be assigned to the executed action: are the environment's `action_tags` those "
    "that the prompt asks for?",
}


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, and what can be done."""

    what: str
    remedy: str


class FirstBatch:
    """Looks at the first batch that it is shown, and says what it found.

    Args:
        recipe (`Recipe`):
            The method.
        folder (`str`):
            The run's.
    """

    def __init__(self, recipe: Recipe, folder: str):
        self._recipe, self._folder = recipe, folder
        self._has_looked = False

    def look(self, records: Sequence[TrajectoryRecord], advantages: Sequence[float]) -> None:
        """Of the second batch on, nothing."""
        if not self._has_looked:
            self._has_looked = True
            tell(first_batch_findings(records, advantages, self._recipe), self._folder)


def first_batch_findings(
    records: Sequence[TrajectoryRecord], advantages: Sequence[float], recipe: Recipe
) -> list[Finding]:
    """What is wrong with a batch as a whole; empty when the method had something to work with.

    A finding is about all episodes, never about some: what befalls a part of them is what the metrics are for.

    Args:
        records (`Sequence[TrajectoryRecord]`):
            All trajectories of the batch, with guidance and credit.
        advantages (`Sequence[float]`):
            A_i of each.
        recipe (`Recipe`):
            The method.
    """
    usable = [one.trajectory for one in records if one.trajectory.is_usable]
    if not usable:
        return []  # the rollout says so itself
    found = [_actions(usable), _verdicts(usable, recipe), _contrast(usable, advantages)]
    if any(advantages):
        found.append(_guidance(records, advantages, recipe))
    return [one for one in found if one is not None]


def tell(findings: Sequence[Finding], folder: str) -> None:
    """Say them in one block: framed on a terminal, as a warning elsewhere. Texts of episodes are redacted."""
    if not findings:
        return
    parts = [f"{k}. {one.what}\n   {one.remedy}" for k, one in enumerate(findings, 1)]
    parts.append(f"The episodes lie in {folder}; `taspo view` shows them. This is said once.")
    title, text = "After the first rollout batch: look at this before the run goes on", redacted("\n".join(parts))
    if not sys.stderr.isatty():
        logger.warning("%s\n%s", title, text)
        return
    from rich.console import Console
    from rich.panel import Panel
    from rich.text import Text
    from tqdm.auto import tqdm

    with tqdm.external_write_mode(file=sys.stderr):
        Console(stderr=True).print(Panel(Text(text), title=title, border_style="yellow"))


def _actions(usable: Sequence[Trajectory]) -> Finding | None:
    turns = [turn for t in usable for turn in t.turns]
    if any(turn.action for turn in turns):
        return None
    cut = sum(turn.finish_reason is FinishReason.LENGTH for turn in turns)
    text = turns[0].reply_text
    shown = repr(text[:_SHOWN_CHARS]) + (" ..." if len(text) > _SHOWN_CHARS else "")
    if 2 * cut > len(turns):
        longest = max(len(turn.reply_ids) for turn in turns)
        remedy = f"{cut} of them were cut, at up to {longest} tokens: raise `max_completion_length`."
    else:
        remedy = (
            "Does the prompt show the format that the environment reads (its `action_tags`, or tool calls), and can "
            "this model follow it? An instruction-tuned model can, others need a warm start."
        )
    return Finding(f"None of the {len(turns)} replies holds an action. The first one: {shown}.", remedy)


def _verdicts(usable: Sequence[Trajectory], recipe: Recipe) -> Finding | None:
    wrong = Counter(t.verdict for t in usable if t.verdict not in ("", "bool"))
    if wrong:
        kinds = ", ".join(sorted(wrong))
        return Finding(
            f'{sum(wrong.values())} of {len(usable)} episodes gave `info["success"]` as {kinds}, which counts as '
            "False: only `True` itself is a verdict.",
            'Return `"success": bool(...)` from the environment.',
        )
    is_needed = recipe.draws_on_successes or any("success" in t.rewards for t in usable)
    if not is_needed or any(t.verdict for t in usable):
        return None
    judged = sum(t.stop_reason in _JUDGED for t in usable)
    what = f'None of the {len(usable)} episodes gave a verdict: `info["success"]` never came.'
    if not judged:
        ends = ", ".join(f"{reason.value} {n}" for reason, n in Counter(t.stop_reason for t in usable).most_common())
        return Finding(
            what,
            f"The environment ended none of them ({ends}): raise `max_turns`, or let it say `success` in every step.",
        )
    return Finding(
        what,
        '`step` puts `"success": True` or `False` into `info` when it ends an episode; a class written for TRL has '
        "`_get_success()`, or a `success_threshold` on its reward.",
    )


def _contrast(usable: Sequence[Trajectory], advantages: Sequence[float]) -> Finding | None:
    if any(advantages):
        return None
    solved = sum(t.success for t in usable)
    what = (
        f"No group has a better and a worse episode ({solved} of {len(usable)} were solved): the outcome teaches "
        "nothing here."
    )
    if solved == len(usable):
        return Finding(what, "If that goes on, the tasks are too easy: take harder ones.")
    return Finding(
        what,
        "If that goes on: more `num_generations`, easier tasks, a policy that solves some of them sometimes (a warm "
        "start), or a graded reward (`training_reward`, `reward_funcs`).",
    )


def _guidance(records: Sequence[TrajectoryRecord], advantages: Sequence[float], recipe: Recipe) -> Finding | None:
    """Of the trajectories with an advantage: none has guidance, or none whose guidance could be scored."""
    if not recipe.needs.blocks:
        return None
    wanted = [one for one, advantage in zip(records, advantages, strict=True) if advantage]
    guided = [one for one in wanted if one.guidance]
    if not guided:
        whys = [one.guidance.abstain_reason for one in wanted if one.guidance is not None]
        reasons = Counter(why.split(":")[0] for why in whys)
        if set(reasons) == {"zero_share"}:  # a schedule that has not begun: none was made
            return None
        told = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common(4))
        return Finding(
            f"None of the {len(wanted)} episodes with an advantage has guidance ({told}): `{recipe.name}` has "
            "nothing to work with so far.",
            _remedy(reasons.most_common(1)[0][0] if reasons else "", recipe),
        )
    if not recipe.rule_needs.blocks or not all(one.credit is not None and one.credit.fallback for one in guided):
        return None
    scores = [score for one in guided if one.credit is not None for score in one.credit.scores]
    unscorable = Counter(score.unscorable for score in scores if score.unscorable)
    fallbacks = Counter(one.credit.fallback.split(":")[0] for one in guided if one.credit is not None)
    told = ", ".join(f"{why} {count}" for why, count in (unscorable or fallbacks).most_common(4))
    why = unscorable.most_common(1)[0][0] if unscorable else ""
    return Finding(
        f"{len(guided)} episodes have guidance, and it moved the credit of none ({told}).",
        _UNSCORABLE.get(why, _LOOK_UP),
    )


def _remedy(reason: str, recipe: Recipe) -> str:
    return _REMEDIES.get(_ALIKE.get(reason, reason), _REMEDIES[_ASKED] if recipe.asks_analyzer else _LOOK_UP)
