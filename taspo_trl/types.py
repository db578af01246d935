"""Frozen records that travel between the stages: turns, trajectories, groups, evidence, guidance, credit.

Pure data: no tensors, no model, no I/O. Token ids are plain tuples of integers, exactly as they were sampled or shown.
Shapes are given with T for the turns of a trajectory and |R| for the reply tokens of a turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal


class StopReason(StrEnum):
    """Why an episode ended. The value is the metric's name: `stop/<value>`."""

    SOLVED = "solved"
    """The environment terminated and gave its verdict `info["success"] is True`."""
    FAILED = "failed"
    """The environment terminated without that verdict."""
    ENV_TRUNCATED = "env_truncated"
    """The environment cut the episode at a limit of its own."""
    MAX_TURNS = "max_turns"
    """`max_turns` requests were answered and the environment still went on."""
    MAX_EPISODE_TOKENS = "max_episode_tokens"
    """`max_episode_tokens` reply tokens were sampled."""
    PROMPT_TOO_LONG = "prompt_too_long"
    """The next prompt does not fit `max_prompt_length` or the model's window, even after the documented cuts."""

    ENV_ERROR = "env_error"
    """`reset` or `step` raised an exception."""
    ENV_TIMEOUT = "env_timeout"
    """`reset` or `step` gave no answer within `environment_timeout`."""
    ENV_DIED = "env_died"
    """The worker process that held the environment ended."""
    GENERATION_ERROR = "generation_error"
    """The generation engine failed for this request."""
    SERVICE_ERROR = "service_error"
    """A service behind the environment failed (`errors.ServiceError`), for example a retriever."""
    REWARD_ERROR = "reward_error"
    """The reward is missing or not a number."""

    @property
    def is_infrastructure(self) -> bool:
        """Whether the end says nothing about the policy: such a trajectory leaves its group's statistics and B."""
        return self in _INFRASTRUCTURE


_INFRASTRUCTURE = frozenset(
    {
        StopReason.ENV_ERROR,
        StopReason.ENV_TIMEOUT,
        StopReason.ENV_DIED,
        StopReason.GENERATION_ERROR,
        StopReason.SERVICE_ERROR,
        StopReason.REWARD_ERROR,
    }
)


class FinishReason(StrEnum):
    """Why the sampling of one reply stopped."""

    STOP = "stop"
    """The model ended its reply with an end token."""
    LENGTH = "length"
    """The reply reached its token limit (`max_completion_length`, or what the episode or the window left)."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One answered request: what the policy saw, what it sampled, what the environment made of it."""

    prompt_ids: tuple[int, ...]
    """h_it: the context as it was sent to the engine."""
    reply_ids: tuple[int, ...]
    """y_it: the sampled ids, the end token included. May be empty."""
    reply_text: str
    """The reply decoded without special tokens; what the action was parsed from."""
    action: str
    """What the environment executed; empty when the reply held no action block."""
    action_mask: tuple[bool, ...]
    """M_it over `reply_ids`: True = token of the executed action. All False when it could not be located."""
    observation: str
    """The observation before the action."""
    next_observation: str
    """The environment's answer to the action; empty when it gave none."""
    valid: bool
    """Whether the environment accepted the action (`info["valid"]`) and the reply was well formed."""
    reward: float = 0.0
    splice_index: int | None = None
    """Where guidance may be inserted into `prompt_ids`; None when the template hides the place."""
    finish_reason: FinishReason = FinishReason.STOP
    sampling_logps: tuple[float | None, ...] | None = None
    """Log-probabilities reported by the engine, over `reply_ids`; None for an engine that reports none."""
    prompt_cuts: int = 0
    """History items dropped plus observation cuts that this prompt needed to fit."""
    answer: tuple[Mapping[str, Any], ...] = ()
    """The chat messages that answered the action, where the environment wrote them itself (tool results)."""
    content_mask: tuple[bool, ...] = ()
    """Over `reply_ids`: True = token of the action without its tags. Empty when it was not recorded."""
    admissible_actions: tuple[str, ...] | None = None
    """What the environment would accept before the action; None for one that lists nothing."""
    progress: float | None = None
    """By how much the action raised `info["progress"]`; None where the environment tells none."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One finished episode."""

    uid: str
    task: Mapping[str, Any]
    """The dataset row, None values dropped."""
    task_text: str
    family: str
    environment: str | None
    """Name of its environment when several are trained on, else None."""
    generation_idx: int
    """Index within the group, 0-based."""
    turns: tuple[Turn, ...]
    stop_reason: StopReason
    success: bool
    """The environment's verdict: `info["success"] is True`, nothing else counts."""
    opening: tuple[Mapping[str, str], ...]
    """The messages of the first prompt."""
    environment_reward: float
    """Sum of the environment's own rewards over the episode."""
    reward: float = 0.0
    """The training reward r_i: success (or the environment's reward) plus the weighted reward functions."""
    rewards: Mapping[str, float | None] = field(default_factory=dict)
    """The parts of `reward` by source, unweighted; None = the function did not apply."""
    error: str = ""
    """What went wrong, for infrastructure ends."""
    seconds: float = 0.0
    seed: int | None = None
    """What `reset` was given; with the task and the actions it replays the episode."""
    verdict: str = ""
    """What `info["success"]` was: `"bool"`, another type's name (it counts as False), or empty = it never came."""

    @property
    def is_usable(self) -> bool:
        """Whether it counts in its group's statistics and in B."""
        return not self.stop_reason.is_infrastructure and len(self.turns) > 0


@dataclass(frozen=True, slots=True)
class TrajectoryGroup:
    """The `num_generations` trajectories of one task."""

    group_id: str
    trajectories: tuple[Trajectory, ...]

    @property
    def task_text(self) -> str:
        return next((t.task_text for t in self.trajectories if t.task_text), "")


@dataclass(frozen=True, slots=True)
class Source:
    """Where an evidence item comes from: an accepted action of a verified success, quoted exactly."""

    traj_uid: str
    step: int
    """0-based turn index."""
    pre_quote: str
    action_quote: str
    post_quote: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """One item of E_x."""

    evidence_id: str
    kind: str
    statement: str
    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True)
class Support:
    """A quote from the target's own record that makes a statement applicable."""

    step: int
    field: str
    """task, pre, action or post."""
    quote: str


@dataclass(frozen=True, slots=True)
class Statement:
    """One accepted line of guidance."""

    text: str
    evidence_ids: tuple[str, ...]
    support: tuple[Support, ...]


@dataclass(frozen=True, slots=True)
class Rejection:
    """Something the analyzer said that was not believed, and why."""

    stage: str
    """extraction, alignment or composition."""
    reason: str
    item: str = ""
    """The rejected item as text, cut to a readable length. Untrusted."""


@dataclass(frozen=True, slots=True)
class Extraction:
    """What a group's guidance is made from: E_x, or why there is none."""

    evidence: tuple[Evidence, ...] = ()
    rejections: tuple[Rejection, ...] = ()
    fault: str = ""
    """Why there is no evidence; empty when there is, or when the construction needs none."""


@dataclass(frozen=True, slots=True)
class Block:
    """Privileged text that one branch of the scoring sees: what, in which turns, and where."""

    turns: tuple[tuple[int, ...] | None, ...]
    """Token ids for each turn. None = the turn has no block and is not scored with one; `()` = the empty block, which
    is scored like any other (a placebo: its shifts are exactly 0)."""
    texts: tuple[str, ...] = ()
    """The same as text, decoded from the ids; empty where a turn has no block."""
    place: Literal["splice", "start"] = "splice"
    """`"splice"`: at the context's splice index. `"start"`: before the whole chat."""

    @classmethod
    def whole(cls, ids: Sequence[int], num_turns: int, text: str = "") -> Block:
        """One block for all turns of a trajectory."""
        return cls((tuple(ids),) * num_turns, (text,) * num_turns)

    @property
    def is_whole(self) -> bool:
        """Whether every turn has the same block."""
        return len(set(self.turns)) <= 1

    def __bool__(self) -> bool:
        return any(ids is not None for ids in self.turns)


@dataclass(frozen=True, slots=True)
class Guidance:
    """The privileged context of one target trajectory (P_i, or P_it for each turn), with its pedigree."""

    traj_uid: str
    construction: str
    """Who made it: a name of `guidance.CONSTRUCTIONS`."""
    blocks: Mapping[str, Block] = field(default_factory=dict)
    """Name -> block, one branch of the scoring each; empty = no guidance. A construction with one block names it like
    itself."""
    statements: tuple[Statement, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    """E_{x,-i}: what this target was allowed to draw on."""
    rejections: tuple[Rejection, ...] = ()
    abstain_reason: str = ""
    """Why there is no guidance, when there is none."""

    @property
    def block_ids(self) -> tuple[int, ...]:
        """The ids of the first block that any turn has; empty without guidance."""
        return next((ids for block in self.blocks.values() for ids in block.turns if ids is not None), ())

    @property
    def text(self) -> str:
        """The text of the first block that any turn has."""
        return next((text for block in self.blocks.values() for text in block.texts if text), "")

    def __bool__(self) -> bool:
        return any(self.blocks.values())


@dataclass(frozen=True, slots=True)
class ReplyScore:
    """The log-probabilities of one turn's reply tokens, plain and in each guided branch."""

    plain: tuple[float, ...] = ()
    """log pi_old(y_k | h, y_<k) over R_it; NaN outside the scope that was asked for."""
    guided: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Block name -> log pi_T(y_k | P, h, y_<k) over R_it."""
    unscorable: str = ""
    """Why there is nothing: for example empty_mask, no_splice_index, over_window, non_finite. Empty = scored."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Block name -> why this block alone has no score."""

    def shifts(self, block: str | None = None) -> tuple[float, ...] | None:
        """Delta_itk (E3) over R_it under `block` (by default the only one); None without a usable score of it."""
        if self.unscorable or not self.guided:
            return None
        guided = next(iter(self.guided.values())) if block is None else self.guided.get(block)
        if guided is None:
            return None
        return tuple(g - p for g, p in zip(guided, self.plain, strict=True))


@dataclass(frozen=True, slots=True)
class Alternatives:
    """What could have been done in one turn, scored behind the same prefix; the executed action comes first."""

    actions: tuple[str, ...]
    plain: tuple[tuple[float, ...], ...]
    """For each action log pi_old of its tokens, the tags included."""
    guided: Mapping[str, tuple[tuple[float, ...], ...]] = field(default_factory=dict)
    """Block name -> the same with the block."""

    @property
    def are_shifted(self) -> bool:
        """Whether any block changes anything."""
        return any(guided != self.plain for guided in self.guided.values())


@dataclass(frozen=True, slots=True)
class Credit:
    """How one trajectory's outcome advantage is dealt to its turns."""

    traj_uid: str
    advantage: float
    """A_i."""
    weights: tuple[float, ...]
    """w_it, one value for each turn; where weights differ inside a turn, the mean over its reply tokens."""
    supports: tuple[float | None, ...] = ()
    """The evidence behind each weight (TASPO: d_it); None for a turn that has none."""
    scores: tuple[ReplyScore, ...] = ()
    fallback: str = ""
    """Why A~ = A on every token; empty when it is not."""
    token_weights: tuple[tuple[float, ...], ...] | None = None
    """One weight for each reply token of each turn, where weights differ inside a turn."""
    method: str = "taspo"
    """A name of `taspo_trl.credit.METHODS`."""
    turn_advantages: tuple[float, ...] | None = None
    """A_it, where the method's differ from A_i."""
    token_advantages: tuple[tuple[float, ...], ...] | None = None
    """A~_itk over the reply tokens, where they are not A_i times the weight."""
    distill: tuple[float, ...] | None = None
    """m_k of a method's distillation term: what each reply token of a turn counts in it, for each turn; 0 = the turn
    has no teacher's score. None for methods without a term."""
