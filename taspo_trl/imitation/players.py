"""Who plays episodes in place of the policy: an oracle, chance, a function, a chat model, or recorded replies.

A player is asked for each turn through [`PlayerEngine`], which the rollout loop takes for an engine: prompts, limits
and verdicts are those of training, whoever plays.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..analyzer.llm.player import LiteLLMPlayer
from ..environments.answers import shown
from ..environments.base import Traits, call
from ..errors import ConfigurationError, ReplayError, ServiceError
from ..generation import Generation, GenerationRequest, SamplingSettings
from ..rollout.contexts import PastTurn
from ..rollout.plans import knows_plans
from ..rollout.tasks import EpisodeSpec
from ..rollout.templates import ChatRenderer
from ..seeds import derive_seed
from ..types import FinishReason


REPLY_FORMAT = "<action>{action}</action>"


def reply_format_of(traits: Traits) -> str:
    """A reply around an action in the first tag of an environment: `<action>{action}</action>`.

    Where there are tools, a player writes whole replies: calls, and the answer without one that ends an episode.
    """
    if traits.tools:
        return "{action}"
    tag = traits.action_tags[0]
    return f"<{tag}>{{action}}</{tag}>"


@dataclass(frozen=True, slots=True)
class PlayerTurn:
    """What a player sees of one turn."""

    uid: str
    """Of the episode."""
    row: Mapping[str, Any]
    """The task's row, without None values."""
    seed: int
    """What `reset` was given."""
    play: int
    """Which play of the task this is, from 0."""
    task: str
    observation: str
    admissible_actions: tuple[str, ...] | None
    """None where the environment lists nothing."""
    history: tuple[PastTurn, ...]
    """The turns before this one."""
    messages: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    """The chat that the policy is prompted with at this turn."""


class Player(Protocol):
    """What recording needs from a player."""

    name: str
    """Stands in the recording, which belongs to one player; holds no key."""
    num_workers: int
    """Turns that may be asked for at the same time; 1 = in one thread."""

    def reply(self, turn: PlayerTurn) -> str:
        """The whole reply, tags included.

        Raises:
            ServiceError: the player cannot answer; the episode is played again by the next run.
        """

    def ended(self, uid: str) -> None:
        """An episode is over."""

    def close(self) -> None:
        """Free what is held. May be called twice."""


class _Stateless:
    """A player that holds nothing for an episode."""

    def ended(self, uid: str) -> None:
        pass

    def close(self) -> None:
        pass


class FunctionPlayer(_Stateless):
    """
    A function as a player.

    Args:
        function (`Callable`):
            [`PlayerTurn`] -> an action, which is put into `reply_format`, or a whole reply, which holds the action's
            opening tag or a tool call.
        name (`str`, *optional*):
            If `None`, the function's own.
        reply_format (`str`, *optional*, defaults to `"<action>{action}</action>"`):
            A reply around an action. With a prompt that asks for thoughts, for example
            `"<think>I follow my plan.</think>\\n<action>{action}</action>"`.
    """

    num_workers = 1

    def __init__(
        self, function: Callable[[PlayerTurn], str], name: str | None = None, reply_format: str = REPLY_FORMAT
    ):
        if "{action}" not in reply_format:
            raise ConfigurationError(f"`reply_format` must hold {{action}}, got {reply_format!r}.")
        self.name = str(name or getattr(function, "__qualname__", repr(function)))
        self._function = function
        self._format = reply_format
        self._opening = reply_format.partition("{action}")[0].rpartition("<")[2]

    def reply(self, turn: PlayerTurn) -> str:
        said = self._function(turn)
        if not isinstance(said, str):
            raise ConfigurationError(f"The player {self.name} answered with {shown(said)}; it must return a string.")
        is_whole = f"<{self._opening}" in said or "<tool_call>" in said
        return said if is_whole else self._format.replace("{action}", said)


class OraclePlayer:
    """
    The environment's own plans as a player: `oracle_plan()`, asked again before each turn.

    Each episode has a second instance of its environment, with the same row and seed, which stands where the episode
    stands; a world whose instances differ cannot be played so, and its episodes end with that reason.

    Args:
        factory (`Callable`):
            Makes an instance of the environment.
        reply_format (`str`, *optional*, defaults to `"<action>{action}</action>"`):
            As in [`FunctionPlayer`].

    Raises:
        ConfigurationError: the environment knows no plans.
    """

    name, num_workers = "oracle", 1

    def __init__(self, factory: Callable[[], Any], reply_format: str = REPLY_FORMAT):
        probe = factory()
        probe.close()
        if not knows_plans(probe):
            raise ConfigurationError(
                f"`{type(probe).__name__}` has no `oracle_plan()`, so no oracle can play it. Give the class one, or "
                "take a function or a model as the player."
            )
        self._factory = factory
        self._wrapped = FunctionPlayer(self._action, self.name, reply_format)
        self._worlds: dict[str, Any] = {}
        self._idle: list[Any] = []

    def reply(self, turn: PlayerTurn) -> str:
        return self._wrapped.reply(turn)

    def _action(self, turn: PlayerTurn) -> str:
        if not turn.history:
            self._worlds[turn.uid] = self._idle.pop() if self._idle else self._factory()
            told = call(self._worlds[turn.uid], "reset", {**turn.row, "seed": turn.seed})
        else:
            told = call(self._worlds[turn.uid], "step", {"action": turn.history[-1].action})
        if told.observation != turn.observation:
            raise ReplayError(
                f"A second instance of the environment answers {told.observation[:120]!r} where the episode has "
                f"{turn.observation[:120]!r}: with the same row and seed it must be the same game."
            )
        plan = self._worlds[turn.uid].oracle_plan()
        if not plan:
            raise ReplayError("The environment knows no plan from this state.")
        return plan[0]

    def ended(self, uid: str) -> None:
        if uid in self._worlds:
            self._idle.append(self._worlds.pop(uid))

    def close(self) -> None:
        for world in (*self._worlds.values(), *self._idle):
            world.close()
        self._worlds, self._idle = {}, []


_BLANK = re.compile(r"(?<=\[)<[^<>\n]+>(?=\])")


class RandomPlayer(_Stateless):
    """
    Any of the actions that the environment lists, each as likely as the others.

    A choice is a function of the episode's seed, the number of the play and the turn: the same from run to run,
    whatever is played beside it or before it. A form among the actions, such as WebShop's `search[<your keywords>]`,
    is filled in with the task's words.

    Args:
        environment (`str`):
            How messages name the environment.
        reply_format (`str`, *optional*, defaults to `"<action>{action}</action>"`):
            As in [`FunctionPlayer`].

    Raises:
        ConfigurationError: from `reply`, the environment lists no admissible actions when an episode begins.
    """

    name, num_workers = "random", 1

    def __init__(self, environment: str, reply_format: str = REPLY_FORMAT):
        self._environment = environment
        self._wrapped = FunctionPlayer(self._action, self.name, reply_format)

    def reply(self, turn: PlayerTurn) -> str:
        return self._wrapped.reply(turn)

    def _action(self, turn: PlayerTurn) -> str:
        actions = turn.admissible_actions
        if actions is None and not turn.history:
            raise ConfigurationError(
                f"The environment {self._environment} lists no admissible actions, so nobody can draw one of them. "
                'Let `reset` and `step` give them in `info["admissible_actions"]`, or take a function as the player.'
            )
        if not actions:
            raise ReplayError("The environment lists no admissible action in this state.")
        chosen = actions[derive_seed("random player", turn.seed, turn.play, len(turn.history)) % len(actions)]
        words = " ".join(re.sub(r"[<>\[\]]", " ", turn.task).split())
        return _BLANK.sub(lambda _: words, chosen)


class LiteLLMChatPlayer(_Stateless):
    """
    A chat model behind LiteLLM as a player: it gets the messages of the policy's own prompts.

    Args:
        player ([`~taspo_trl.analyzer.llm.player.LiteLLMPlayer`]):
            The model; its cache keeps every reply that was paid for.
        num_workers (`int`, *optional*, defaults to `4`):
            Requests in flight.
    """

    def __init__(self, player: LiteLLMPlayer, num_workers: int = 4):
        self.name, self.num_workers = player.name, num_workers
        self.player = player

    def reply(self, turn: PlayerTurn) -> str:
        answer = self.player.reply(turn.messages, turn.play)
        if answer.error:
            raise ServiceError(f"{self.name} did not answer ({answer.error})")
        return answer.text

    def close(self) -> None:
        self.player.close()


class RecordedReplies(_Stateless):
    """What a recorded episode's policy said, as a player: uid -> its replies."""

    name, num_workers = "recorded", 1

    def __init__(self, replies: Mapping[str, Sequence[str]]):
        self._replies = replies

    def reply(self, turn: PlayerTurn) -> str:
        replies = self._replies[turn.uid]
        if len(turn.history) >= len(replies):
            raise ReplayError("The episode goes on where the recorded one ended.")
        return replies[len(turn.history)]


class PlayerEngine:
    """A player as the rollout loop's engine: a reply is tokenized for the policy that is to learn it.

    Args:
        player (`Player`):
            Who plays. What it raises other than a [`~taspo_trl.errors.ServiceError`] or a failed replay is a mistake
            of the program, kept in `fault`: nobody is asked any more, and the caller raises it.
        renderer (`ChatRenderer`):
            The policy's chat.
        traits (`Mapping[str | None, Traits]`):
            Of the environments, as their pool has them.
        specs (`Sequence[EpisodeSpec]`):
            The episodes that are played.
    """

    def __init__(
        self,
        player: Player,
        renderer: ChatRenderer,
        traits: Mapping[str | None, Traits],
        specs: Sequence[EpisodeSpec],
    ):
        self.fault: BaseException | None = None
        self._player = player
        self._renderers = {name: renderer.for_environment(one) for name, one in traits.items()}
        self._specs = {spec.uid: spec for spec in specs}
        self._ends = renderer.end_tokens()[0][:1] or [renderer.tokenizer.eos_token_id]
        self._executor = ThreadPoolExecutor(player.num_workers, thread_name_prefix="taspo-player")
        self._closed = threading.Event()

    def begin(self, sampling: SamplingSettings, seed: int) -> None:
        """Players sample for themselves."""

    def submit(self, request: GenerationRequest) -> Future[Generation]:
        return self._executor.submit(self._generation, request)

    def flush(self) -> None:
        """Replies come as they are made."""

    def close(self) -> None:
        self._closed.set()
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _generation(self, request: GenerationRequest) -> Generation:
        if self.fault is not None or self._closed.is_set():
            raise ServiceError("the player is not asked any more")
        spec, view = self._specs[request.episode_uid], request.view
        turn = PlayerTurn(
            uid=spec.uid,
            row=spec.row,
            seed=spec.seed,
            play=spec.generation_idx,
            task=view.task,
            observation=view.observation,
            admissible_actions=view.admissible_actions,
            history=view.history,
            messages=request.messages,
        )
        try:
            text = self._player.reply(turn)
        except (ServiceError, ReplayError):
            raise
        except Exception as error:
            self.fault = self.fault or error
            raise
        renderer = self._renderers[spec.environment]
        ids = renderer.encode(renderer.written(text))  # a text cannot spell end and role tokens
        if len(ids) >= request.max_new_tokens:
            return Generation(tuple(ids[: request.max_new_tokens]), FinishReason.LENGTH)
        return Generation((*ids, *self._ends), FinishReason.STOP)
