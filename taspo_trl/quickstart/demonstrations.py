"""Flawed demonstrations of the household world, which warm-start a tiny policy and leave it something to learn.

Most demonstrations of clean, heat and cool tasks skip the tool, and some turns are random or invalid (shown as
history, never imitated). Half of the episodes come with guidance in the prompt, and a player who sees the hidden world
does what the block says, from wherever a random turn has left it: only so does the policy learn that a block says
something about the next action. In some of these episodes the block is about another task, and the player plays as if
there was none: the policy is to read a block, not to obey it. Everything follows from a seed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..environments.household import HouseholdEnvironment, SearchingOracle
from ..environments.household.oracle import plan
from ..guidance.block import Composer
from ..imitation.demonstration import Demonstration
from ..imitation.hints import PER_TURN, WHOLE, Step, consequence_text, drawn, solution_text, verdict_text
from ..rollout.contexts import ChatRenderer, EpisodeView, PastTurn, WindowContext
from ..rows import insert_block


@dataclass(frozen=True)
class DemonstrationSettings:
    """How flawed the demonstrations are.

    Args:
        preset (`str`, *optional*, defaults to `"small"`):
            Household preset.
        careless_share (`float`, *optional*, defaults to `0.7`):
            Of the clean, heat and cool episodes without guidance: skip the tool.
        noise_share (`float`, *optional*, defaults to `0.12`):
            Of the turns: a random or invalid action instead of the player's.
        guided_share (`float`, *optional*, defaults to `0.5`):
            Of the episodes: a block in the prompt.
        per_turn_share (`float`, *optional*, defaults to `0.2`):
            Of the guided episodes: a block for each turn, about what the turn's action leads to.
        wrong_share (`float`, *optional*, defaults to `0.2`):
            Of the guided episodes: the block of another task, and play as without one.
        verdict_share (`float`, *optional*, defaults to `0.1`):
            Of the other guided episodes: a verdict in front, and careful play if it is good, careless play if not.
    """

    preset: str = "small"
    careless_share: float = 0.7
    noise_share: float = 0.12
    guided_share: float = 0.5
    per_turn_share: float = 0.2
    wrong_share: float = 0.2
    verdict_share: float = 0.1


_INVALID = ("take", "open the door", "go to", "")


def demonstrations(
    tokenizer: Any, num_turns: int, seed: int = 0, settings: DemonstrationSettings | None = None
) -> Iterator[Demonstration]:
    """At least `num_turns` turns to imitate, from training tasks in order.

    Args:
        tokenizer:
            Reads the household's phrases.
        num_turns (`int`):
            Stop at the end of the episode that reaches it.
        seed (`int`, *optional*, defaults to `0`):
            Decides everything that is random.
        settings (`DemonstrationSettings`, *optional*):
            How flawed they are.
    """
    settings = settings or DemonstrationSettings()
    teacher = _Teacher(settings, tokenizer, random.Random(seed))
    end = (tokenizer.eos_token_id,)
    made, index = 0, 0
    while made < num_turns:
        for prompt_ids, action in teacher.episode(index):
            reply = tokenizer.encode(f"<action>{action}</action>", add_special_tokens=False)
            yield Demonstration(prompt_ids, (*reply, *end))
            made += 1
        index += 1


@dataclass(frozen=True)
class _Block:
    """What stands in the prompts of an episode, and how it is played."""

    text: str = ""
    per_turn: str = ""
    """Wording of the blocks of single turns."""
    follows: bool = False
    is_careless: bool = False


class _Teacher:
    """Plays the episodes."""

    def __init__(self, settings: DemonstrationSettings, tokenizer: Any, rng: random.Random):
        self.settings, self.rng = settings, rng
        self.environment = HouseholdEnvironment(settings.preset)
        self.aside = HouseholdEnvironment(settings.preset)
        self.renderer, self.composer = ChatRenderer(tokenizer), Composer(tokenizer)

    def episode(self, index: int) -> Iterator[tuple[tuple[int, ...], str]]:
        """(prompt ids, action) of the turns of one episode that are worth imitating."""
        rng, environment = self.rng, self.environment
        start = environment.reset(seed=0, preset=self.settings.preset, split="train", index=index)
        block = self._block(index)
        searching = SearchingOracle(careless=block.is_careless, seed=rng.randrange(2**31))
        admissible = start.info["admissible_actions"]
        searching.begin(start.info["task"], start.observation, admissible)
        context = WindowContext(self.renderer, environment.prompt, environment.history_length)
        observation = start.observation
        history: list[PastTurn] = []
        while True:
            view = EpisodeView(start.info["task"], observation, tuple(admissible), tuple(history))
            prompt = context.next(view)
            assert prompt is not None and prompt.splice_index is not None
            if not block.follows and searching.believes_done:
                return  # a careless player stops here, believing that the task is done
            action, is_noise = self._choose(searching, block), False
            if rng.random() < self.settings.noise_share:
                action, is_noise = rng.choice([rng.choice(admissible), rng.choice(_INVALID)]), True
            result = environment.step(action)
            later = result.info["admissible_actions"]
            if not is_noise:
                text = block.text
                if block.per_turn:
                    others = [one for one in admissible if one != action]
                    text = consequence_text(block.per_turn, action, result.observation, later, others, rng)
                ids = self.composer.block(text)
                yield insert_block(prompt.prompt_ids, prompt.splice_index, ids), action
            history.append(PastTurn(observation, action, result.observation, "", ()))
            observation, admissible = result.observation, later
            if result.terminated or result.truncated:
                return
            searching.note(action, observation, admissible)

    def _choose(self, searching: SearchingOracle, block: _Block) -> str:
        if not block.follows:
            return searching.choose()
        world = self.environment.world
        assert world is not None
        return plan(world)[0]

    def _block(self, index: int) -> _Block:
        settings, rng = self.settings, self.rng
        careless = rng.random() < settings.careless_share
        if rng.random() >= settings.guided_share:
            return _Block(is_careless=careless)
        if rng.random() < settings.per_turn_share:
            return _Block(per_turn=drawn(rng, PER_TURN), follows=rng.random() < 0.5, is_careless=careless)
        is_wrong = rng.random() < settings.wrong_share
        text = self._solution(index + rng.randrange(1, 997) if is_wrong else index)
        verdict = rng.random() < settings.verdict_share
        if is_wrong:
            return _Block(text, is_careless=careless)
        if not verdict:
            return _Block(text, follows=True)
        if careless:
            return _Block(verdict_text(False), is_careless=True)
        return _Block(f"{verdict_text(True)}\n{text}", follows=True)

    def _solution(self, index: int) -> str:
        """A task's shortest solution, told."""
        start = self.aside.reset(seed=0, preset=self.settings.preset, split="train", index=index)
        world = self.aside.world
        assert world is not None
        steps = [Step(action, self.aside.step(action).observation) for action in plan(world)]
        return solution_text(drawn(self.rng, WHOLE), start.info["task"], steps, self.rng)
