"""An analyzer's judgement of the target's own attempt: the verdict first, then what mattered in it (SERL's judge).

Own by design. The verdict is the environment's; the sentences need no quotes, and are made harmless like any recorded
text.
"""

from __future__ import annotations

from ..analyzer.base import AnalyzerRequest
from ..analyzer.payloads import judgement_payload
from ..analyzer.prompts import PROMPTS, Prompts
from ..analyzer.validation import validate_judgement
from ..types import Guidance, Trajectory, TrajectoryGroup
from .base import Construction, GuidanceContext, other_successes
from .block import Composer


class Judge(Construction):
    """Two to four sentences about the target, from one analyzer call for each.

    Args:
        composer ([`~taspo_trl.guidance.block.Composer`]):
            Makes the block.
        with_success (`bool`, *optional*, defaults to `False`):
            The judge also sees the group's first success other than the target, which must exist.
        max_chars (`int`, *optional*, defaults to `12000`):
            C, the character budget of a request.
        prompts (`Prompts`, *optional*):
            The analyzer's instructions; the package's own by default.
    """

    def __init__(
        self, composer: Composer, *, with_success: bool = False, max_chars: int = 12000, prompts: Prompts = PROMPTS
    ):
        self.name = "serl_judge_success" if with_success else "serl_judge"
        self.needs_success = with_success
        self._composer = composer
        self._max_chars = max_chars
        self._prompts = prompts

    def build(self, context: GuidanceContext, group: TrajectoryGroup, target: Trajectory) -> Guidance:
        successes = other_successes(group, target) if self.needs_success else []
        if self.needs_success and not successes:
            return Guidance(target.uid, self.name, abstain_reason="no_other_success")
        payload = judgement_payload(target, successes[0] if successes else None, self._max_chars)
        asked = context.ask(AnalyzerRequest("judgement", self._prompts.judgement, payload))
        if asked.answer is None:
            return Guidance(target.uid, self.name, rejections=asked.rejections, abstain_reason=asked.fault)
        sentences, rejected = validate_judgement(asked.answer, target)
        rejections = (*asked.rejections, *rejected)
        if not sentences:
            reason = "all_rejected" if rejected else "abstained"
            return Guidance(target.uid, self.name, rejections=rejections, abstain_reason=reason)
        verdict = "The attempt succeeded." if target.success else "The attempt failed."
        text = " ".join([verdict, *sentences])
        block, cut = self._composer.shown((text,) * len(target.turns))
        return Guidance(target.uid, self.name, {self.name: block}, rejections=(*rejections, *cut))
