"""The seam for privileged contexts: what a construction may ask, and what it gives.

`prepare` runs once for a group, `build` once for each target; both may take long (they may call an LLM) and run in
worker threads. A trajectory never sees its own transcript, except in the constructions that are marked `own`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ..analyzer.asking import Asked, ask
from ..analyzer.base import Analyzer, AnalyzerReply, AnalyzerRequest
from ..errors import InvariantError
from ..types import Block, Extraction, Guidance, Rejection, Trajectory, TrajectoryGroup
from .block import Composer, cut_away


StateKey = Callable[[Trajectory, int], Hashable]
"""(trajectory, t) -> the state before the action of turn t, for t = 0..T_i."""
Oracle = Callable[[Trajectory], Sequence[list[str] | None]]
"""Trajectory -> for each turn the simulator's actions from the state before it to the goal; None = it knows none."""
OnReply = Callable[[AnalyzerRequest, AnalyzerReply], None]


def observed(trajectory: Trajectory, turn_idx: int) -> Hashable:
    """The default state key: the observation before turn t; for t = T_i the last answer."""
    turns = trajectory.turns
    return turns[turn_idx].observation if turn_idx < len(turns) else turns[-1].next_observation


@dataclass(frozen=True)
class GuidanceContext:
    """What a construction may ask beside the group.

    Args:
        analyzer (`Analyzer`, *optional*):
            Whoever answers [`ask`].
        on_reply (`Callable`, *optional*):
            Called with each (request, reply), from worker threads.
        shared (`Extraction`, *optional*):
            What [`Construction.prepare`] gave for the group.
        advantages (`Mapping[str, float]`, *optional*):
            Trajectory uid -> A_i, computed once for guidance and credit alike.
        state_key (`Callable`, *optional*, defaults to [`observed`]):
            Which turns stand in the same state.
        others (`tuple[tuple[TrajectoryGroup, Extraction], ...]`, *optional*):
            The batch's other prepared groups of this process, for constructions with `needs_others`.
        oracle (`Callable`, *optional*):
            The simulator's plan; None = the environment has none.
    """

    analyzer: Analyzer | None = None
    on_reply: OnReply | None = None
    shared: Extraction = field(default_factory=Extraction)
    advantages: Mapping[str, float] = field(default_factory=dict)
    state_key: StateKey = observed
    others: tuple[tuple[TrajectoryGroup, Extraction], ...] = ()
    oracle: Oracle | None = None

    def ask(self, request: AnalyzerRequest) -> Asked:
        """One question to the analyzer."""
        if self.analyzer is None:
            raise InvariantError(f"A construction asks for {request.stage!r}, and the stage has no analyzer.")
        return ask(self.analyzer, request, self.on_reply or (lambda request, reply: None))


@dataclass(frozen=True, slots=True)
class Told:
    """What one block says in each turn of its target, as recorded: not yet made harmless, not yet cut."""

    turns: tuple[str | None, ...]
    """None = no block in this turn; `""` = the empty block."""
    reason: str = ""
    """Why there is nothing, for when no turn has a text."""
    left_out: tuple[str, ...] = ()
    """What a source left out itself so that whole lines fit the budget."""

    @classmethod
    def whole(cls, text: str, target: Trajectory) -> Told:
        """The same text in all turns."""
        return cls((text,) * len(target.turns))

    @classmethod
    def nothing(cls, reason: str, target: Trajectory) -> Told:
        return cls((None,) * len(target.turns), reason)

    def __bool__(self) -> bool:
        return any(text is not None for text in self.turns)


Source = Callable[[GuidanceContext, TrajectoryGroup, Trajectory], Told]
"""Content of one block for one target: pure, and the same at each call."""


class Construction:
    """A way to make the privileged context of a target; the base class asks nothing and waits for nobody."""

    name: str
    needs_success: bool = False
    """Whether a target needs a verified success other than itself."""
    needs_others: bool = False
    """Whether `build` reads [`GuidanceContext.others`]: it then starts when all groups of the batch are known."""

    def refusal(self, group: TrajectoryGroup, member: Trajectory) -> str:
        """Why there is nothing for `member`, known before any work; empty when there may be something."""
        return "no_other_success" if self.needs_success and not other_successes(group, member) else ""

    def prepare(self, context: GuidanceContext, group: TrajectoryGroup) -> Extraction:
        """What all targets of the group share."""
        return Extraction()

    def build(self, context: GuidanceContext, group: TrajectoryGroup, target: Trajectory) -> Guidance:
        """The guidance of one target; without any, `abstain_reason` says why."""
        raise NotImplementedError


class FromSources(Construction):
    """Blocks whose texts are taken from the records, without an analyzer.

    Args:
        name (`str`):
            Of the construction.
        composer ([`~taspo_trl.guidance.block.Composer`]):
            Makes the blocks.
        sources (`Mapping[str, Source]`):
            Block name -> its content.
        refusal (`Callable`, *optional*):
            (group, member) -> why there is nothing for the member, or nothing.
        all_or_none (`bool`, *optional*, defaults to `False`):
            A target that lacks one of the blocks gets none.
        place (`str`, *optional*, defaults to `"splice"`):
            Of all blocks, as in [`~taspo_trl.types.Block`].
    """

    def __init__(
        self,
        name: str,
        composer: Composer,
        sources: Mapping[str, Source],
        *,
        refusal: Callable[[TrajectoryGroup, Trajectory], str] | None = None,
        all_or_none: bool = False,
        place: Literal["splice", "start"] = "splice",
    ):
        self.name = name
        self._composer = composer
        self._sources = sources
        self._refusal = refusal
        self._all_or_none = all_or_none
        self._place = place

    def refusal(self, group: TrajectoryGroup, member: Trajectory) -> str:
        return self._refusal(group, member) if self._refusal is not None else ""

    def build(self, context: GuidanceContext, group: TrajectoryGroup, target: Trajectory) -> Guidance:
        blocks: dict[str, Block] = {}
        rejections: list[Rejection] = []
        reasons: list[str] = []
        for name, source in self._sources.items():
            told = source(context, group, target)
            block, cut = self._composer.shown(told.turns, self._place)
            if block:
                blocks[name] = block
                rejections += [*cut, *(cut_away(text) for text in told.left_out)]
            else:
                reasons.append(told.reason or "nothing_to_show")
        if not blocks or (reasons and self._all_or_none):
            return Guidance(target.uid, self.name, abstain_reason=reasons[0] if reasons else "no_turns")
        return Guidance(target.uid, self.name, blocks, rejections=tuple(rejections))


def verified_successes(group: TrajectoryGroup) -> list[Trajectory]:
    """The members that may be sources: usable and solved by the environment's own verdict."""
    return [member for member in group.trajectories if member.is_usable and member.success]


def other_successes(group: TrajectoryGroup, target: Trajectory) -> list[Trajectory]:
    """The verified successes but `target`, the first generated first."""
    others = [success for success in verified_successes(group) if success.uid != target.uid]
    return sorted(others, key=lambda success: success.generation_idx)


def other_failures(group: TrajectoryGroup, target: Trajectory) -> list[Trajectory]:
    """The usable members without success but `target`, the first generated first."""
    others = [member for member in group.trajectories if member.is_usable and not member.success]
    return sorted((one for one in others if one.uid != target.uid), key=lambda one: one.generation_idx)
