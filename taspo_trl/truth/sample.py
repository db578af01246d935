"""Groups to measure credit on: played or recorded, guided by several contexts at once, and scored."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..analyzer.base import Analyzer
from ..credit.base import Batch, Needs
from ..environments.workers import EnvironmentPool
from ..errors import ConfigurationError
from ..generation import Engine, SamplingSettings
from ..guidance.base import GuidanceContext
from ..guidance.block import Composer
from ..guidance.constructions import Materials, construction_of_blocks
from ..guidance.stage import GuidanceStage, Wanted
from ..rollout.advantages import group_advantages
from ..rollout.contexts import ChatRenderer
from ..rollout.loop import RolloutSettings, play_episodes
from ..rollout.plans import PlanOracle, progress_told
from ..rollout.rewards import RewardSettings, score_group
from ..rollout.tasks import plan_groups
from ..seeds import derive_seed
from ..types import Alternatives, Guidance, ReplyScore, Trajectory, TrajectoryGroup


def play_groups(
    rows: Sequence[Mapping[str, Any]],
    *,
    engine: Engine,
    pool: EnvironmentPool,
    renderer: ChatRenderer,
    rollout: RolloutSettings,
    sampling: SamplingSettings,
    rewards: RewardSettings,
    num_generations: int = 8,
    seed: int = 0,
    max_in_flight: int | None = None,
    on_episode_end: Callable[[Trajectory], None] | None = None,
) -> list[TrajectoryGroup]:
    """One group with rewards for each row, as training plays it.

    Args:
        rows (`Sequence[Mapping[str, Any]]`):
            The tasks.
        engine, pool, renderer, rollout, max_in_flight, on_episode_end:
            As in [`~taspo_trl.rollout.loop.play_episodes`].
        sampling (`SamplingSettings`), rewards (`RewardSettings`), num_generations (`int`), seed (`int`):
            As in [`~taspo_trl.rollout.groups.Collector`].
    """
    specs = plan_groups(rows, num_generations, seed, 0, "credit", is_routed=pool.is_routed)
    engine.begin(sampling, derive_seed("credit", seed))
    played = play_episodes(
        specs,
        engine=engine,
        pool=pool,
        renderer=renderer,
        settings=rollout,
        max_in_flight=max_in_flight,
        on_episode_end=on_episode_end,
    )
    members: dict[str, list[Trajectory]] = {}
    for spec, trajectory in zip(specs, played, strict=True):
        members.setdefault(spec.group_id, []).append(trajectory)
    return [score_group(TrajectoryGroup(name, tuple(group)), rewards) for name, group in members.items()]


@dataclass(frozen=True)
class ScoredGroups:
    """What credit is computed from, and what it took."""

    batch: Batch
    guidance: Mapping[str, Guidance]
    seconds: Mapping[str, float]
    """Stage -> seconds: guidance, scoring, alternatives."""
    num_calls: int
    """Answers of the analyzer."""
    num_alternative_tokens: int = 0
    """Tokens of prefixes and actions that were scored for alternatives."""


def guide_and_score(
    groups: Sequence[TrajectoryGroup],
    needs: Needs,
    *,
    model: Any,
    tokenizer: Any,
    analyzer: Analyzer,
    factories: Mapping[str | None, Callable[[], Any]],
    skill_of: Callable[[Trajectory], str] = lambda trajectory: "",
    action_tags: tuple[str, ...] = (),
    scale_rewards: str = "group",
    temperature: float = 1.0,
    max_tokens: int = 16384,
    pad_token_id: int = 0,
    workers: int = 4,
    sample: Callable[..., Any] | None = None,
) -> ScoredGroups:
    """Make every block that `needs` names, and score the groups with all of them.

    Args:
        groups (`Sequence[TrajectoryGroup]`):
            With rewards.
        needs ([`~taspo_trl.credit.base.Needs`]):
            Blocks, scope and alternatives of all methods together.
        model, tokenizer, analyzer:
            The policy, its tokenizer, and whoever answers constructions that ask.
        factories (`Mapping[str | None, Callable]`):
            Environments by name, for contexts that replay.
        skill_of, action_tags, scale_rewards, temperature, max_tokens, pad_token_id, workers:
            As in training.
        sample (`Callable`, *optional*):
            (turns, `num_samples`) -> what the policy would also do in them, as
            [`~taspo_trl.rollout.others.sample_actions`] tells it. Without it, turns whose world lists no actions have
            no alternatives.

    Raises:
        ConfigurationError: no construction makes a block, or progress is needed and no world tells any.
    """
    from ..scoring.alternatives import score_alternatives
    from ..scoring.pairs import ScoreScope
    from ..scoring.saved import score_saved

    advantages, _ = group_advantages(
        [[t.reward if t.is_usable else None for t in group.trajectories] for group in groups], scale_rewards
    )
    trajectories = [t for group in groups for t in group.trajectories]
    guidance: Mapping[str, Guidance] = {}
    seconds: dict[str, float] = {}
    num_calls = num_tokens = 0
    scores: dict[tuple[str, int], ReplyScore] = {}
    alternatives: Mapping[tuple[str, int], Alternatives] = {}
    if needs.blocks:
        started = time.perf_counter()
        guidance, num_calls = guided(
            groups,
            advantages,
            needs,
            tokenizer=tokenizer,
            analyzer=analyzer,
            factories=factories,
            skill_of=skill_of,
            action_tags=action_tags,
            workers=workers,
        )
        seconds["guidance"] = time.perf_counter() - started
        started = time.perf_counter()
        given: dict[str, Any] = {"temperature": temperature, "max_tokens": max_tokens, "pad_token_id": pad_token_id}
        scope = ScoreScope(needs.blocks, "reply" if needs.scope == "reply" else "action")
        scored = score_saved(model, trajectories, guidance, scope=scope, **given)
        scores = {(uid, t): score for uid, of_turns in scored.items() for t, score in enumerate(of_turns)}
        seconds["scoring"] = time.perf_counter() - started
        if needs.alternatives:
            started = time.perf_counter()
            found = score_alternatives(
                model,
                trajectories,
                guidance,
                tokenizer,
                blocks=needs.blocks,
                most=needs.alternatives,
                sampled=None if sample is None else partial(sample, num_samples=needs.samples),
                **given,
            )
            alternatives = found.alternatives
            num_tokens = found.num_prefix_tokens + found.num_action_tokens
            seconds["alternatives"] = time.perf_counter() - started
    batch = Batch(
        tuple(groups),
        tuple(a for row in advantages for a in row),
        scores,
        unguided={uid: one.abstain_reason for uid, one in guidance.items() if not one},
        alternatives=alternatives,
        progress=_progress(trajectories, factories) if needs.progress else {},
    )
    return ScoredGroups(batch, guidance, seconds, num_calls, num_tokens)


def guided(
    groups: Sequence[TrajectoryGroup],
    advantages: Sequence[Sequence[float]],
    needs: Needs,
    *,
    tokenizer: Any,
    analyzer: Analyzer,
    factories: Mapping[str | None, Callable[[], Any]],
    skill_of: Callable[[Trajectory], str] = lambda trajectory: "",
    action_tags: tuple[str, ...] = (),
    workers: int = 4,
) -> tuple[Mapping[str, Guidance], int]:
    """(trajectory uid -> its blocks, answers of the analyzer), for what [`guide_and_score`] scores.

    Args:
        groups (`Sequence[TrajectoryGroup]`), advantages (`Sequence[Sequence[float]]`):
            With A_i of each member.
        needs, tokenizer, analyzer, factories, skill_of, action_tags, workers:
            As in [`guide_and_score`].

    Raises:
        ConfigurationError: no construction makes a block.
    """
    try:
        materials = Materials(Composer(tokenizer, action_tags=action_tags), skill_of)
        construction = construction_of_blocks(needs.blocks, materials)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
    oracle = PlanOracle(factories) if "oracle_plan" in needs.blocks else None
    context = GuidanceContext(analyzer, oracle=oracle)
    stage = GuidanceStage(construction, workers, Wanted(scope=needs.scope), context=context)
    try:
        for group, row in zip(groups, advantages, strict=True):
            stage.submit(group, row)
        made = stage.collect()
    finally:
        stage.close()
    return made.guidance, len(made.calls)


def _progress(
    trajectories: Sequence[Trajectory], factories: Mapping[str | None, Callable[[], Any]]
) -> dict[tuple[str, int], float]:
    told = {t.uid: progress_told(t, factories[t.environment]) for t in trajectories if t.is_usable}
    found = {(uid, k): one for uid, row in told.items() for k, one in enumerate(row) if one is not None}
    if not found:
        raise ConfigurationError(
            'The environment has no `oracle_plan()` and tells no `info["progress"]`, which an oracle and its placebo '
            "weigh turns by. Leave these methods out."
        )
    return found
