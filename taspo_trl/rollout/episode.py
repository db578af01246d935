"""What bounds an episode, and the state of one that is being played."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from ..environments.base import Traits
from ..environments.workers import Worker
from ..generation import Generation
from ..types import StopReason, Turn
from .contexts import Context, ConversationContext, Message, WindowContext
from .replies import ReplyReader
from .tasks import EpisodeSpec


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """What bounds an episode and how it is prompted. None = no limit beyond the environment's and the model's own.

    Args:
        context (`str`, *optional*):
            `"window"` or `"conversation"`; None takes the environment's.
        history_length (`int`, *optional*):
            Past turns shown in window contexts; None takes the environment's.
        max_turns (`int`, *optional*):
            Turns of an episode; None takes the environment's.
        max_completion_length (`int`, *optional*, defaults to `512`):
            Tokens of one reply.
        max_episode_tokens (`int`, *optional*):
            Reply tokens of an episode.
        max_prompt_length (`int`, *optional*):
            Tokens of one prompt.
        model_window (`int`, *optional*):
            Positions of the model: prompt + reply.
        vocab_size (`int`, *optional*):
            Token ids that the model knows, of which an engine's replies may consist; None takes the tokenizer's.
        environment_timeout (`float`, *optional*, defaults to `60.0`):
            Seconds that one `reset` or `step` may take.
    """

    context: str | None = None
    history_length: int | None = None
    max_turns: int | None = None
    max_completion_length: int = 512
    max_episode_tokens: int | None = None
    max_prompt_length: int | None = None
    model_window: int | None = None
    vocab_size: int | None = None
    environment_timeout: float = 60.0


@dataclass
class Episode:
    """The state of one unfinished episode."""

    spec: EpisodeSpec
    worker: Worker
    environment: Any
    """The probe in this process: `reply_fault` and `action_of` only."""
    traits: Traits
    contexts: WindowContext | ConversationContext
    reader: ReplyReader
    max_turns: int
    started: float = field(default_factory=time.monotonic)
    task: str = ""
    family: str = ""
    observation: str = ""
    admissible_actions: tuple[str, ...] | None = None
    progress: float | None = None
    messages: tuple[Message, ...] = ()
    opening: tuple[Message, ...] = ()
    turns: list[Turn] = field(default_factory=list)
    reward: float = 0.0
    success: bool = False
    verdict: str = ""
    prompt: Context | None = None
    max_new_tokens: int = 0
    """What the engine was asked for with `prompt`."""
    generation: Generation | None = None
    reply_text: str = ""
    action: str = ""
    fault: str = ""
    cut: StopReason | None = None
    """The limit that ended the episode, while the environment is asked for its last word."""

    @property
    def num_tokens(self) -> int:
        return sum(len(turn.reply_ids) for turn in self.turns)
