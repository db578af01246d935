"""A world whose values are known in closed form: win by doing the right thing every time."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from taspo_trl.environments.base import ResetResult, StepResult, TextEnvironment
from taspo_trl.environments.workers import EnvironmentPool
from taspo_trl.generation import SamplingSettings
from taspo_trl.rollout.contexts import ChatRenderer
from taspo_trl.rollout.loop import RolloutSettings, play_episodes
from taspo_trl.rollout.tasks import plan_groups
from tests.playing import ScriptedPolicy
from tests.tokenizers import byte_bpe


LENGTH = 3
CARE = 0.7
"""How often the random policy goes right."""


class Corridor(TextEnvironment):
    """Three doors: "right" opens the next one, "left" leads astray for good. Won after three times right.

    Under a policy that goes right with probability p: V before turn t is p ** (3 - t) on the way, and 0 astray. The
    plan from turn t is "right" as often as doors are left; astray there is none, and `info["progress"]` tells that.
    """

    max_turns = LENGTH
    mood = ""

    def reset(self, *, seed: int, **row: Any) -> ResetResult:
        self.turn, self.is_astray = 0, False
        return ResetResult(f"door 0{self.mood}", {"task": "Walk.", "progress": 0.0})

    def step(self, action: str) -> StepResult:
        self.turn += 1
        self.is_astray |= action != "right"
        is_over = self.turn == LENGTH
        is_won = is_over and not self.is_astray
        info = {"success": is_won, "progress": -5.0 if self.is_astray else float(self.turn)}
        observation = "astray" if self.is_astray else f"door {self.turn}{self.mood}"
        return StepResult(observation, float(is_won), is_over, False, info)


class Planned(Corridor):
    """The same with an oracle, which knows nothing astray."""

    def oracle_plan(self) -> list[str] | None:
        return None if self.is_astray else ["right"] * (LENGTH - self.turn)


class Quiet(Planned):
    """Tells progress by its plans alone."""

    def reset(self, *, seed: int, **row: Any) -> ResetResult:
        return ResetResult(super().reset(seed=seed, **row).observation)

    def step(self, action: str) -> StepResult:
        answer = super().step(action)
        return replace(answer, info={"success": answer.info["success"]})


class Moody(Corridor):
    """The same in other words each time that it is made."""

    count = 0

    def __init__(self) -> None:
        Moody.count += 1
        self.mood = f" of mood {Moody.count}"


class RandomPolicy(ScriptedPolicy):
    """Goes right with probability CARE, drawn from the seed it begins with, whatever the order of the requests."""

    def __init__(self, tokenizer: Any, care: float = CARE):
        super().__init__(tokenizer, self._draw)
        self.care = care

    def begin(self, sampling: SamplingSettings, seed: int) -> None:
        super().begin(sampling, seed)
        self.seed = seed

    def _draw(self, uid: str, turn: int) -> str:
        goes_right = random.Random(f"{self.seed} {uid} {turn}").random() < self.care
        return f"<action>{'right' if goes_right else 'left'}</action>"


def value(t: int, actions: list[str], care: float = CARE) -> float:
    """V before turn t of an episode with these actions."""
    return care ** (LENGTH - t) if all(action == "right" for action in actions[:t]) else 0.0


class Play:
    """Everything that playing needs, with the keywords of `play_values`."""

    def __init__(self, world: Any = Corridor):
        tokenizer = byte_bpe()
        self.arguments: dict[str, Any] = {
            "engine": RandomPolicy(tokenizer),
            "pool": EnvironmentPool({None: world}),
            "renderer": ChatRenderer(tokenizer),
            "rollout": RolloutSettings(),
            "sampling": SamplingSettings(),
        }

    def __enter__(self) -> Play:
        return self

    def __exit__(self, *error: Any) -> None:
        self.arguments["pool"].close()

    def episodes(self, number: int, seed: int = 0) -> list[Any]:
        given = self.arguments
        given["engine"].begin(given["sampling"], seed)
        specs = plan_groups([{"task_id": "walk"}], number, seed, 0, prefix="r0")
        return play_episodes(
            specs, engine=given["engine"], pool=given["pool"], renderer=given["renderer"], settings=given["rollout"]
        )
