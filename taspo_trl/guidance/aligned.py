"""The method's own context: evidence from other verified successes, aligned with the target by the analyzer (E2)."""

from __future__ import annotations

from collections.abc import Sequence

from ..analyzer.base import AnalyzerRequest
from ..analyzer.payloads import alignment_payload, extraction_payload
from ..analyzer.prompts import PROMPTS, Prompts
from ..analyzer.validation import supported_by_others, validate_alignment, validate_evidence
from ..types import Block, Evidence, Extraction, Guidance, Rejection, Trajectory, TrajectoryGroup
from .base import Construction, GuidanceContext, verified_successes
from .block import Composer


class AlignedConstruction(Construction):
    """Evidence from verified successful siblings, aligned with the target by the analyzer (E2).

    Args:
        composer ([`~taspo_trl.guidance.block.Composer`]):
            Makes the block.
        max_evidence_items (`int`, *optional*, defaults to `12`):
            Items kept of the extraction.
        max_guidance_items (`int`, *optional*, defaults to `8`):
            G: candidates looked at in the alignment.
        max_chars (`int`, *optional*, defaults to `12000`):
            C, the character budget of a request.
        prompts (`Prompts`, *optional*):
            The analyzer's instructions; the package's own by default.
    """

    name = "aligned"
    needs_success = True

    def __init__(
        self,
        composer: Composer,
        *,
        max_evidence_items: int = 12,
        max_guidance_items: int = 8,
        max_chars: int = 12000,
        prompts: Prompts = PROMPTS,
    ):
        self._composer = composer
        self._max_evidence_items = max_evidence_items
        self._max_guidance_items = max_guidance_items
        self._max_chars = max_chars
        self._prompts = prompts

    def prepare(self, context: GuidanceContext, group: TrajectoryGroup) -> Extraction:
        successes = verified_successes(group)
        payload = extraction_payload(group.task_text, successes, self._max_chars)
        asked = context.ask(AnalyzerRequest("extraction", self._prompts.extraction, payload))
        if asked.answer is None:
            return Extraction(rejections=asked.rejections, fault=asked.fault)
        evidence, rejections = validate_evidence(asked.answer, successes, self._max_evidence_items)
        return Extraction(tuple(evidence), (*asked.rejections, *rejections), "" if evidence else "no_evidence")

    def build(self, context: GuidanceContext, group: TrajectoryGroup, target: Trajectory) -> Guidance:
        allowed = supported_by_others(context.shared.evidence, target.uid)
        if not allowed:
            return self._none(target, allowed, context.shared.fault or "no_evidence_from_others")
        payload = alignment_payload(target, allowed, self._max_chars)
        asked = context.ask(AnalyzerRequest("alignment", self._prompts.alignment, payload))
        if asked.answer is None:
            return self._none(target, allowed, asked.fault, asked.rejections)
        statements, rejected, abstained = validate_alignment(asked.answer, target, allowed, self._max_guidance_items)
        ids, kept, dropped = self._composer.compose(statements)
        rejections = [*asked.rejections, *rejected, *dropped]
        if not ids:
            reason = "all_rejected" if rejected or dropped else "abstained"
            return self._none(target, allowed, f"{reason}: {abstained}" if abstained else reason, rejections)
        return Guidance(
            traj_uid=target.uid,
            construction=self.name,
            blocks={self.name: Block.whole(ids, len(target.turns), self._composer.text(ids))},
            statements=tuple(kept),
            evidence=tuple(allowed),
            rejections=tuple(rejections),
        )

    def _none(
        self, target: Trajectory, allowed: Sequence[Evidence], reason: str, rejections: Sequence[Rejection] = ()
    ) -> Guidance:
        return Guidance(
            target.uid, self.name, evidence=tuple(allowed), rejections=tuple(rejections), abstain_reason=reason
        )
