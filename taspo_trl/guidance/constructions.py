"""What the guided branch is shown: the method's aligned guidance and its comparison constructions, one interface.

`prepare` runs once for a group, `build` once for each target; both may take long (they may call an LLM) and run in
worker threads. None of them ever shows a trajectory its own transcript.
"""

from __future__ import annotations

import difflib
import random
from collections.abc import Callable, Sequence
from typing import Protocol

from ..analyzer.asking import Asked, ask
from ..analyzer.base import Analyzer, AnalyzerReply, AnalyzerRequest
from ..analyzer.payloads import alignment_payload, extraction_payload
from ..analyzer.prompts import PROMPTS, Prompts
from ..analyzer.quotes import collapse
from ..analyzer.validation import supported_by_others, validate_alignment, validate_evidence
from ..types import Block, Evidence, Extraction, Guidance, Rejection, Trajectory, TrajectoryGroup
from .block import Composer


CONSTRUCTIONS = ("aligned", "random_success", "nearest_success", "generic_skill", "none")


class Construction(Protocol):
    """A way to make P_i."""

    name: str
    needs_success: bool
    """Whether a target needs a verified success other than itself."""

    def prepare(self, group: TrajectoryGroup) -> Extraction:
        """What all targets of the group share."""

    def build(self, group: TrajectoryGroup, target: Trajectory, extraction: Extraction) -> Guidance:
        """The guidance of one target; without any, `abstain_reason` says why."""


class AlignedConstruction:
    """Evidence from verified successful siblings, aligned with the target by the analyzer (E2).

    Args:
        analyzer (`Analyzer`):
            Whoever answers.
        composer (`Composer`):
            Makes the block.
        max_evidence_items (`int`, *optional*, defaults to `12`):
            Items kept of the extraction.
        max_guidance_items (`int`, *optional*, defaults to `8`):
            G: candidates looked at in the alignment.
        max_chars (`int`, *optional*, defaults to `12000`):
            C, the character budget of a request.
        prompts (`Prompts`, *optional*):
            The analyzer's instructions; the package's own by default.
        on_reply (`Callable`, *optional*):
            Called with each (request, reply), from worker threads.
    """

    name = "aligned"
    needs_success = True

    def __init__(
        self,
        analyzer: Analyzer,
        composer: Composer,
        *,
        max_evidence_items: int = 12,
        max_guidance_items: int = 8,
        max_chars: int = 12000,
        prompts: Prompts = PROMPTS,
        on_reply: Callable[[AnalyzerRequest, AnalyzerReply], None] | None = None,
    ):
        self._analyzer = analyzer
        self._composer = composer
        self._max_evidence_items = max_evidence_items
        self._max_guidance_items = max_guidance_items
        self._max_chars = max_chars
        self._prompts = prompts
        self._on_reply = on_reply or (lambda request, reply: None)

    def prepare(self, group: TrajectoryGroup) -> Extraction:
        successes = verified_successes(group)
        payload = extraction_payload(group.task_text, successes, self._max_chars)
        asked = self._ask(AnalyzerRequest("extraction", self._prompts.extraction, payload))
        if asked.answer is None:
            return Extraction(rejections=asked.rejections, fault=asked.fault)
        evidence, rejections = validate_evidence(asked.answer, successes, self._max_evidence_items)
        return Extraction(tuple(evidence), (*asked.rejections, *rejections), "" if evidence else "no_evidence")

    def build(self, group: TrajectoryGroup, target: Trajectory, extraction: Extraction) -> Guidance:
        allowed = supported_by_others(extraction.evidence, target.uid)
        if not allowed:
            return self._none(target, allowed, extraction.fault or "no_evidence_from_others")
        payload = alignment_payload(target, allowed, self._max_chars)
        asked = self._ask(AnalyzerRequest("alignment", self._prompts.alignment, payload))
        if asked.answer is None:
            return self._none(target, allowed, asked.fault, asked.rejections)
        statements, rejected, abstained = validate_alignment(asked.answer, target, allowed, self._max_guidance_items)
        block, kept, dropped = self._composer.compose(statements)
        rejections = [*asked.rejections, *rejected, *dropped]
        if not block:
            reason = "all_rejected" if rejected or dropped else "abstained"
            return self._none(target, allowed, f"{reason}: {abstained}" if abstained else reason, rejections)
        return Guidance(
            traj_uid=target.uid,
            construction=self.name,
            blocks={self.name: Block.whole(block, len(target.turns), self._composer.text(block))},
            statements=tuple(kept),
            evidence=tuple(allowed),
            rejections=tuple(rejections),
        )

    def _ask(self, request: AnalyzerRequest) -> Asked:
        return ask(self._analyzer, request, self._on_reply)

    def _none(
        self, target: Trajectory, allowed: Sequence[Evidence], reason: str, rejections: Sequence[Rejection] = ()
    ) -> Guidance:
        return Guidance(
            target.uid, self.name, evidence=tuple(allowed), rejections=tuple(rejections), abstain_reason=reason
        )


class _TranscriptConstruction:
    """A successful sibling's actions and observations as they are, cut to the block's budget."""

    name: str
    needs_success = True

    def __init__(self, composer: Composer):
        self._composer = composer

    def prepare(self, group: TrajectoryGroup) -> Extraction:
        return Extraction()

    def build(self, group: TrajectoryGroup, target: Trajectory, extraction: Extraction) -> Guidance:
        siblings = [success for success in verified_successes(group) if success.uid != target.uid]
        if not siblings:
            return Guidance(target.uid, self.name, abstain_reason="no_other_success")
        text = self._composer.neutralized(_transcript(self._choose(siblings, target)))
        block = self._composer.block(text)
        return Guidance(
            target.uid, self.name, {self.name: Block.whole(block, len(target.turns), self._composer.text(block))}
        )

    def _choose(self, siblings: list[Trajectory], target: Trajectory) -> Trajectory:
        raise NotImplementedError


class RandomSuccess(_TranscriptConstruction):
    """The transcript of a random successful sibling, the same one at each run."""

    name = "random_success"

    def _choose(self, siblings: list[Trajectory], target: Trajectory) -> Trajectory:
        return random.Random(target.uid).choice(siblings)


class NearestSuccess(_TranscriptConstruction):
    """The transcript of the successful sibling whose actions are most similar; ties go to the lowest index."""

    name = "nearest_success"

    def _choose(self, siblings: list[Trajectory], target: Trajectory) -> Trajectory:
        actions = [turn.action for turn in target.turns]

        def distance(sibling: Trajectory) -> tuple[float, int]:
            theirs = [turn.action for turn in sibling.turns]
            return -difflib.SequenceMatcher(None, actions, theirs, autojunk=False).ratio(), sibling.generation_idx

        return min(siblings, key=distance)


class GenericSkill:
    """A fixed text for the environment or the task family; needs no success.

    Args:
        composer (`Composer`):
            Makes the block.
        skill_of (`Callable`):
            Task family -> text; empty = none. Usually the environment's `generic_skill`.
    """

    name = "generic_skill"
    needs_success = False

    def __init__(self, composer: Composer, skill_of: Callable[[Trajectory], str]):
        self._composer = composer
        self._skill_of = skill_of

    def prepare(self, group: TrajectoryGroup) -> Extraction:
        return Extraction()

    def build(self, group: TrajectoryGroup, target: Trajectory, extraction: Extraction) -> Guidance:
        text = self._composer.neutralized(self._skill_of(target))
        block = self._composer.block(text)
        if not block:
            return Guidance(target.uid, self.name, abstain_reason="no_skill_for_family")
        return Guidance(
            target.uid, self.name, {self.name: Block.whole(block, len(target.turns), self._composer.text(block))}
        )


def make_construction(
    name: str,
    composer: Composer,
    *,
    analyzer: Analyzer,
    skill_of: Callable[[Trajectory], str],
    max_evidence_items: int = 12,
    max_guidance_items: int = 8,
    max_chars: int = 12000,
    prompts: Prompts = PROMPTS,
    on_reply: Callable[[AnalyzerRequest, AnalyzerReply], None] | None = None,
) -> Construction | None:
    """The construction called `name`, one of `CONSTRUCTIONS`; None for `"none"`."""
    if name == "none":
        return None
    if name == "random_success":
        return RandomSuccess(composer)
    if name == "nearest_success":
        return NearestSuccess(composer)
    if name == "generic_skill":
        return GenericSkill(composer, skill_of)
    if name == "aligned":
        return AlignedConstruction(
            analyzer,
            composer,
            max_evidence_items=max_evidence_items,
            max_guidance_items=max_guidance_items,
            max_chars=max_chars,
            prompts=prompts,
            on_reply=on_reply,
        )
    raise ValueError(f"`name` must be one of {', '.join(map(repr, CONSTRUCTIONS))}, got {name!r}.")


def verified_successes(group: TrajectoryGroup) -> list[Trajectory]:
    """The members that may be sources: usable and solved by the environment's own verdict."""
    return [member for member in group.trajectories if member.is_usable and member.success]


def _transcript(trajectory: Trajectory) -> str:
    lines = [f"Task: {collapse(trajectory.task_text)}"]
    for turn in trajectory.turns:
        lines.append(f"> {collapse(turn.action)}")
        lines.append(collapse(turn.next_observation))
    return "\n".join(line for line in lines if line)
