"""Flawed demonstrations of the household world, which warm-start a tiny policy and leave it something to learn.

Most demonstrations of clean, heat and cool tasks skip the tool, some turns are random or invalid (shown as history,
never imitated), and some episodes come with guidance in the prompt and then follow it, so that the policy can read
guidance at all. Everything follows from a seed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..environments.household import HouseholdEnvironment, SearchingOracle, solve
from ..guidance.block import Composer
from ..rollout.contexts import ChatRenderer, EpisodeView, PastTurn, WindowContext
from ..rows import insert_block


@dataclass(frozen=True)
class DemonstrationSettings:
    """How flawed the demonstrations are.

    Args:
        preset (`str`, *optional*, defaults to `"small"`):
            Household preset.
        careless_share (`float`, *optional*, defaults to `0.7`):
            Of the clean, heat and cool episodes: skip the tool.
        noise_share (`float`, *optional*, defaults to `0.12`):
            Of the turns: a random or invalid action instead of the oracle's.
        guided_share (`float`, *optional*, defaults to `0.3`):
            Of the episodes: guidance in the prompt, and careful play.
    """

    preset: str = "small"
    careless_share: float = 0.7
    noise_share: float = 0.12
    guided_share: float = 0.3


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One turn to imitate."""

    prompt_ids: tuple[int, ...]
    reply_ids: tuple[int, ...]


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
    rng = random.Random(seed)
    environment = HouseholdEnvironment(settings.preset)
    renderer, composer = ChatRenderer(tokenizer), Composer(tokenizer)
    end = (tokenizer.eos_token_id,)
    made, index = 0, 0
    while made < num_turns:
        row = {"preset": settings.preset, "split": "train", "index": index}
        for turn in _episode(environment, row, rng, settings, renderer, composer):
            reply = tokenizer.encode(f"<action>{turn[1]}</action>", add_special_tokens=False)
            yield Demonstration(turn[0], (*reply, *end))
            made += 1
        index += 1


def _episode(
    environment: HouseholdEnvironment,
    row: dict[str, Any],
    rng: random.Random,
    settings: DemonstrationSettings,
    renderer: ChatRenderer,
    composer: Composer,
) -> Iterator[tuple[tuple[int, ...], str]]:
    """(prompt ids, action) of the turns of one episode that are worth imitating."""
    start = environment.reset(seed=0, **row)
    is_guided = rng.random() < settings.guided_share
    is_careless = not is_guided and rng.random() < settings.careless_share
    block = composer.block(_hints(row, rng)) if is_guided else ()
    oracle = SearchingOracle(careless=is_careless, seed=rng.randrange(2**31))
    admissible = start.info["admissible_actions"]
    oracle.begin(start.info["task"], start.observation, admissible)
    context = WindowContext(renderer, environment.prompt, environment.history_length)
    observation = start.observation
    history: list[PastTurn] = []
    while True:
        view = EpisodeView(start.info["task"], observation, tuple(admissible), tuple(history))
        prompt = context.next(view)
        assert prompt is not None and prompt.splice_index is not None
        action, is_noise = oracle.choose(), False
        if oracle.believes_done:
            return  # a careless player stops here, believing that the task is done
        if rng.random() < settings.noise_share:
            action, is_noise = rng.choice([rng.choice(admissible), rng.choice(_INVALID)]), True
        if not is_noise:
            yield insert_block(prompt.prompt_ids, prompt.splice_index, block), action
        result = environment.step(action)
        history.append(PastTurn(observation, action, result.observation, "", ()))
        observation, admissible = result.observation, result.info["admissible_actions"]
        if result.terminated or result.truncated:
            return
        oracle.note(action, observation, admissible)


def _hints(row: dict[str, Any], rng: random.Random) -> str:
    """Lines as an analyzer would write them: some or all actions of a short solution, in order."""
    actions = [action for action in solve(row) if not action.startswith("go to") or rng.random() < 0.5]
    kept = [action for action in actions if rng.random() < 0.85] or actions[-1:]
    return "\n".join(f"- {action}" for action in kept)
