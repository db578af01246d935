"""Recorded successes to demonstrations: each is played again, with the prompts of the policy that is to learn it.

Only what the environment itself verifies a second time is imitated, so that a recording outlives a change of model,
template or prompt. Refused and cut replies stand in the history and are not imitated.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..environments.workers import EnvironmentPool
from ..errors import ConfigurationError
from ..guidance.block import Composer
from ..rollout.episode import RolloutSettings
from ..rollout.loop import play_episodes
from ..rollout.tasks import EpisodeSpec
from ..rollout.templates import ChatRenderer
from ..rows import insert_block
from ..types import FinishReason, Trajectory
from .demonstration import Demonstration
from .hints import WHOLE, Step, drawn, solution_text
from .players import PlayerEngine, RecordedReplies


@dataclass(frozen=True)
class Kept:
    """Successes that were verified twice, and what became of the other episodes."""

    trajectories: tuple[Trajectory, ...]
    """With the prompt ids of the policy."""
    dropped: Mapping[str, int]
    """Reason -> episodes: `no_success`, `no_seed`, and how a success ended when it was played again."""


def replayed_successes(
    episodes: Sequence[Trajectory],
    *,
    pool: EnvironmentPool,
    renderer: ChatRenderer,
    rollout: RolloutSettings,
    max_in_flight: int | None = None,
    on_episode_end: Callable[[Trajectory], None] | None = None,
) -> Kept:
    """The successes of `episodes` once more, under these prompts and limits.

    Args:
        episodes (`Sequence[Trajectory]`):
            Of [`~taspo_trl.imitation.recording.record_episodes`] or of a training run.
        pool, renderer, rollout, max_in_flight:
            As in [`~taspo_trl.rollout.loop.play_episodes`]: those of the training that follows.
        on_episode_end (`Callable`, *optional*):
            Called with each episode that was played again.
    """
    dropped: Counter[str] = Counter()
    specs, replies = [], {}
    for number, one in enumerate(episodes):
        if not (one.is_usable and one.success):
            dropped["no_success"] += 1
        elif one.seed is None:
            dropped["no_seed"] += 1
        else:
            uid = f"again-{number}"  # two runs may have named episodes alike
            specs.append(EpisodeSpec(uid, uid, one.generation_idx, one.task, one.seed, one.environment))
            replies[uid] = [turn.reply_text for turn in one.turns]
    played: list[Trajectory] = []
    if specs:
        engine = PlayerEngine(RecordedReplies(replies), renderer, pool.traits, specs)
        try:
            played = play_episodes(
                specs,
                engine=engine,
                pool=pool,
                renderer=renderer,
                settings=rollout,
                max_in_flight=max_in_flight,
                on_episode_end=on_episode_end,
            )
        finally:
            engine.close()
        if engine.fault is not None:
            raise engine.fault
    kept = []
    for one in played:
        if one.is_usable and one.success:
            kept.append(one)
        else:
            dropped[f"again_{one.stop_reason.value}"] += 1
    return Kept(tuple(kept), dict(dropped))


def demonstrations_of(
    trajectories: Sequence[Trajectory],
    *,
    guided_share: float = 0.0,
    composer: Composer | None = None,
    seed: int = 0,
) -> list[Demonstration]:
    """The turns of verified successes, in order.

    Args:
        trajectories (`Sequence[Trajectory]`):
            With prompt ids.
        guided_share (`float`, *optional*, defaults to `0.0`):
            Of the episodes: their own solution stands in the prompts as guidance, in one of the wordings of
            constructions, so that the policy has met a block before the scoring shows it one.
        composer ([`~taspo_trl.guidance.block.Composer`], *optional*):
            Makes the blocks; needed with a `guided_share`.
        seed (`int`, *optional*, defaults to `0`):
            Decides which episodes are guided, and by which wording.

    Raises:
        ConfigurationError: `guided_share` is no share, or a trajectory has no prompt ids.
    """
    if not 0.0 <= guided_share <= 1.0:
        raise ConfigurationError(f"`guided_share` must lie between 0 and 1, got {guided_share!r}.")
    rng = random.Random(seed)
    found = []
    for one in trajectories:
        block_ids: tuple[int, ...] = ()
        if composer is not None and rng.random() < guided_share:
            block_ids = composer.block(composer.neutralized(_solution(one, rng)))
        for turn in one.turns:
            if not turn.prompt_ids:
                raise ConfigurationError(f"Episode {one.uid} has no prompt ids: take it from `replayed_successes`.")
            if not turn.valid or not turn.reply_ids or turn.finish_reason is FinishReason.LENGTH:
                continue
            prompt_ids = turn.prompt_ids
            if block_ids and turn.splice_index is not None:
                prompt_ids = insert_block(prompt_ids, turn.splice_index, block_ids)
            found.append(Demonstration(prompt_ids, turn.reply_ids))
    return found


def _solution(trajectory: Trajectory, rng: random.Random) -> str:
    steps = [Step(turn.action, turn.next_observation) for turn in trajectory.turns if turn.valid and turn.action]
    return solution_text(drawn(rng, WHOLE), trajectory.task_text, steps, rng) if steps else ""
