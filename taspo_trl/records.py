"""The versioned JSON-lines record of a trajectory: what training writes and analyze, view and notebooks read.

One line for each trajectory, with its guidance, quotes, shifts and weights, so that every credit weight can be traced
to a quote. Records hold untrusted text (observations, replies, analyzer statements): escape it before showing it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from .errors import RecordError
from .files import SkippedLines, replacing
from .redaction import redactor
from .types import (
    Block,
    Credit,
    Evidence,
    Extraction,
    FinishReason,
    Guidance,
    Rejection,
    ReplyScore,
    Source,
    Statement,
    StopReason,
    Support,
    Trajectory,
    Turn,
)


RECORD_VERSION = 2
"""Version 1 held one guidance block for a trajectory; it is still read."""
READ_VERSIONS = (1, 2)
METHOD_FILE = "method.json"
"""Beside a run's records: name, citation and options of the method that made their credit."""


@dataclass(frozen=True)
class TrajectoryRecord:
    """One line of a trajectory file."""

    trajectory: Trajectory
    group_id: str
    rollout: int
    """Number of the rollout batch in its run, from 0."""
    step: int
    """`global_step` when it was played."""
    extraction: Extraction | None = None
    """The group's evidence; None when the group was not eligible."""
    guidance: Guidance | None = None
    credit: Credit | None = None


def write_records(path: str | os.PathLike, records: Iterable[TrajectoryRecord], with_prompt_ids: bool = False) -> None:
    """Write `records` as JSON lines; the file appears only when it is complete.

    Args:
        path (`str` or `PathLike`):
            File to write; its folder is made.
        records (`Iterable[TrajectoryRecord]`):
            What to write.
        with_prompt_ids (`bool`, *optional*, defaults to `False`):
            Keep the prompts' token ids, which are most of the size and are needed only to score offline.
    """
    redact = redactor()
    with replacing(path) as file:
        for record in records:
            file.write(json.dumps(to_json(record, with_prompt_ids, redact), ensure_ascii=False, allow_nan=False))
            file.write("\n")


def read_records(path: str | os.PathLike, is_quiet: bool = False) -> Iterator[TrajectoryRecord]:
    """Read the records of a file, or of all `*.jsonl` files of a folder in the order of their names.

    A line that is no record of a version that this package reads is left out; a warning counts and names such lines.

    Args:
        path (`str` or `PathLike`):
            The file or folder.
        is_quiet (`bool`, *optional*, defaults to `False`):
            Whether to leave the warning out, for a second reading.

    Raises:
        RecordError: there is no file, or one in which no line is a record; the message names file and line.
    """
    path = Path(path)
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not files:
        raise no_records(path)
    for file in files:
        skipped, num_read = SkippedLines(file, "trajectory records"), 0
        with open(file, "rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    record = from_json(json.loads(line))
                except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
                    skipped.add(number, error)
                    continue
                num_read += 1
                yield record
        if skipped.reasons and not num_read:
            raise RecordError(f"{file}, {skipped.reasons[0]}")
        if not is_quiet:
            skipped.tell()


def no_records(folder: Path) -> RecordError:
    """What to say of a folder without records: what would be some, and where inside it others lie."""
    told = f"{folder} holds no trajectory files (*.jsonl). `taspo train` writes them to `_trajectories` of its output"
    told += " folder (`save_trajectories`), and a warm start records episodes in `_warm_start`"
    inside = [one for one in (folder / "_trajectories", folder / "_warm_start") if any(one.glob("*.jsonl"))]
    return RecordError(f"{told}: name {inside[0]}." if inside else f"{told}; name such a folder, or a file of it.")


def to_json(
    record: TrajectoryRecord, with_prompt_ids: bool = False, redact: Callable[[str], str] | None = None
) -> dict[str, Any]:
    """A record as plain JSON data. Non-finite numbers become None, and secrets in its texts `***`."""
    trajectory = record.trajectory
    data = {
        "version": RECORD_VERSION,
        "kind": "trajectory",
        "rollout": record.rollout,
        "step": record.step,
        "group_id": record.group_id,
        **{
            one.name: getattr(trajectory, one.name)
            for one in fields(trajectory)
            if one.name not in ("turns", "stop_reason", "opening")
        },
        "stop_reason": trajectory.stop_reason.value,
        "opening": [dict(message) for message in trajectory.opening],
        "turns": [_turn_to_json(turn, with_prompt_ids) for turn in trajectory.turns],
        "extraction": asdict(record.extraction) if record.extraction is not None else None,
        "guidance": _guidance_to_json(record.guidance) if record.guidance is not None else None,
        "credit": _credit_to_json(record.credit) if record.credit is not None else None,
    }
    return _plain(data, redact or redactor())


def from_json(data: Mapping[str, Any]) -> TrajectoryRecord:
    """The inverse of [`to_json`]; missing prompt ids come back as empty tuples."""
    if not isinstance(data, Mapping):
        raise RecordError(f"a record is a JSON object, this is a {type(data).__name__}.")
    version = data.get("version")
    if type(version) is not int or version not in READ_VERSIONS:
        raise RecordError(f"record version {version!r} is none of the {READ_VERSIONS} that this taspo_trl reads.")
    data = as_newest(data)
    names = [one.name for one in fields(Trajectory)]
    values = {name: data[name] for name in names if name not in ("turns", "stop_reason", "opening", "seed", "verdict")}
    trajectory = Trajectory(
        **values,
        seed=data.get("seed"),
        verdict=data.get("verdict", ""),
        stop_reason=StopReason(data["stop_reason"]),
        opening=tuple(data["opening"]),
        turns=tuple(_turn_from_json(turn) for turn in data["turns"]),
    )
    return TrajectoryRecord(
        trajectory=trajectory,
        group_id=data["group_id"],
        rollout=data["rollout"],
        step=data["step"],
        extraction=_extraction_from_json(data["extraction"]) if data.get("extraction") else None,
        guidance=_guidance_from_json(data["guidance"]) if data.get("guidance") else None,
        credit=_credit_from_json(data["credit"]) if data.get("credit") else None,
    )


def as_newest(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """A raw record of an earlier version in the form of the newest one.

    Readers that must not refuse a damaged record, such as the viewer, use this and not [`from_json`]: nothing is
    checked, what is missing stays missing, and what has an unknown form stays as it is.
    """
    guidance, credit = data.get("guidance"), data.get("credit")
    turns = [turn if isinstance(turn, Mapping) else {} for turn in _list(data.get("turns"))]
    newer: dict[str, Any] = {}
    if isinstance(guidance, Mapping) and "blocks" not in guidance and "block_ids" in guidance:
        newer["guidance"] = {**guidance, "blocks": _blocks_of_version_1(guidance, len(turns))}
    scores = _list(credit.get("scores")) if isinstance(credit, Mapping) else []
    if any(isinstance(score, Mapping) and "plain_logps" in score for score in scores):
        moved = [_score_of_version_1(score, turn) for score, turn in zip(scores, turns, strict=False)]
        newer["credit"] = {**(credit or {}), "scores": moved}
    return {**data, **newer} if newer else data


def _blocks_of_version_1(guidance: Mapping[str, Any], num_turns: int) -> dict[str, Any]:
    """Version 1 held one block for all turns."""
    ids = _list(guidance["block_ids"])
    block = {"ids": [ids], "texts": [guidance.get("text")], "turns": [0] * num_turns, "place": "splice"}
    return {str(guidance.get("construction")): block} if ids else {}


def _score_of_version_1(score: Any, turn: Mapping[str, Any]) -> Any:
    """Version 1 kept the action's tokens only, of one block."""
    if not isinstance(score, Mapping) or "plain_logps" not in score:
        return score
    plain = _list(score["plain_logps"])
    kept = {name: value for name, value in score.items() if name not in ("plain_logps", "guided_logps")}
    if not plain:
        return {**kept, "tokens": 0, "places": [], "plain": [], "guided": {}, "missing": {}}
    places = [k for k, is_action in enumerate(_list(turn.get("action_mask"))) if is_action]
    guided = {"aligned": score.get("guided_logps")}
    num_tokens = len(_list(turn.get("reply_ids")))
    return {**kept, "tokens": num_tokens, "places": places, "plain": plain, "guided": guided, "missing": {}}


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def _turn_to_json(turn: Turn, with_prompt_ids: bool) -> dict[str, Any]:
    data = {one.name: getattr(turn, one.name) for one in fields(turn)}
    data["action_mask"] = [int(flag) for flag in turn.action_mask]
    data["content_mask"] = [int(flag) for flag in turn.content_mask]
    data["finish_reason"] = turn.finish_reason.value
    data["num_prompt_tokens"] = len(turn.prompt_ids)
    if not with_prompt_ids:
        del data["prompt_ids"]
    return data


def _turn_from_json(data: Mapping[str, Any]) -> Turn:
    values: dict[str, Any] = {one.name: data.get(one.name) for one in fields(Turn)}
    values |= {
        "prompt_ids": tuple(data.get("prompt_ids") or ()),
        "reply_ids": tuple(data["reply_ids"]),
        "action_mask": tuple(bool(flag) for flag in data["action_mask"]),
        "content_mask": tuple(bool(flag) for flag in data.get("content_mask") or ()),
        "admissible_actions": _optional_tuple(data.get("admissible_actions")),
        "finish_reason": FinishReason(data["finish_reason"]),
        "sampling_logps": tuple(data["sampling_logps"]) if data.get("sampling_logps") is not None else None,
        "answer": tuple(data.get("answer") or ()),
    }
    return Turn(**values)


def _rejections(data: Iterable[Mapping[str, Any]]) -> tuple[Rejection, ...]:
    return tuple(Rejection(**one) for one in data)


def _evidence(data: Iterable[Mapping[str, Any]]) -> tuple[Evidence, ...]:
    return tuple(Evidence(**{**one, "sources": tuple(Source(**source) for source in one["sources"])}) for one in data)


def _extraction_from_json(data: Mapping[str, Any]) -> Extraction:
    return Extraction(_evidence(data["evidence"]), _rejections(data["rejections"]), data["fault"])


def _guidance_to_json(guidance: Guidance) -> dict[str, Any]:
    blocks = {name: _block_to_json(block) for name, block in guidance.blocks.items()}
    return asdict(replace(guidance, blocks={})) | {"blocks": blocks}


def _block_to_json(block: Block) -> dict[str, Any]:
    """Each content once, and for each turn its number: a block for the whole trajectory is not written T times."""
    pairs = list(zip(block.turns, block.texts or [""] * len(block.turns), strict=True))
    contents = list(dict.fromkeys(pair for pair in pairs if pair[0] is not None))
    numbers = {pair: number for number, pair in enumerate(contents)}
    return {
        "ids": [list(ids or ()) for ids, _ in contents],
        "texts": [text for _, text in contents] if block.texts else None,
        "turns": [numbers.get(pair) for pair in pairs],
        "place": block.place,
    }


def _block_from_json(data: Mapping[str, Any]) -> Block:
    ids = [tuple(one) for one in data["ids"]]
    texts, turns = data["texts"], data["turns"]
    return Block(
        turns=tuple(None if number is None else ids[number] for number in turns),
        texts=() if texts is None else tuple("" if number is None else texts[number] for number in turns),
        place=data["place"],
    )


def _guidance_from_json(data: Mapping[str, Any]) -> Guidance:
    statements = tuple(
        Statement(one["text"], tuple(one["evidence_ids"]), tuple(Support(**support) for support in one["support"]))
        for one in data["statements"]
    )
    return Guidance(
        traj_uid=data["traj_uid"],
        construction=data["construction"],
        blocks={name: _block_from_json(block) for name, block in data["blocks"].items()},
        statements=statements,
        evidence=_evidence(data["evidence"]),
        rejections=_rejections(data["rejections"]),
        abstain_reason=data["abstain_reason"],
    )


def _credit_to_json(credit: Credit) -> dict[str, Any]:
    scores = [_score_to_json(score) for score in credit.scores]
    return {**{one.name: getattr(credit, one.name) for one in fields(credit)}, "scores": scores}


def _score_to_json(score: ReplyScore) -> dict[str, Any]:
    """Only the tokens that were scored: of a long reply most are not."""
    branches = [score.plain, *score.guided.values()]
    places = [k for k in range(len(score.plain)) if not all(math.isnan(logps[k]) for logps in branches)]
    return {
        "tokens": len(score.plain),
        "places": places,
        "plain": [score.plain[k] for k in places],
        "guided": {name: [logps[k] for k in places] for name, logps in score.guided.items()},
        "unscorable": score.unscorable,
        "missing": dict(score.missing),
    }


def _score_from_json(data: Mapping[str, Any]) -> ReplyScore:
    def spread(values: Iterable[float | None]) -> tuple[float, ...]:
        whole = [math.nan] * data["tokens"]
        for place, value in zip(data["places"], values, strict=True):
            whole[place] = math.nan if value is None else value
        return tuple(whole)

    guided = {name: spread(values) for name, values in data["guided"].items()}
    return ReplyScore(spread(data["plain"]), guided, data["unscorable"], dict(data["missing"]))


def _credit_from_json(data: Mapping[str, Any]) -> Credit:
    return Credit(
        traj_uid=data["traj_uid"],
        advantage=data["advantage"],
        weights=tuple(data["weights"]),
        supports=tuple(data["supports"]),
        scores=tuple(_score_from_json(score) for score in data["scores"]),
        fallback=data["fallback"],
        token_weights=_optional_rows(data.get("token_weights")),
        method=data.get("method", "taspo"),
        turn_advantages=_optional_tuple(data.get("turn_advantages")),
        token_advantages=_optional_rows(data.get("token_advantages")),
        distill=_optional_tuple(data.get("distill")),
    )


def _optional_tuple(values: Iterable[Any] | None) -> tuple[Any, ...] | None:
    return None if values is None else tuple(values)


def _optional_rows(rows: Iterable[Iterable[float]] | None) -> tuple[tuple[float, ...], ...] | None:
    return None if rows is None else tuple(tuple(row) for row in rows)


def _plain(value: Any, redact: Callable[[str], str]) -> Any:
    """JSON has no NaN; a record must not lose its line over one."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        number = float(value)
        return number if math.isfinite(number) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(inner, redact) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, redact) for inner in value]
    return redact(str(value))  # a task column may hold anything that Arrow knows, for example a date
