"""How many tokens, forwards and analyzer calls a rollout batch takes. Pure arithmetic on means.

The counts are sums over episodes, turns and rows, so they are exact when every mean is the batch's own, and as good as
the assumptions before a run. Symbols:

    E  episodes of the rollout batch            p  tokens of a prompt, mean over turns
    G  episodes of a group                      p1 tokens of an episode's first prompt
    T  turns of an episode                      r  tokens of a reply, the end token included
    u  prompt tokens behind the place where     b  tokens of a guidance block
       guidance is spliced in                   n  tokens of a row

*Rows* (rows.py). Window contexts: each turn is a row, n = p + r. Conversation contexts: an episode is one row; its
last prompt holds everything before, and with prompts that grow evenly from p1 it has 2p - p1 tokens, so
n = 2p - p1 + r.

*Generation* samples E T r tokens and reads E T p prompt tokens (transformers reads each prompt anew; vLLM's prefix
cache reads less).

*Update*: one forward and backward over the rows of the trajectories that can move the policy: those with A_i != 0, or
all when a KL term or an entropy bonus acts on every row; as often as `num_iterations` says.

*Log-probabilities*: one forward over the same rows for pi_old, when the policy changes while the batch is used or when
vLLM's are corrected; one more for the reference, when beta is not 0.

*Scoring* (scoring.py), for the rows of guided trajectories only. The plain row is computed once: n. Each of B guided
branches goes on from its s = p - u positions (p1 - u in conversations) before the splice point: n - s + b. Together
(1 + B) n - B s + B b; where pi_old is computed anyway the plain row is its, and B (n - s + b) are left. A teacher with
weights of its own shares nothing: n + B (n + b).

*Alternatives* (TASPO's `support="contrast"`), for each guided turn: the prefix p once for each branch, b more with a
block, and behind each of them K actions of a tokens: (1 + B) (p + K a) + B b. Where a world lists no actions, further
replies are sampled to have them.

*Continuations* (FACTOR): each episode is played on K times from every turn but its first, K T (T - 1) / 2 replies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields


ACTION_TOKENS = 24.0
"""Tokens of an action with its tags that are assumed where actions are compared."""


@dataclass(frozen=True)
class Workload:
    """What is assumed of an average episode.

    Args:
        turns (`float`), prompt_tokens (`float`), reply_tokens (`float`):
            T, p, r.
        first_prompt_tokens (`float`, *optional*):
            p1; matters in conversations. If `None`, p.
        suffix_tokens (`float`, *optional*, defaults to `5.0`):
            u: the template's end of the user message and opening of the reply.
        mixed_groups (`float`, *optional*, defaults to `1.0`):
            Share of groups with different rewards: only they have A_i != 0.
        coverage (`float`, *optional*, defaults to `1.0`):
            Share of the trajectories with A_i != 0 that get guidance.
        guidance_tokens (`float`, *optional*, defaults to `256.0`):
            b.
        analyzer_prompt_tokens (`float`, *optional*), analyzer_reply_tokens (`float`, *optional*):
            Tokens of one analyzer call. None = not known.
    """

    turns: float
    prompt_tokens: float
    reply_tokens: float
    first_prompt_tokens: float | None = None
    suffix_tokens: float = 5.0
    mixed_groups: float = 1.0
    coverage: float = 1.0
    guidance_tokens: float = 256.0
    analyzer_prompt_tokens: float | None = None
    analyzer_reply_tokens: float | None = None


@dataclass(frozen=True)
class Plan:
    """What the recipe decides.

    Args:
        episodes (`int`), group_size (`int`):
            E over all processes, and G.
        processes (`int`, *optional*, defaults to `1`):
            Forwards are counted for one of them.
        optimizer_steps (`int`, *optional*, defaults to `1`), micro_steps (`int`, *optional*, defaults to `1`):
            K steps that a rollout batch feeds, and the micro-steps of each, `num_iterations` left out.
        iterations (`int`, *optional*, defaults to `1`):
            `num_iterations`.
        batches_per_step (`int`, *optional*, defaults to `1`):
            Rollout batches that feed one optimizer step, when one is not enough.
        micro_batch_tokens (`int`, *optional*, defaults to `16384`):
            Bound on rows x longest row of a forward.
        is_conversation (`bool`):
            Whether an episode is one row.
        all_contribute (`bool`), needs_old_logps (`bool`), needs_ref_logps (`bool`):
            Whether every row moves the policy; which further forwards there are.
        guidance (`str`, *optional*, defaults to `"aligned"`):
            The construction; only `aligned` asks an analyzer.
        asks_analyzer (`bool`, *optional*, defaults to `False`):
            Whether an LLM answers (an `analyzer_model` is set).
        branches (`int`, *optional*):
            B: guided branches of the scoring. If `None`, one, or none for `guidance="none"`.
        has_teacher (`bool`, *optional*, defaults to `False`):
            Whether other weights than the policy's play them.
        scores_all (`bool`, *optional*, defaults to `False`):
            Whether trajectories with A_i = 0 are scored too.
        alternatives (`int`, *optional*, defaults to `0`), samples (`int`, *optional*, defaults to `0`):
            Most actions that are compared in a turn, and replies sampled where a world lists none.
        continuations (`int`, *optional*, defaults to `0`):
            Continuations from each state.
    """

    episodes: int
    group_size: int
    processes: int = 1
    optimizer_steps: int = 1
    micro_steps: int = 1
    iterations: int = 1
    batches_per_step: int = 1
    micro_batch_tokens: int = 16384
    is_conversation: bool = False
    all_contribute: bool = False
    needs_old_logps: bool = False
    needs_ref_logps: bool = False
    guidance: str = "aligned"
    asks_analyzer: bool = False
    branches: int | None = None
    has_teacher: bool = False
    scores_all: bool = False
    alternatives: int = 0
    samples: int = 0
    continuations: int = 0

    @property
    def num_branches(self) -> int:
        """B."""
        return int(self.guidance != "none") if self.branches is None else self.branches


@dataclass(frozen=True)
class BatchCounts:
    """Of one rollout batch, over all processes unless a name says otherwise."""

    episodes: float
    turns: float
    sampled_tokens: float
    prompt_tokens: float
    """Read by the generation engine."""
    rows: float
    row_tokens: float
    """n: tokens of an average row."""
    old_logp_tokens: float
    ref_logp_tokens: float
    scored_rows: float
    scored_tokens: float
    trained_rows: float
    trained_tokens: float
    """Forward and backward, `num_iterations` times."""
    loss_tokens: float
    logp_forwards: float
    """For each process, as are the next two."""
    scoring_forwards: float
    update_forwards: float
    analyzer_calls: float
    analyzer_prompt_tokens: float | None
    analyzer_reply_tokens: float | None
    alternative_tokens: float = 0.0
    """Prefixes and actions that are scored to compare what was done with what could have been."""
    alternative_replies: float = 0.0
    """Sampled for it, at most: where a world lists no actions."""
    continued_replies: float = 0.0
    """Sampled to play episodes on from their states."""

    @property
    def forward_tokens(self) -> float:
        """Tokens of forwards without gradient: log-probabilities and scoring."""
        return self.old_logp_tokens + self.ref_logp_tokens + self.scored_tokens + self.alternative_tokens

    def times(self, factor: float) -> BatchCounts:
        """The counts of several batches, or of a part of one."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        scaled = {k: v if v is None or k == "row_tokens" else v * factor for k, v in values.items()}
        return BatchCounts(**scaled)

    def as_dict(self) -> dict[str, float | None]:
        return {one.name: getattr(self, one.name) for one in fields(self)}


def count_batch(work: Workload, plan: Plan) -> BatchCounts:
    """The counts of one rollout batch."""
    turns = plan.episodes * work.turns
    rows_per_episode = 1.0 if plan.is_conversation else work.turns
    row = row_tokens(work, plan.is_conversation)
    moving = 1.0 if plan.all_contribute else work.mixed_groups
    guided = 0.0 if not plan.num_branches else (1.0 if plan.scores_all else work.mixed_groups) * work.coverage
    trained_rows = plan.episodes * moving * rows_per_episode
    scored_rows = plan.episodes * guided * rows_per_episode
    scored_row = scored_row_tokens(work, plan.is_conversation, plan.num_branches, plan.has_teacher)
    rides = plan.needs_old_logps and not plan.has_teacher
    guided_turns = turns * guided if plan.alternatives else 0.0
    num_logps = plan.needs_old_logps + plan.needs_ref_logps
    update = forwards(trained_rows, row, plan, plan.optimizer_steps * plan.micro_steps)
    calls = analyzer_calls(plan, work.mixed_groups)
    return BatchCounts(
        episodes=plan.episodes,
        turns=turns,
        sampled_tokens=turns * work.reply_tokens,
        prompt_tokens=turns * work.prompt_tokens,
        rows=plan.episodes * rows_per_episode,
        row_tokens=row,
        old_logp_tokens=trained_rows * row * plan.needs_old_logps,
        ref_logp_tokens=trained_rows * row * plan.needs_ref_logps,
        scored_rows=scored_rows,
        scored_tokens=scored_rows * (scored_row - row * rides),
        trained_rows=trained_rows * plan.iterations,
        trained_tokens=trained_rows * row * plan.iterations,
        loss_tokens=turns * moving * work.reply_tokens * plan.iterations,
        logp_forwards=update * num_logps,
        # The plain branch, the guided branches.
        scoring_forwards=(1 - rides + plan.num_branches) * forwards(scored_rows, row + work.guidance_tokens, plan, 1)
        if scored_rows
        else 0.0,
        update_forwards=update * plan.iterations,
        analyzer_calls=calls,
        analyzer_prompt_tokens=_product(calls, work.analyzer_prompt_tokens),
        analyzer_reply_tokens=_product(calls, work.analyzer_reply_tokens),
        alternative_tokens=guided_turns * alternative_turn_tokens(work, plan),
        alternative_replies=guided_turns * plan.samples,
        continued_replies=plan.episodes * plan.continuations * work.turns * max(0.0, work.turns - 1) / 2,
    )


def row_tokens(work: Workload, is_conversation: bool) -> float:
    """n, mean over rows."""
    if not is_conversation:
        return work.prompt_tokens + work.reply_tokens
    return 2 * work.prompt_tokens - _first_prompt(work) + work.reply_tokens


def answered_tokens(work: Workload, is_conversation: bool) -> float:
    """Reply tokens of a row, mean over rows: those whose log-probability is needed."""
    return work.reply_tokens * (work.turns if is_conversation else 1.0)


def scored_row_tokens(work: Workload, is_conversation: bool, branches: int = 1, has_teacher: bool = False) -> float:
    """Positions that scoring a row in all branches computes: (1 + B) n - B s + B b, or n + B (n + b)."""
    opening = _first_prompt(work) if is_conversation else work.prompt_tokens
    shared = 0.0 if has_teacher else opening - work.suffix_tokens
    row = row_tokens(work, is_conversation)
    return row + branches * (row - shared + work.guidance_tokens)


def alternative_turn_tokens(work: Workload, plan: Plan) -> float:
    """Positions that comparing a turn's actions computes, an action having at most `ACTION_TOKENS`."""
    actions = plan.alternatives * min(work.reply_tokens, ACTION_TOKENS)
    return (1 + plan.num_branches) * (work.prompt_tokens + actions) + plan.num_branches * work.guidance_tokens


def forwards(rows: float, row: float, plan: Plan, shares: int) -> float:
    """Micro-batches that one process runs for rows of equal length, dealt to `shares` parts of all processes.

    Every part runs at least one: a zero row where it has none.
    """
    per_batch = max(1, int(plan.micro_batch_tokens // max(1.0, row)))
    per_share = rows / (shares * plan.processes)
    return float(shares * max(1, math.ceil(round(per_share / per_batch, 9))))


def analyzer_calls(plan: Plan, mixed_groups: float) -> float:
    """Calls of a rollout batch at most: one extraction for each mixed group, one alignment for each of its members.

    A group with a single success asks for one alignment fewer, since that success has no other to learn from; answers
    from the cache cost nothing.
    """
    if not plan.asks_analyzer or plan.guidance != "aligned":
        return 0.0
    return plan.episodes / plan.group_size * mixed_groups * (1 + plan.group_size)


def from_metrics(metrics: Mapping[str, float], defaults: Workload) -> Workload:
    """The workload that a run's logged metrics show; what they do not hold is taken from `defaults`."""
    found = {
        "turns": metrics.get("turns/mean"),
        "prompt_tokens": metrics.get("prompts/mean_length"),
        "reply_tokens": metrics.get("replies/mean_length"),
        "coverage": metrics.get("guidance/coverage"),
        "guidance_tokens": metrics.get("guidance/tokens"),
    }
    if (flat := metrics.get("frac_reward_zero_std")) is not None:
        found["mixed_groups"] = 1.0 - flat
    if calls := metrics.get("analyzer/calls"):
        asked = calls * (1.0 - metrics.get("analyzer/cached_share", 0.0))
        if asked and metrics.get("analyzer/tokens_prompt"):
            found["analyzer_prompt_tokens"] = metrics["analyzer/tokens_prompt"] / asked
            found["analyzer_reply_tokens"] = metrics.get("analyzer/tokens_completion", 0.0) / asked
    values = {one.name: getattr(defaults, one.name) for one in fields(defaults)}
    kept = {name: value for name, value in found.items() if value is not None and math.isfinite(value)}
    return Workload(**{**values, **kept})


def _first_prompt(work: Workload) -> float:
    return work.prompt_tokens if work.first_prompt_tokens is None else work.first_prompt_tokens


def _product(calls: float, tokens: float | None) -> float | None:
    return None if tokens is None and calls else calls * (tokens or 0.0)
