"""The analyzer's word is never trusted: every item is checked against the records or rejected with a reason.

Pure. Quotes are checked against the original records, not against the compacted text that the analyzer was shown
(docs/method.md, section 4, validation).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from ..tokens import as_unicode, is_unicode
from ..types import Evidence, Rejection, Source, Statement, Support, Trajectory
from .quotes import Quotes, collapse
from .schema import (
    MAX_STATEMENT,
    EvidenceItem,
    JudgementAnswer,
    SourceItem,
    StatementItem,
    SupportItem,
    TargetItem,
    schema_fault,
)


_ITEM_CHARS = 600  # of a rejected item that are kept for the record
_MAX_LOOKED_AT = 200  # items of one answer; what comes behind them is one reject


def validate_evidence(
    answer: Any, successes: Sequence[Trajectory], max_items: int = 12
) -> tuple[list[Evidence], list[Rejection]]:
    """E_x from a parsed extraction answer.

    Args:
        answer:
            The parsed answer.
        successes (`Sequence[Trajectory]`):
            The verified successes that the analyzer was shown.
        max_items (`int`, *optional*, defaults to `12`):
            Items beyond this many accepted ones are rejected.

    Returns:
        `tuple[list[Evidence], list[Rejection]]`: accepted items in their order, and what was rejected. One bad source
        rejects its item; of items with the same id the first accepted one stays.
    """
    if not isinstance(answer, dict) or not isinstance(answer.get("evidence"), list):
        return [], [_rejection("extraction", "no_evidence_list", answer)]
    by_uid = {trajectory.uid: trajectory for trajectory in successes if trajectory.success}
    accepted: dict[str, Evidence] = {}
    rejected: list[Rejection] = []
    quotes = Quotes()
    for raw in _first_items(answer["evidence"], "extraction", rejected):
        item, fault = _parse(EvidenceItem, raw)
        if item is not None:
            if not item.evidence_id.strip():
                fault = "evidence_id_empty"
            elif item.evidence_id in accepted:
                fault = "duplicate_id"
            elif not item.statement.strip():
                fault = "statement_empty"
            elif len(accepted) >= max_items:
                fault = "over_max_items"
            else:
                fault = next((why for why in (_source_fault(s, by_uid, quotes) for s in item.sources) if why), "")
        if item is None or fault:
            rejected.append(_rejection("extraction", fault, raw))
            continue
        sources = tuple(Source(s.traj_uid, s.step, s.pre_quote, s.action_quote, s.post_quote) for s in item.sources)
        accepted[item.evidence_id] = Evidence(item.evidence_id, item.kind, collapse(item.statement), sources)
    return list(accepted.values()), rejected


def supported_by_others(evidence: Sequence[Evidence], target_uid: str) -> list[Evidence]:
    """E_{x,-i}: the items that another success supports, with the target's own sources stripped."""
    kept = []
    for item in evidence:
        others = tuple(source for source in item.sources if source.traj_uid != target_uid)
        if others:
            kept.append(Evidence(item.evidence_id, item.kind, item.statement, others))
    return kept


def validate_alignment(
    answer: Any, target: Trajectory, allowed: Sequence[Evidence], max_items: int = 8
) -> tuple[list[Statement], list[Rejection], str]:
    """The statements for one target from a parsed alignment answer.

    Args:
        answer:
            The parsed answer.
        target (`Trajectory`):
            The trajectory that was asked about.
        allowed (`Sequence[Evidence]`):
            E_{x,-i}, as shown to the analyzer.
        max_items (`int`, *optional*, defaults to `8`):
            G: only the first so many candidates are looked at.

    Returns:
        `tuple[list[Statement], list[Rejection], str]`: accepted statements, rejects, and the analyzer's reason for
        abstaining.
    """
    if not isinstance(answer, dict) or not isinstance(answer.get("targets"), list):
        return [], [_rejection("alignment", "no_targets_list", answer)], ""
    if len(answer["targets"]) != 1:
        return [], [_rejection("alignment", "not_one_target", answer)], ""
    entry, fault = _parse(TargetItem, answer["targets"][0])
    if entry is None:
        return [], [_rejection("alignment", fault, answer["targets"][0])], ""
    if entry.traj_uid != target.uid:
        return [], [_rejection("alignment", "unknown_target", answer["targets"][0])], ""

    allowed_ids = {item.evidence_id for item in allowed}
    accepted: list[Statement] = []
    rejected: list[Rejection] = []
    quotes = Quotes()
    for position, raw in enumerate(_first_items(entry.guidance, "alignment", rejected)):
        item, fault = _parse(StatementItem, raw)
        if position >= max_items:
            fault = "over_max_items"
        elif item is not None:
            if not item.statement.strip():
                fault = "statement_empty"
            elif not set(item.evidence_ids) <= allowed_ids:
                fault = "evidence_id_not_allowed"
            else:
                fault = next(
                    (why for why in (_support_fault(s, target, quotes) for s in item.target_support) if why), ""
                )
        if item is None or fault:
            rejected.append(_rejection("alignment", fault, raw))
            continue
        # The task belongs to no step, whatever was said.
        support = tuple(
            Support(s.step if s.field != "task" and s.step else 0, s.field, s.quote) for s in item.target_support
        )
        accepted.append(Statement(collapse(item.statement), tuple(item.evidence_ids), support))
    return accepted, rejected, collapse(entry.abstain_reason)


def _first_items(items: Sequence[Any], stage: str, rejected: list[Rejection]) -> Iterator[Any]:
    """The items to look at; what is left over becomes one reject behind theirs."""
    yield from items[:_MAX_LOOKED_AT]
    if len(items) > _MAX_LOOKED_AT:
        rejected.append(_rejection(stage, "over_max_items", f"{len(items) - _MAX_LOOKED_AT} more items"))


def validate_judgement(answer: Any, target: Trajectory, max_items: int = 4) -> tuple[list[str], list[Rejection]]:
    """The sentences of a parsed judgement answer, and what was rejected.

    A judge that gets the verdict wrong read another record, or none: its answer is rejected whole. Sentences need no
    quotes; empty ones, ones of more than 800 characters and those beyond `max_items` are rejected.
    """
    item, fault = _parse(JudgementAnswer, answer)
    if item is not None and (item.verdict == "succeeded") is not target.success:
        fault = "verdict_wrong"
    if item is None or fault:
        return [], [_rejection("judgement", fault, answer)]
    accepted: list[str] = []
    rejected: list[Rejection] = []
    for raw in item.sentences:
        fault = _sentence_fault(raw) or ("over_max_items" if len(accepted) >= max_items else "")
        if fault:
            rejected.append(_rejection("judgement", fault, raw))
        else:
            accepted.append(collapse(raw))
    return accepted, rejected


def _sentence_fault(raw: Any) -> str:
    if not isinstance(raw, str):
        return "sentence_type"
    if not raw.strip():
        return "sentence_empty"
    if not is_unicode(raw):
        return "sentence_not_unicode"
    return "sentence_too_long" if len(raw) > MAX_STATEMENT else ""


def _source_fault(source: SourceItem, by_uid: Mapping[str, Trajectory], quotes: Quotes) -> str:
    """Why a citation of a successful trajectory does not hold; empty when it does."""
    trajectory = by_uid.get(source.traj_uid)
    if trajectory is None:
        return "source_not_a_success"
    if not 0 <= source.step < len(trajectory.turns):
        return "step_out_of_range"
    turn = trajectory.turns[source.step]
    if not turn.valid:
        return "source_action_invalid"
    fault = quotes.action_fault(source.action_quote, turn.action)
    if fault:
        return fault
    pre, post = collapse(source.pre_quote), collapse(source.post_quote)
    if not pre and not post:
        return "no_observation_quote"
    return (quotes.observation_fault(pre, turn.observation) if pre else "") or (
        quotes.observation_fault(post, turn.next_observation) if post else ""
    )


def _support_fault(support: SupportItem, target: Trajectory, quotes: Quotes) -> str:
    """Why a citation of the target does not hold; empty when it does."""
    if support.field == "task":
        return quotes.observation_fault(support.quote, target.task_text)
    if support.step is None:
        return "step_missing"
    if not 0 <= support.step < len(target.turns):
        return "step_out_of_range"
    turn = target.turns[support.step]
    if support.field == "action":
        return quotes.action_fault(support.quote, turn.action)
    return quotes.observation_fault(
        support.quote, turn.observation if support.field == "pre" else turn.next_observation
    )


def _parse(model: type[BaseModel], raw: Any) -> tuple[Any, str]:
    """(item, "") or (None, why it does not have the agreed shape)."""
    if not isinstance(raw, dict):
        return None, "item_not_an_object"
    try:
        return model.model_validate(raw), ""
    except ValidationError as error:
        return None, schema_fault(error)


def _rejection(stage: str, reason: str, item: Any) -> Rejection:
    try:
        text = json.dumps(item, ensure_ascii=False, default=str)
    except (RecursionError, ValueError, TypeError):
        text = "(cannot be shown)"
    return Rejection(stage, reason, as_unicode(text[:_ITEM_CHARS]))
