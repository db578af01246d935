"""Plays episodes with a policy: the only loop over turns.

Every episode is a small state machine: reset, then prompt - reply - step until it ends for one of the reasons of
[`~taspo_trl.types.StopReason`]. Environments answer from workers of their own and only unfinished episodes generate.
Whatever goes wrong in one episode ends that episode, with its reason; the others play on.
"""

from __future__ import annotations

import functools
import math
import queue
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import Any

from ..environments.answers import admissible_actions, finite_number, messages, shown, verdict, verdict_kind, worded
from ..environments.base import ResetResult, StepResult, Traits, attribute
from ..environments.remote import EnvironmentDied
from ..environments.workers import EnvironmentPool, Worker
from ..errors import InvariantError, ServiceError
from ..generation import Engine, Generation, GenerationRequest, SteppedEngine
from ..types import StopReason, Trajectory, TrajectoryGroup, Turn
from .contexts import ChatRenderer, ConversationContext, EpisodeView, Message, PastTurn, WindowContext
from .episode import Episode, RolloutSettings
from .replies import first_unknown, reader_of
from .tasks import EpisodeSpec


_PATIENCE_SECONDS = 0.01
"""Environments that answer a step within this time are waited for before the next token, so that what is batched with
what does not depend on chance. The first that takes longer ends the wait for all, and for the rest of the rollout."""


@dataclass(frozen=True, slots=True)
class _End:
    """Why an episode is over."""

    reason: StopReason
    error: str = ""


def play_episodes(
    specs: Sequence[EpisodeSpec],
    *,
    engine: Engine,
    pool: EnvironmentPool,
    renderer: ChatRenderer,
    settings: RolloutSettings,
    max_in_flight: int | None = None,
    on_group_end: Callable[[TrajectoryGroup], None] | None = None,
    on_episode_end: Callable[[Trajectory], None] | None = None,
    instances: dict[str, Any] | None = None,
    opening: Callable[[EpisodeSpec, str, Sequence[Message]], list[Message]] | None = None,
    meanwhile: Callable[[], float] | None = None,
) -> list[Trajectory]:
    """Play all episodes to their ends.

    Args:
        specs (`Sequence[EpisodeSpec]`):
            What to play; the result has the same order.
        engine (`Engine`):
            Where replies come from; [`~taspo_trl.generation.Engine.begin`] has been called.
        pool (`EnvironmentPool`):
            Where environments live. Workers are given back, or discarded after a failure.
        max_in_flight (`int`, *optional*):
            Episodes that play at the same time; None = all.
        on_group_end (`Callable`, *optional*):
            Called in this thread with each group as soon as its last episode has ended.
        on_episode_end (`Callable`, *optional*):
            Called in this thread with each trajectory.
        instances (`dict[str, Any]`, *optional*):
            If given, the instance of a usable episode rests until its group has ended, and while `on_group_end` is
            called this holds the group's: uid -> instance.
        opening (`Callable`, *optional*):
            (episode, its family, messages) -> the messages of its first prompt, in window contexts of each prompt.
            What an evaluation agent puts in. If `None`, they stay as they are.
        meanwhile (`Callable`, *optional*):
            Called in this thread where it would only wait, for engines in other threads and for environments: does a
            short piece of other work and returns 0, or the seconds until it is to be asked again; infinite = not
            before another episode has ended. What it raises ends the rollout.

    Returns:
        `list[Trajectory]`: rewards are not yet filled in.
    """
    loop = _Loop(
        specs,
        engine,
        pool,
        renderer,
        settings,
        max_in_flight,
        on_group_end,
        on_episode_end,
        instances,
        opening,
        meanwhile,
    )
    return loop.run()


class _Loop:
    def __init__(
        self,
        specs: Sequence[EpisodeSpec],
        engine: Engine,
        pool: EnvironmentPool,
        renderer: ChatRenderer,
        settings: RolloutSettings,
        max_in_flight: int | None,
        on_group_end: Callable[[TrajectoryGroup], None] | None,
        on_episode_end: Callable[[Trajectory], None] | None,
        instances: dict[str, Any] | None,
        opening: Callable[[EpisodeSpec, str, Sequence[Message]], list[Message]] | None,
        meanwhile: Callable[[], float] | None,
    ):
        self.specs = specs
        self.engine = engine
        self.stepped = engine if isinstance(engine, SteppedEngine) and engine.is_stepped else None
        self.patience = _PATIENCE_SECONDS
        self.patient_until = 0.0
        self.last_call = self.usual_step = 0.0
        """When an environment was called last, and the seconds that their steps usually take."""
        self.pool = pool
        self.renderer = renderer
        self.settings = settings
        self.max_in_flight = max_in_flight or len(specs)
        self.on_group_end = on_group_end
        self.on_episode_end = on_episode_end
        self.instances = instances
        self.opening = opening
        self.meanwhile = meanwhile
        self.resting: dict[str, dict[str, Worker]] = {}
        """Group -> uid -> the worker that waits for the group's end."""
        self.tokenizer = renderer.tokenizer
        self.answers: queue.SimpleQueue[tuple[Episode, Future, float]] = queue.SimpleQueue()
        """(episode, future, moment of the answer)."""
        self.waiting: dict[int, tuple[Episode, Future, float]] = {}
        """Environment calls in flight: id of the episode -> (episode, future, deadline)."""
        self.unfinished: dict[str, Episode] = {}
        self.finished: dict[str, Trajectory] = {}
        self.group_sizes: dict[str, int] = {}
        self.groups: dict[str, list[Trajectory]] = {}

    def run(self) -> list[Trajectory]:
        for spec in self.specs:
            self.group_sizes[spec.group_id] = self.group_sizes.get(spec.group_id, 0) + 1
        upcoming = iter(self.specs)
        num_started = 0
        try:
            while len(self.finished) < len(self.specs):
                while num_started - len(self.finished) < self.max_in_flight and num_started < len(self.specs):
                    self._start(next(upcoming))
                    num_started += 1
                self._go_on()
                self._end_overdue()
        finally:
            for episode in self.unfinished.values():  # only after an exception, Ctrl-C included
                self.pool.discard(episode.worker)
            for workers in self.resting.values():
                for worker in workers.values():
                    self.pool.discard(worker)
        return [self.finished[spec.uid] for spec in self.specs]

    # ---- one episode -----------------------------------------------------------------------------------------------

    def _start(self, spec: EpisodeSpec) -> None:
        worker = self.pool.acquire(spec.environment)
        traits, limit = self.pool.traits[spec.environment], self.settings.max_turns
        renderer = self.renderer.for_environment(traits)
        episode = self.unfinished[spec.uid] = Episode(
            spec=spec,
            worker=worker,
            environment=self.pool.probes[spec.environment],
            traits=traits,
            contexts=self._contexts(traits, renderer),
            reader=reader_of(renderer, traits),
            max_turns=traits.max_turns if limit is None else limit,
        )
        # Arrow fills a missing value with None, which `reset` needs not know, unless it has no default for it.
        none = {name: None for name in traits.required_columns if name in spec.none_columns}
        try:
            future = worker.reset(spec.seed, {**spec.row, **none})
        except Exception as error:  # a row that cannot be copied
            self._end(episode, _End(StopReason.ENV_ERROR, worded(error)))
        else:
            self._await_environment(episode, future)

    def _contexts(self, traits: Traits, renderer: ChatRenderer) -> WindowContext | ConversationContext:
        settings, template = self.settings, traits.prompt
        window = settings.model_window - 1 if settings.model_window else None
        limits = [limit for limit in (settings.max_prompt_length, window) if limit is not None]
        max_length = min(limits) if limits else None
        if (settings.context or traits.context) == "conversation":
            return ConversationContext(renderer, template, max_length)
        length = settings.history_length
        shown = traits.history_length if length is None else length
        return WindowContext(renderer, template, shown, max_length)

    def _on_reset(self, episode: Episode, result: ResetResult) -> _End | None:
        episode.observation = result.observation
        episode.task = str(result.info.get("task") or result.observation)
        episode.family = str(result.info.get("family") or episode.spec.row.get("family") or "all")
        episode.admissible_actions = admissible_actions(result.info)
        episode.progress = finite_number(result.info.get("progress"))
        episode.messages = messages(result.info)
        if self.opening is not None:
            episode.contexts.opening = functools.partial(self.opening, episode.spec, episode.family)
        return self._ask_policy(episode)

    def _ask_policy(self, episode: Episode) -> _End | None:
        settings = self.settings
        max_new_tokens = settings.max_completion_length
        if settings.max_episode_tokens is not None:
            max_new_tokens = min(max_new_tokens, settings.max_episode_tokens - episode.num_tokens)
        if max_new_tokens < 1:
            return self._cut(episode, StopReason.MAX_EPISODE_TOKENS)
        view = EpisodeView(
            episode.task,
            episode.observation,
            episode.admissible_actions,
            tuple(
                PastTurn(t.observation, t.action, t.next_observation, t.reply_text, t.reply_ids) for t in episode.turns
            ),
            episode.messages,
        )
        episode.prompt = episode.contexts.next(view)
        if episode.prompt is None and not episode.turns:  # no turn at all: it says nothing about the policy
            limit = episode.contexts.max_length
            error = (
                f"the first prompt does not fit {limit} tokens, whatever is cut: raise `max_prompt_length` or take a "
                "model with a larger window, or shorten the environment's task and prompt"
            )
            return _End(StopReason.PROMPT_TOO_LONG, error)
        if episode.prompt is None:
            return self._cut(episode, StopReason.PROMPT_TOO_LONG)
        episode.opening = episode.opening or episode.prompt.messages
        if settings.model_window is not None:
            max_new_tokens = min(max_new_tokens, settings.model_window - len(episode.prompt.prompt_ids))
        episode.max_new_tokens = max_new_tokens
        prompt = episode.prompt
        request = GenerationRequest(prompt.prompt_ids, max_new_tokens, episode.spec.uid, prompt.messages, view)
        try:
            future = self.engine.submit(request)
        except Exception as error:
            return _End(StopReason.GENERATION_ERROR, worded(error))
        self._put_when_done(episode, future)
        return None

    def _on_reply(self, episode: Episode, generation: Generation) -> _End | None:
        if not isinstance(generation, Generation):
            return _End(StopReason.GENERATION_ERROR, f"the engine answered with {shown(generation)}, not a Generation")
        vocab_size = self.settings.vocab_size or len(self.tokenizer)
        if (at := first_unknown(generation.reply_ids, vocab_size)) is not None:
            unknown = shown(generation.reply_ids[at])
            error = f"the engine answered with the token id {unknown}; the vocabulary has {vocab_size} tokens"
            return _End(StopReason.GENERATION_ERROR, error)
        num_tokens, limit = len(generation.reply_ids), episode.max_new_tokens
        if num_tokens > limit:
            error = f"the engine answered with {num_tokens} tokens, {limit} were asked for"
            return _End(StopReason.GENERATION_ERROR, error)
        text = episode.reader.text(generation.reply_ids)
        blocks = episode.reader.blocks(text)
        episode.generation, episode.reply_text, episode.action = generation, text, ""
        try:
            fault_of, action_of = (attribute(episode.environment, name) for name in ("reply_fault", "action_of"))
            episode.fault = next(filter(None, (fault_of(text, block) for block in blocks or (None,))), "")
            episode.fault = episode.fault or ("" if blocks else episode.reader.fault(text))
            actions = [action_of(block) for block in blocks]
        except Exception as error:  # the environment's own code, like `step`
            return _End(StopReason.ENV_ERROR, worded(error))
        for action in actions:
            if not isinstance(action, str):
                return _End(StopReason.ENV_ERROR, f"`action_of` returned {shown(action)}, it must return a string")
        episode.action = "\n".join(actions)
        self._await_environment(episode, episode.worker.step(episode.action))
        return None

    def _on_step(self, episode: Episode, result: StepResult) -> _End | None:
        reward = self._reward(episode, result, "step")
        if isinstance(reward, _End):
            return reward
        is_accepted = verdict(result.info, "valid", episode.environment, default=True)
        episode.messages = messages(result.info)
        before, episode.progress = episode.progress, finite_number(result.info.get("progress"))
        gained = None if before is None or episode.progress is None else episode.progress - before
        is_valid = is_accepted and not episode.fault
        self._add_turn(episode, result.observation, is_valid, reward, episode.messages, gained)
        episode.success = verdict(result.info, "success", episode.environment, default=False)
        episode.verdict = verdict_kind(episode.verdict, result.info)
        episode.observation = result.observation
        episode.admissible_actions = admissible_actions(result.info)
        if result.terminated or result.truncated:
            ended = StopReason.FAILED if result.terminated else StopReason.ENV_TRUNCATED
            return _End(StopReason.SOLVED if episode.success else ended)
        if len(episode.turns) < episode.max_turns:
            return self._ask_policy(episode)
        return _End(StopReason.SOLVED) if episode.success else self._cut(episode, StopReason.MAX_TURNS)

    def _cut(self, episode: Episode, reason: StopReason) -> _End | None:
        """End the episode at a limit of ours, after the environment's last word if it has one."""
        if not (episode.traits.concludes and episode.turns):
            return _End(reason)
        episode.cut = reason
        self._await_environment(episode, episode.worker.conclude())
        return None

    def _on_conclusion(self, episode: Episode, result: StepResult, cut: StopReason) -> _End:
        reward = self._reward(episode, result, "conclude")
        if isinstance(reward, _End):
            return reward
        # An episode that outgrew its tokens is no success, whatever its state (StopReason.SOLVED: terminated).
        episode.success = verdict(result.info, "success", episode.environment, default=False)
        episode.verdict = verdict_kind(episode.verdict, result.info)
        return _End(StopReason.SOLVED if episode.success and cut is StopReason.MAX_TURNS else cut)

    def _reward(self, episode: Episode, result: StepResult, method: str) -> float | _End:
        """The result's reward, added to the episode's; the episode's end when it was none."""
        reward = finite_number(result.reward)
        if reward is None:
            error = f"`{method}` gave the reward {shown(result.reward)}, not a finite number"
            return _End(StopReason.REWARD_ERROR, error)
        episode.reward += reward
        return reward

    def _add_turn(
        self,
        episode: Episode,
        next_observation: str,
        is_valid: bool,
        reward: float,
        answer: tuple[Message, ...] = (),
        progress: float | None = None,
    ) -> None:
        prompt, generation = episode.prompt, episode.generation
        assert prompt is not None and generation is not None
        masks = episode.reader.masks(generation.reply_ids, episode.reply_text)
        episode.turns.append(
            Turn(
                prompt_ids=prompt.prompt_ids,
                reply_ids=generation.reply_ids,
                reply_text=episode.reply_text,
                action=episode.action,
                action_mask=tuple(masks.action),
                observation=episode.observation,
                next_observation=next_observation,
                valid=is_valid,
                reward=reward,
                splice_index=prompt.splice_index,
                finish_reason=generation.finish_reason,
                sampling_logps=generation.logps,
                prompt_cuts=prompt.cuts,
                answer=answer,
                content_mask=tuple(masks.content),
                admissible_actions=episode.admissible_actions,
                progress=progress,
            )
        )
        episode.generation = None

    def _end(self, episode: Episode, end: _End) -> None:
        spec, reason, error = episode.spec, end.reason, end.error
        self.waiting.pop(id(episode), None)
        if episode.generation is not None:  # the reply was sampled, its step never answered
            try:
                self._add_turn(episode, "", False, 0.0)
            except Exception as fault:  # a reply that cannot be read leaves no turn
                error = f"{error}; {worded(fault)}" if error else worded(fault)
        trajectory = Trajectory(
            uid=spec.uid,
            task=spec.row,
            task_text=episode.task,
            family=episode.family or str(spec.row.get("family") or "all"),
            environment=spec.environment,
            generation_idx=spec.generation_idx,
            opening=episode.opening,
            turns=tuple(episode.turns),
            stop_reason=reason,
            success=episode.success and reason is StopReason.SOLVED,
            verdict=episode.verdict,
            environment_reward=episode.reward,
            error=error,
            seconds=time.monotonic() - episode.started,
            seed=spec.seed,
        )
        if reason.is_infrastructure and reason is not StopReason.GENERATION_ERROR:
            self.pool.discard(episode.worker)  # its instance is in an unknown state
        elif self.instances is not None and trajectory.is_usable:
            self.resting.setdefault(spec.group_id, {})[spec.uid] = episode.worker
        else:
            self.pool.release(episode.worker)
        del self.unfinished[spec.uid]
        self.finished[spec.uid] = trajectory
        if self.stepped is not None:
            self.stepped.forget(spec.uid)
        if self.on_episode_end is not None:
            self.on_episode_end(trajectory)
        group = self.groups.setdefault(spec.group_id, [])
        group.append(trajectory)
        if len(group) == self.group_sizes[spec.group_id]:
            self._end_group(spec.group_id)

    def _end_group(self, group_id: str) -> None:
        members = tuple(sorted(self.groups[group_id], key=lambda member: member.generation_idx))
        if self.instances is not None:
            self.instances.update((uid, worker.instance) for uid, worker in self.resting.get(group_id, {}).items())
        if self.on_group_end is not None:
            self.on_group_end(TrajectoryGroup(group_id, members))
        if self.instances is not None:
            self.instances.clear()
        for worker in self.resting.pop(group_id, {}).values():
            self.pool.release(worker)

    # ---- waiting ---------------------------------------------------------------------------------------------------

    def _await_environment(self, episode: Episode, future: Future) -> None:
        now = time.monotonic()
        self.waiting[id(episode)] = (episode, future, now + self.settings.environment_timeout)
        self.patient_until = now + self.patience if self.patience else 0.0
        self.last_call = now
        self._put_when_done(episode, future)

    def _put_when_done(self, episode: Episode, future: Future) -> None:
        future.add_done_callback(lambda done: self.answers.put((episode, done, time.monotonic())))

    def _go_on(self) -> None:
        """Take what has arrived, or have the engine work, or wait."""
        if self.stepped is None:
            if not self.waiting:
                self.engine.flush()
            self._wait()
            return
        patience = max(0.0, self.patient_until - time.monotonic()) if self.waiting else 0.0
        if self._handle_answers(patience):
            return
        if patience and any(episode.generation is not None for episode, _, _ in self.waiting.values()):
            self.patience = self.patient_until = 0.0
        if not self.stepped.step():
            self._wait()

    def _wait(self) -> None:
        """Wait for an answer, or do a piece of other work and take what has arrived in its time."""
        again = math.inf
        if self.meanwhile is not None:
            # What a quick environment answers would else wait for the end of a piece, after each of its steps.
            is_quick = bool(self.waiting) and self.usual_step <= _PATIENCE_SECONDS
            moment = max(0.0, self.last_call + _PATIENCE_SECONDS - time.monotonic()) if is_quick else 0.0
            if self._handle_answers(moment):
                return
            again = self.meanwhile()
        limits = [one for one in (self._seconds_to_deadline(), again) if one is not None and one < math.inf]
        self._handle_answers(min(limits, default=None))

    def _handle_answers(self, timeout: float | None) -> bool:
        """Take what has arrived, after waiting for a first answer; whether there was any."""
        try:
            arrived = [self.answers.get(block=timeout != 0, timeout=timeout)]
        except queue.Empty:
            return False
        # Not "until empty": fast answers would put off the deadlines.
        arrived += [self.answers.get_nowait() for _ in range(self.answers.qsize())]
        for episode, future, moment in arrived:
            self._handle(episode, future, moment)
        return True

    def _handle(self, episode: Episode, future: Future, moment: float) -> None:
        call = self.waiting.get(id(episode))
        if call is not None and call[1] is future:
            del self.waiting[id(episode)]
            if episode.generation is not None:  # a step, not a reset
                seconds = moment - (call[2] - self.settings.environment_timeout)
                self.usual_step += (seconds - self.usual_step) / 10
        elif episode.spec.uid in self.finished:
            return  # a late answer of an episode that was given up
        try:
            end = self._advance(episode, future, is_environment=call is not None)
        except InvariantError:
            raise
        except Exception as error:  # the episode's own: its prompt, its reply, what its environment answered
            reason = StopReason.ENV_ERROR if call is not None else StopReason.GENERATION_ERROR
            end = _End(reason, worded(error))
        if end is not None:
            self._end(episode, end)

    def _advance(self, episode: Episode, future: Future[Any], is_environment: bool) -> _End | None:
        """Take an answer; why the episode is over, or None when it plays on."""
        error = CancelledError("the request was cancelled") if future.cancelled() else future.exception()
        if isinstance(error, KeyboardInterrupt | SystemExit):  # meant for the program, wherever they were raised
            raise error
        if error is not None:
            return _End(_reason_of(error, is_environment), worded(error))
        result = future.result()
        if not is_environment:
            return self._on_reply(episode, result)
        if isinstance(result, ResetResult):
            return self._on_reset(episode, result)
        if episode.cut is None:
            return self._on_step(episode, result)
        return self._on_conclusion(episode, result, episode.cut)

    def _seconds_to_deadline(self) -> float | None:
        if not self.waiting:
            return None
        return max(0.0, min(deadline for _, _, deadline in self.waiting.values()) - time.monotonic())

    def _end_overdue(self) -> None:
        now = time.monotonic()
        for episode, future, deadline in list(self.waiting.values()):
            if now >= deadline and not future.done():
                limit = self.settings.environment_timeout
                self._end(episode, _End(StopReason.ENV_TIMEOUT, f"no answer within environment_timeout={limit} s"))


def _reason_of(error: BaseException, is_environment: bool) -> StopReason:
    if not is_environment:
        return StopReason.GENERATION_ERROR
    if isinstance(error, ServiceError):
        return StopReason.SERVICE_ERROR
    return StopReason.ENV_DIED if isinstance(error, EnvironmentDied) else StopReason.ENV_ERROR
