"""Raw records of one group to the data that the page shows of it.

Pure. Texts that repeat (observations are shown to every sibling, and each is the answer of the turn before) are kept
once for the group and referred to by their number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from .arithmetic import Line, lines_of_group
from .blocks import shown_block
from .index import tilts_of
from .lenient import at, items, mapping, number, text, whole
from .movers import mover_of
from .reply import reply_parts


TokenText = Callable[[Any], str | None]


class _Texts:
    """Distinct texts, numbered in the order of their first use."""

    def __init__(self) -> None:
        self.values: list[str] = []
        self._numbers: dict[str, int] = {}

    def number_of(self, value: str) -> int:
        if value not in self._numbers:
            self._numbers[value] = len(self.values)
            self.values.append(value)
        return self._numbers[value]


def group_data(
    records: Sequence[Mapping[str, Any]], token_text: TokenText, facts: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What the page shows of a group.

    Args:
        records (`Sequence[Mapping[str, Any]]`):
            The raw records of its members, in the order in which they are shown.
        token_text (`Callable`):
            Token id -> text, or None.
        facts (`Mapping[str, Any]`, *optional*):
            The method, for the way from support to weight; without it the weights stand alone.
    """
    texts = _Texts()
    lines = lines_of_group(records, facts or {})
    members = [_member(record, of_turns, texts, token_text) for record, of_turns in zip(records, lines, strict=True)]
    # The extraction belongs to the group; every record carries a copy.
    extraction = next((record["extraction"] for record in records if record.get("extraction")), None)
    return {"texts": texts.values, "extraction": _extraction(extraction), "members": members}


def _member(record: Mapping[str, Any], lines: Sequence[Line], texts: _Texts, token_text: TokenText) -> dict[str, Any]:
    credit = mapping(record.get("credit"))
    tilts = tilts_of(record)
    guidance = mapping(record.get("guidance"))
    return {
        "uid": text(record.get("uid")),
        "opening": [
            [text(mapping(one).get("role")), texts.number_of(text(mapping(one).get("content")))]
            for one in items(record.get("opening"))
        ],
        "task": [[str(name), text(value)] for name, value in mapping(record.get("task")).items()],
        "rewards": [[str(name), number(value)] for name, value in mapping(record.get("rewards")).items()],
        "environment_reward": number(record.get("environment_reward")),
        "seconds": number(record.get("seconds"), 2),
        "error": text(record.get("error")),
        "turns": [
            _turn(mapping(turn), t, credit, texts, token_text)
            | {
                "tilt": number(tilts[t], 4),
                "line": lines[t],
                "mover": _mover(mapping(turn), t, credit, guidance),
            }
            for t, turn in enumerate(items(record.get("turns")))
        ],
        "guidance": _guidance(record.get("guidance")),
        "fallback": text(credit.get("fallback")) if credit else None,
    }


def _turn(
    turn: Mapping[str, Any], t: int, credit: Mapping[str, Any], texts: _Texts, token_text: TokenText
) -> dict[str, Any]:
    action = text(turn.get("action"))
    score = mapping(at(items(credit.get("scores")), t))
    return {
        "before": texts.number_of(text(turn.get("observation"))),
        "after": texts.number_of(text(turn.get("next_observation"))),
        "reply": reply_parts(text(turn.get("reply_text")), action),
        "action": action,
        "valid": turn.get("valid") if isinstance(turn.get("valid"), bool) else None,
        "reward": number(turn.get("reward")),
        "finish": text(turn.get("finish_reason")),
        "cuts": whole(turn.get("prompt_cuts")) or 0,
        "prompt_tokens": whole(turn.get("num_prompt_tokens")) or None,  # read back without prompt ids, it is 0
        "reply_tokens": len(items(turn.get("reply_ids"))),
        "action_tokens": sum(bool(flag) for flag in items(turn.get("action_mask"))),
        "weight": number(at(items(credit.get("weights")), t), 4),
        "support": number(at(items(credit.get("supports")), t), 4),
        "carried": number(_carried(t, credit), 4),
        "unscorable": text(score.get("unscorable")),
        "tokens": _tokens(turn, t, score, credit, texts, token_text),
    }


def _carried(t: int, credit: Mapping[str, Any]) -> float | None:
    """The mean of A~ over the reply of a turn."""
    told = [value for value in map(number, items(at(items(credit.get("token_advantages")), t))) if value is not None]
    if told:
        return sum(told) / len(told)
    advantage, weight = number(credit.get("advantage")), number(at(items(credit.get("weights")), t))
    return None if advantage is None or weight is None else advantage * weight


def _mover(
    turn: Mapping[str, Any], t: int, credit: Mapping[str, Any], guidance: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The statement nearest to a turn that was scored with guidance."""
    if number(at(items(credit.get("supports")), t)) is None:
        return None
    found = mover_of(t, text(turn.get("action")), guidance)
    return None if found is None else asdict(found)


def _tokens(
    turn: Mapping[str, Any],
    t: int,
    score: Mapping[str, Any],
    credit: Mapping[str, Any],
    texts: _Texts,
    token_text: TokenText,
) -> dict[str, Any] | None:
    """The action tokens with their shifts; None for a turn that was not scored."""
    places, plain, guided = _scored(score)
    if not plain and not guided:
        return None
    ids = items(turn.get("reply_ids"))
    names = [token_text(at(ids, k)) for k in places]
    tokens: dict[str, Any] = {
        "at": places,
        "text": [None if name is None else texts.number_of(name) for name in names],
        "plain": [number(value, 3) for value in plain],
        "shift": [_shift(at(plain, k), at(guided, k)) for k in range(max(len(plain), len(guided)))],
    }
    weights = items(at(items(credit.get("token_weights")), t))
    if weights:  # token-level allocation
        tokens["weight"] = [number(at(weights, k), 4) for k in places]
    return tokens


def _scored(score: Mapping[str, Any]) -> tuple[list[Any], list[Any], list[Any]]:
    """(places in the reply, log-probabilities without and with the first block) of the tokens that were scored."""
    places = [k for k in items(score.get("places")) if isinstance(k, int)]
    guided = next(iter(mapping(score.get("guided")).values()), None)
    return places, items(score.get("plain")), items(guided)


def _shift(plain: Any, guided: Any) -> float | None:
    low, high = number(plain), number(guided)
    return None if low is None or high is None else round(high - low, 3)


def _extraction(value: Any) -> dict[str, Any] | None:
    if not isinstance(value, Mapping):
        return None
    return {
        "evidence": _evidence(value.get("evidence")),
        "rejections": _rejections(value.get("rejections")),
        "fault": text(value.get("fault")),
    }


def _guidance(value: Any) -> dict[str, Any] | None:
    if not isinstance(value, Mapping):
        return None
    num_tokens, block_text = shown_block(value)
    return {
        "construction": text(value.get("construction")),
        "tokens": num_tokens,
        "text": block_text,
        "abstain_reason": text(value.get("abstain_reason")),
        "statements": [_statement(mapping(one)) for one in items(value.get("statements"))],
        "evidence": _evidence(value.get("evidence")),
        "rejections": _rejections(value.get("rejections")),
    }


def _statement(one: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "text": text(one.get("text")),
        "evidence_ids": [text(name) for name in items(one.get("evidence_ids"))],
        "support": [
            {
                "turn": whole(support.get("step")),
                "field": text(support.get("field")),
                "quote": text(support.get("quote")),
            }
            for support in map(mapping, items(one.get("support")))
        ],
    }


def _evidence(value: Any) -> list[dict[str, Any]]:
    return [
        {
            "id": text(one.get("evidence_id")),
            "kind": text(one.get("kind")),
            "statement": text(one.get("statement")),
            "sources": [
                {
                    "uid": text(source.get("traj_uid")),
                    "turn": whole(source.get("step")),
                    "pre": text(source.get("pre_quote")),
                    "action": text(source.get("action_quote")),
                    "post": text(source.get("post_quote")),
                }
                for source in map(mapping, items(one.get("sources")))
            ],
        }
        for one in map(mapping, items(value))
    ]


def _rejections(value: Any) -> list[dict[str, str]]:
    return [
        {"stage": text(one.get("stage")), "reason": text(one.get("reason")), "item": text(one.get("item"))}
        for one in map(mapping, items(value))
    ]
