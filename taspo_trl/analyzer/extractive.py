"""An embedded analyzer without an LLM: picks the accepted actions that a success was built on and quotes them exactly.

It reads the same JSON payload as an LLM would and answers with the same JSON, through the same validation. It knows
nothing of the environment: only which words occur in the task, in accepted actions and in their answers. It cannot
generalise as an LLM does; it exists so that everything runs, is testable and is reproducible without a network.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from .base import AnalyzerReply, AnalyzerRequest
from .payloads import GAP
from .quotes import LONG_ACTION, MIN_QUOTE


_MAX_QUOTE = 160
_MAX_EVIDENCE = 12
_MAX_STATEMENTS = 8
_MAX_LISTED = 5  # actions that a sentence of a judgement names
_WORD = re.compile(r"\w+")
_TAGGED = re.compile(r"^<(\w+)>\s*(.*?)\s*</\1>$", re.DOTALL)  # an action with its tags, which no statement may hold


class ExtractiveAnalyzer:
    """Rule-based stand-in for an LLM analyzer.

    Extraction keeps, of each success, the chain of accepted actions that leads to its end: walking backwards from the
    last action, an action belongs to the chain when it shares a rare word (one that few of the record's actions hold)
    with the task or with a later link. Each link becomes a statement, the action itself (without tags), which quotes
    the action and the environment's answer. Alignment keeps the items whose words the target met in its task or its
    observations. A judgement names the chain of a success; of a failure what was refused or repeated, and which links
    of the reference's chain it lacks.
    """

    name = "extractive"

    def complete(self, request: AnalyzerRequest) -> AnalyzerReply:
        answer = _ANSWERS[request.stage](request.payload)
        return AnalyzerReply(text=json.dumps(answer, ensure_ascii=False))

    def close(self) -> None:
        """Nothing to free."""


def _extract(payload: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, dict[str, Any]] = {}  # statement -> item: several successes may support one statement
    for record in payload["trajectories"]:
        for step in _chain(payload["task"], record["steps"]):
            source = _source(record["traj_uid"], step)
            if source is None:
                continue
            statement = _TAGGED.sub(r"\1: \2", step["action"])
            item = found.setdefault(
                statement, {"kind": "progress", "statement": statement, "sources": [], "order": len(found)}
            )
            item["sources"].append(source)
    # What more successes share comes first; ties in the order of play.
    ranked = sorted(found.values(), key=lambda item: (-len(_uids(item)), item["order"]))[:_MAX_EVIDENCE]
    ranked.sort(key=lambda item: item["order"])
    return {
        "evidence": [
            {
                "evidence_id": f"E{number}",
                "kind": item["kind"],
                "statement": item["statement"],
                "sources": item["sources"],
            }
            for number, item in enumerate(ranked, 1)
        ]
    }


def _align(payload: Mapping[str, Any]) -> dict[str, Any]:
    target = payload["target"]
    guidance = []
    for item in payload["allowed_evidence"]:
        support = _support(item, payload["task"], target["steps"])
        if support is not None:
            guidance.append(
                {
                    "statement": item["statement"],
                    "evidence_ids": [item["evidence_id"]],
                    "target_support": [support],
                }
            )
    reason = "" if guidance else "no item mentions anything that this record met"
    entry = {"traj_uid": target["traj_uid"], "guidance": guidance[:_MAX_STATEMENTS], "abstain_reason": reason}
    return {"targets": [entry]}


def _judge(payload: Mapping[str, Any]) -> dict[str, Any]:
    steps = payload["target"]["steps"]
    if payload["outcome"] == "succeeded":
        sentences = [_listed("It was built on", [step["action"] for step in _chain(payload["task"], steps)])]
        sentences.append("Each of these actions was accepted and led on to the end.")
        return {"verdict": "succeeded", "sentences": [one for one in sentences if one]}
    actions = [step["action"] for step in steps]
    repeated = [action for action in dict.fromkeys(actions) if actions.count(action) > 1]
    reference = payload.get("reference", {"steps": ()})
    tried = {action.lower() for action in actions}
    chain = _chain(payload["task"], reference["steps"])
    missing = [step["action"] for step in chain if step["action"].lower() not in tried]
    sentences = [
        _listed("The environment refused", [step["action"] for step in steps if not step["valid"]]),
        _listed("It repeated", repeated),
        _listed("It never did what a success was built on", missing),
    ]
    sentences = [one for one in sentences if one] or ["No action of it was refused or repeated."]
    return {"verdict": "failed", "sentences": [*sentences, "Do only what brings the task nearer to its end."]}


def _listed(opening: str, actions: Sequence[str]) -> str:
    names = [_TAGGED.sub(r"\1: \2", action) for action in dict.fromkeys(actions) if action][:_MAX_LISTED]
    return f"{opening}: {', '.join(names)}." if names else ""


_ANSWERS = {"extraction": _extract, "alignment": _align, "judgement": _judge}


def _chain(task: str, steps: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The accepted steps that the end of a record was built on, in order of play."""
    accepted = [step for step in steps if step["valid"] and step["action"] and GAP not in step["action"]]
    if not accepted:
        return []
    common = _common_words([step["action"] for step in accepted])
    wanted = (_words(task) | _words(accepted[-1]["action"])) - common
    chain = []
    for step in reversed(accepted):
        words = _words(step["action"]) - common
        if step is accepted[-1] or words & wanted:
            chain.append(step)
            wanted |= words
    return chain[::-1]


def _common_words(actions: Sequence[str]) -> set[str]:
    """Words that say little about what an action is for: they stand in more than half of the record's actions."""
    counts: dict[str, int] = {}
    for action in actions:
        for word in _words(action):
            counts[word] = counts.get(word, 0) + 1
    return {word for word, count in counts.items() if count > max(2, len(actions) / 2) or word.isdigit()}


def _source(traj_uid: str, step: Mapping[str, Any]) -> dict[str, Any] | None:
    """A citation of `step`; None when its observations hold nothing that can be quoted exactly."""
    quotes = {name: _quote(step.get(name, "")) for name in ("pre", "post")}
    if not any(quotes.values()) or len(step["action"]) > LONG_ACTION:
        return None
    return {
        "traj_uid": traj_uid,
        "step": step["step"],
        "pre_quote": "" if quotes["post"] else quotes["pre"],
        "action_quote": step["action"],
        "post_quote": quotes["post"],
    }


def _quote(text: str, record: str | None = None) -> str:
    """A short exact piece of `text`, a part of `record` (all of it by default), possibly shortened around a gap."""
    head = text.split(GAP)[0].strip()
    if len(head) > _MAX_QUOTE:
        head = head[:_MAX_QUOTE].rsplit(" ", 1)[0].strip()
    return head if len(head) >= MIN_QUOTE or head == (text if record is None else record) else ""


def _support(item: Mapping[str, Any], task: str, steps: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Where the target met what an item is about: an observation if one names it, else the task."""
    names = {word for word in _words(item["statement"]) if not word.isdigit()}
    best: tuple[int, dict[str, Any]] | None = None
    for step in steps:
        for field in ("pre", "post"):
            record = step.get(field, "")
            for sentence in re.split(r"(?<=[.!?])\s+", record.split(GAP)[0]):
                score = len(names & _words(sentence))
                quote = _quote(sentence, record)
                if quote and score and (best is None or score > best[0]):
                    best = score, {"step": step["step"], "field": field, "quote": quote}
    if best is not None:
        return best[1]
    quote = _quote(task)
    return {"step": 0, "field": "task", "quote": quote} if quote and names & _words(task) else None


def _uids(item: Mapping[str, Any]) -> set[str]:
    return {source["traj_uid"] for source in item["sources"]}


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.lower()))
