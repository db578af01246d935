"""Recorded episodes as compact JSON data for the analyzer (docs/method.md, section 4, compaction).

Pure. Nothing about reward, success or advantage is ever in a payload, except the environment's verdict that a judge is
asked to explain. Observations stay as they were recorded, apart from white space and the middle of overlong ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..types import Evidence, Trajectory
from .quotes import LONG_ACTION, collapse


TASK_CHARS = 1200
MIN_OBSERVATION_CHARS = 40
GAP = " ... "


def extraction_payload(task_text: str, successes: Sequence[Trajectory], max_chars: int = 12000) -> dict[str, Any]:
    """The user message of the extraction call: the task and the steps of verified successes.

    Args:
        task_text (`str`):
            The task in words.
        successes (`Sequence[Trajectory]`):
            Verified successes of one group, at least one.
        max_chars (`int`, *optional*, defaults to `12000`):
            C: characters of the request, split equally over the traces. Approximate: field minima and JSON come on
            top.
    """
    task = shorten(task_text, TASK_CHARS)
    share = (max_chars - len(task)) // len(successes)
    return {"task": task, "trajectories": [_trace(success, share) for success in successes]}


def alignment_payload(target: Trajectory, evidence: Sequence[Evidence], max_chars: int = 12000) -> dict[str, Any]:
    """The user message of the alignment call: the target's steps and E_{x,-i}.

    Args:
        target (`Trajectory`):
            The trajectory that guidance is sought for.
        evidence (`Sequence[Evidence]`):
            Items that another success supports; the target's own sources must already be stripped.
        max_chars (`int`, *optional*, defaults to `12000`):
            C for the target's trace.
    """
    task = shorten(target.task_text, TASK_CHARS)
    return {
        "task": task,
        "target": _trace(target, max_chars - len(task)),
        "allowed_evidence": [
            {
                "evidence_id": item.evidence_id,
                "kind": item.kind,
                "statement": item.statement,
                "sources": [
                    {
                        "traj_uid": source.traj_uid,
                        "step": source.step,
                        "pre_quote": source.pre_quote,
                        "action_quote": source.action_quote,
                        "post_quote": source.post_quote,
                    }
                    for source in item.sources
                ],
            }
            for item in evidence
        ],
    }


def judgement_payload(target: Trajectory, reference: Trajectory | None, max_chars: int = 12000) -> dict[str, Any]:
    """The user message of the judgement call: the target's steps and verdict, and perhaps a success to compare with.

    Args:
        target (`Trajectory`):
            The trajectory that is judged.
        reference (`Trajectory`, *optional*):
            Another, successful one.
        max_chars (`int`, *optional*, defaults to `12000`):
            C for the traces, split equally.
    """
    task = shorten(target.task_text, TASK_CHARS)
    share = (max_chars - len(task)) // (1 if reference is None else 2)
    payload = {
        "task": task,
        "outcome": "succeeded" if target.success else "failed",
        "target": _trace(target, share),
    }
    return payload if reference is None else payload | {"reference": _trace(reference, share)}


def shorten(text: str, limit: int) -> str:
    """`text` with white space collapsed; an overlong one keeps its head and tail around ` ... `, `limit` in all."""
    text = collapse(text)
    if len(text) <= limit:
        return text
    kept = max(0, limit - len(GAP))
    tail = kept // 2
    return text[: kept - tail] + GAP + text[len(text) - tail :]


def _trace(trajectory: Trajectory, max_chars: int) -> dict[str, Any]:
    actions = [shorten(turn.action, LONG_ACTION) for turn in trajectory.turns]
    observations: list[tuple[int, str, str]] = []  # (step, field, text)
    previous = None
    for step, turn in enumerate(trajectory.turns):
        if turn.observation != previous:  # a step usually starts from the answer before it: told once
            observations.append((step, "pre", collapse(turn.observation)))
        observations.append((step, "post", collapse(turn.next_observation)))
        previous = turn.next_observation
    cap = _fair_cap([len(text) for _, _, text in observations], max_chars - sum(map(len, actions)))
    shown = {(step, name): shorten(text, cap) for step, name, text in observations}

    steps = []
    for step, turn in enumerate(trajectory.turns):
        entry: dict[str, Any] = {"step": step}
        if (step, "pre") in shown:
            entry["pre"] = shown[step, "pre"]
        entry |= {"action": actions[step], "valid": turn.valid, "post": shown[step, "post"]}
        steps.append(entry)
    return {"traj_uid": trajectory.uid, "steps": steps}


def _fair_cap(lengths: Sequence[int], budget: int) -> int:
    """The largest cap with sum(min(length, cap)) <= budget, at least 40: short texts leave room for long ones."""
    left = budget
    for position, length in enumerate(sorted(lengths)):
        share = left // (len(lengths) - position)
        if length > share:
            return max(MIN_OBSERVATION_CHARS, share)
        left -= length
    return max(MIN_OBSERVATION_CHARS, max(lengths, default=0))
