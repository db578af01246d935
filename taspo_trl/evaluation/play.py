"""Plays each task of a split exactly once, or as often as an agent may try: no privileged text, no loss.

It can be resumed: finished attempts are on disk and are not played again.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ..environments.base import attribute
from ..environments.workers import EnvironmentPool
from ..errors import ConfigurationError
from ..generation import Engine, SamplingSettings
from ..rollout.contexts import ChatRenderer
from ..rollout.loop import RolloutSettings, play_episodes
from ..rollout.tasks import EpisodeSpec, equal_before, plan_groups, task_id, task_row
from ..seeds import derive_seed
from ..types import Trajectory
from .agents import EvaluationAgent, PlainAgent, example_text, thinks
from .notes import PolicyReflector, Reflector
from .progress import Key, Record
from .results import Attempt, EvaluationResult, Note, Play


def evaluate_tasks(
    rows: Sequence[Mapping[str, Any]],
    *,
    engine: Engine,
    pool: EnvironmentPool,
    renderer: ChatRenderer,
    rollout: RolloutSettings,
    sampling: SamplingSettings,
    seed: int = 0,
    num_plays: int = 1,
    max_in_flight: int | None = None,
    progress_path: str | os.PathLike | None = None,
    on_play: Callable[[Play], None] | None = None,
    settings: Mapping[str, Any] | None = None,
    part: slice = slice(None),
    agent: EvaluationAgent | None = None,
    reflector: Reflector | None = None,
) -> EvaluationResult:
    """Play each row `num_plays` times.

    Args:
        rows (`Sequence[Mapping[str, Any]]`):
            The tasks; two rows with the same `task_id` are an error, since each task counts once. Rows that are equal
            without having one are tasks of their own, with a number in their ids and seeds of their own.
        engine, pool, renderer, rollout, max_in_flight:
            As in [`~taspo_trl.rollout.loop.play_episodes`].
        sampling (`SamplingSettings`):
            How replies are sampled.
        seed (`int`, *optional*, defaults to `0`):
            Seed of environments (a fixed function of it and the task, the same for all plays and attempts) and of
            sampling.
        num_plays (`int`, *optional*, defaults to `1`):
            Plays of each task.
        progress_path (`str` or `PathLike`, *optional*):
            File to which each finished play, or attempt, is appended. What is found there is not played again; what
            ended through infrastructure is. It belongs to one configuration: a different one raises.
        on_play (`Callable`, *optional*):
            Called with each finished play, those read from `progress_path` included.
        settings (`Mapping[str, Any]`, *optional*):
            Further facts for the result.
        part (`slice`, *optional*):
            The rows to play here, where several processes share them.
        agent (`EvaluationAgent`, *optional*):
            What the policy is shown besides its task, and how often it may try, for example
            [`~taspo_trl.evaluation.ReflexionAgent`]. All first attempts are played, then the second ones of the plays
            that failed, and so on. If `None`, the plain policy plays once.
        reflector (`Reflector`, *optional*):
            Who writes the notes of an agent that has some. If `None`, the policy.

    Returns:
        `EvaluationResult`: plays in the order of `rows`.

    Raises:
        ConfigurationError: `progress_path` belongs to another configuration, two rows have one `task_id`, or the
            agent wants worked examples and an environment has none.
    """
    agent = agent or PlainAgent()
    reflector = reflector or PolicyReflector(
        engine,
        renderer,
        max_length=rollout.max_prompt_length,
        model_window=rollout.model_window,
        max_new_tokens=rollout.max_completion_length,
    )
    facts = evaluation_facts(
        rows,
        rollout=rollout,
        sampling=sampling,
        seed=seed,
        num_plays=num_plays,
        settings=settings,
        agent=agent,
        reflector=reflector,
    )
    keys = [(one, k) for one in distinct_ids(rows)[part] for k in range(num_plays)]
    record = Record(keys, agent.attempts, on_play)
    if progress_path is not None:
        record.keep_in(Path(progress_path), facts)
    examples = WorkedExamples(pool, agent.examples)
    examples.check(rows[part])
    asked: list[tuple[tuple[str, int], str, Attempt, Future[Note]]] = []
    """Failed attempts whose notes are being written: (play, family, attempt, note)."""

    def settle() -> None:
        """Record the attempts whose notes have come."""
        for one in [one for one in asked if one[3].done()]:
            asked.remove(one)
            key, family, attempt, note = one
            record.add(key, family, replace(attempt, note=note.result()))

    for attempt_idx in range(agent.attempts):
        specs, played = [], {}
        for key, spec in planned_plays(rows, num_plays, seed, pool.is_routed, attempt_idx, part):
            if record.wants(key, attempt_idx):
                specs.append(spec)
                played[spec.uid] = key
        if not specs:
            continue

        def finish(trajectory: Trajectory, played: Mapping[str, tuple[str, int]] = played) -> None:
            key = played[trajectory.uid]
            attempt = _attempt_of(trajectory)
            note = None
            if record.leaves_another(key, attempt):
                note = agent.after(trajectory, record.notes(key), reflector)
            if note is None:
                record.add(key, trajectory.family, attempt)
            else:
                asked.append((key, trajectory.family, attempt, note))
            settle()

        def opening(
            spec: EpisodeSpec,
            family: str,
            messages: Sequence[dict[str, Any]],
            played: Mapping[str, tuple[str, int]] = played,
        ) -> list[dict[str, Any]]:
            return agent.open(messages, record.notes(played[spec.uid]), examples.texts(spec.environment, family))

        # A further attempt draws other samples; the first draws what a plain evaluation would.
        engine.begin(sampling, derive_seed("evaluation", seed, *([attempt_idx] if attempt_idx else [])))
        play_episodes(
            specs,
            engine=engine,
            pool=pool,
            renderer=renderer,
            settings=rollout,
            max_in_flight=max_in_flight,
            on_episode_end=finish,
            opening=None if isinstance(agent, PlainAgent) else opening,
        )
        while asked:
            engine.flush()
            wait([one[3] for one in asked], return_when=FIRST_COMPLETED)
            settle()
    return EvaluationResult(tuple(record.plays()), facts)


def planned_plays(
    rows: Sequence[Mapping[str, Any]],
    num_plays: int,
    seed: int,
    is_routed: bool = False,
    attempt_idx: int = 0,
    part: slice = slice(None),
) -> list[tuple[Key, EpisodeSpec]]:
    """The episodes of [`evaluate_tasks`], each with its task's id and the number of its play.

    Args:
        rows, num_plays, seed, part:
            As there.
        is_routed (`bool`, *optional*, defaults to `False`):
            As in [`~taspo_trl.rollout.tasks.plan_groups`].
        attempt_idx (`int`, *optional*, defaults to `0`):
            Which attempt of an agent, from 0. All have the same seeds.
    """
    planned: list[tuple[Key, EpisodeSpec]] = []
    for row, one, number in zip(rows[part], distinct_ids(rows)[part], equal_before(rows)[part], strict=True):
        prefix = f"eval{attempt_idx + 1 if attempt_idx else ''}-{one}"
        specs = plan_groups([row], num_plays, seed, 0, prefix=prefix, is_routed=is_routed, numbers=[number])
        planned += [((one, spec.generation_idx), spec) for spec in specs]
    return planned


def evaluation_facts(
    rows: Sequence[Mapping[str, Any]],
    *,
    rollout: RolloutSettings,
    sampling: SamplingSettings,
    seed: int,
    num_plays: int,
    settings: Mapping[str, Any] | None = None,
    agent: EvaluationAgent | None = None,
    reflector: Reflector | None = None,
) -> dict[str, Any]:
    """The settings of [`evaluate_tasks`] that its result names; two results with other ones are two evaluations."""
    facts = {
        "tasks_digest": tasks_digest(rows),
        "seed": seed,
        "num_plays": num_plays,
        **asdict(sampling),
        "num_tasks": len(rows),
        "rollout": asdict(rollout),
        **(settings or {}),
    }
    if agent is None or isinstance(agent, PlainAgent):
        return facts
    notes = {"notes": dict(reflector.facts())} if agent.reflects and reflector is not None else {}
    return {**facts, "agent": {**agent.facts(), **notes}}


class WorkedExamples:
    """The texts of the environments' worked examples.

    Args:
        pool (`EnvironmentPool`):
            Where the environments live.
        count (`int`):
            Examples that are shown.
    """

    def __init__(self, pool: EnvironmentPool, count: int):
        self._pool = pool
        self._count = count
        self._made: dict[tuple[str | None, str], list[str]] = {}

    def texts(self, environment: str | None, family: str) -> list[str]:
        """The examples for a task of `family`, as prompts show them."""
        if not self._count:
            return []
        key = (environment, family)
        if key not in self._made:
            in_tags = thinks(self._pool.traits[environment].prompt)
            examples = attribute(self._pool.probes[environment], "worked_examples")(family)
            self._made[key] = [example_text(one, in_tags) for one in examples[: self._count]]
        return self._made[key]

    def check(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Raise [`~taspo_trl.errors.ConfigurationError`] where no example could ever be shown."""
        for environment, probe in self._pool.probes.items():
            families = {str(row.get("family") or "all") for row in rows}
            if self._count and rows and not any(self.texts(environment, family) for family in families):
                raise ConfigurationError(
                    f"The agent shows worked examples, and `{type(probe).__name__}` has none. Give the class a "
                    "`worked_examples(family)` that returns `taspo_trl.environments.WorkedExample`s of solved "
                    "training tasks, or ask for 0 examples, which leaves the request for thoughts."
                )


def distinct_ids(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The id of each row: its `task_id`, or a digest of its content, with a number where earlier rows are equal.

    Raises:
        ConfigurationError: two rows have the same `task_id`: that task would count twice.
    """
    refuse_repeated(row.get("task_id") for row in rows)
    ids = [task_id(task_row(row)) for row in rows]
    return [f"{one}-{number + 1}" if number else one for one, number in zip(ids, equal_before(rows), strict=True)]


def refuse_repeated(task_ids: Iterable[Any]) -> None:
    """Raise [`~taspo_trl.errors.ConfigurationError`] for a task id that stands twice in evaluation data."""
    counts = Counter(str(one) for one in task_ids if one is not None)
    repeated = next((one for one, count in counts.items() if count > 1), None)
    if repeated is not None:
        raise ConfigurationError(
            f"The task {repeated!r} stands {counts[repeated]} times in the evaluation data; each task is "
            "played once. Give the rows distinct `task_id`s, or raise `num_generations_eval` for several plays."
        )


def tasks_digest(rows: Sequence[Mapping[str, Any]]) -> str:
    """What two evaluations have in common exactly when they play the same tasks in the same order."""
    return f"{derive_seed(*(sorted(map(str, task_row(row).items())) for row in rows)):016x}"


def _attempt_of(trajectory: Trajectory) -> Attempt:
    return Attempt(
        success=trajectory.success,
        score=trajectory.environment_reward,
        num_turns=len(trajectory.turns),
        num_prompt_tokens=sum(len(turn.prompt_ids) for turn in trajectory.turns),
        num_reply_tokens=sum(len(turn.reply_ids) for turn in trajectory.turns),
        stop_reason=trajectory.stop_reason,
        error=trajectory.error,
    )
