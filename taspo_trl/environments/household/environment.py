"""HouseholdEnvironment: the embedded text world, played through `reset` and `step`."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, Literal

from ...errors import ConfigurationError, EnvironmentContractError
from ..base import ResetResult, StepResult, TextEnvironment
from ..examples import WorkedExample, builtin_examples, of_family
from .catalogue import FAMILIES, PRESETS
from .oracle import plan
from .tasks import DEFAULT_SIZES, capacity, check_preset, check_split, family_of, make_task, task_id
from .wording import (
    GENERIC_SKILLS,
    NOTHING_HAPPENS,
    action_text,
    check_reply_format,
    outcome_text,
    prompt_template,
    scene_text,
    task_text,
)
from .world import Action, World


class HouseholdEnvironment(TextEnvironment):
    """A household in text: find things, clean, heat or cool them, and put them where the task says.

    Six families: `pick` (put a thing somewhere), `look` (examine it under a lit lamp), `clean`, `heat`, `cool` (put it
    somewhere in that condition) and `two` (put two of a kind in one place). An action that is not among the admissible
    ones is answered "Nothing happens.", costs a turn and changes nothing; case and surplus white space do not matter.
    The reward is 1.0 when the goal holds, which ends the episode, and 0.0 otherwise.

    Args:
        preset (`str`, *optional*, defaults to `"standard"`):
            Preset of rows that name none: `"standard"` (8 to 14 receptacles, 30 turns) or `"small"` (5 receptacles,
            4 things, 12 turns). It also decides `max_turns` until the first `reset`.
        reply_format (`str`, *optional*, defaults to `"action"`):
            What the prompt asks for: `"action"` (an action only) or `"think"` (reasoning in `<think>` tags before it).
        history_length (`int`, *optional*, defaults to `2`):
            Window contexts: how many past turns the prompt shows.
    """

    def __init__(
        self,
        preset: str = "standard",
        *,
        reply_format: Literal["action", "think"] = "action",
        history_length: int = 2,
    ) -> None:
        check_preset(preset)
        check_reply_format(reply_format)
        self.preset = preset
        self.prompt = prompt_template(reply_format)
        self.history_length = history_length
        self.max_turns = PRESETS[preset].max_turns
        self.world: World | None = None
        """The hidden state; None before the first `reset`."""
        self._choices: dict[str, Action] = {}
        self._turns_taken = 0
        self._is_over = True

    def reset(  # type: ignore[override]
        self, *, seed: int = 0, split: str, index: int, preset: str | None = None, **row: Any
    ) -> ResetResult:
        """Start the task that a dataset row names.

        Args:
            seed (`int`, *optional*, defaults to `0`):
                Without effect: (`preset`, `split`, `index`) alone decide the world, and nothing in it is random.
            split (`str`):
                `"train"`, `"valid_seen"` or `"valid_unseen"`.
            index (`int`):
                Number of the task within the split.
            preset (`str`, *optional*):
                Defaults to the instance's preset.
            row:
                Further columns, which are ignored.
        """
        task = make_task(preset if preset is not None else self.preset, split, index)
        self.max_turns = PRESETS[task.preset].max_turns
        self.world = World(task)
        self._turns_taken = 0
        self._is_over = False
        self._offer_choices(self.world)
        info = {
            "task": task_text(task.goal),
            "family": task.goal.family,
            "admissible_actions": list(self._choices),
            "task_id": task.task_id,
            "progress": self._progress(self.world),
        }
        return ResetResult(scene_text(self.world), info)

    def step(self, action: str) -> StepResult:
        """Do `action` when it is admissible now."""
        world = self.world
        if world is None or self._is_over:
            raise EnvironmentContractError(
                "`HouseholdEnvironment.step` needs an episode under way: call `reset` first, and again after an "
                "episode has ended."
            )
        self._turns_taken += 1
        chosen = self._choices.get(" ".join(action.lower().split()))
        if chosen is None:
            observation = NOTHING_HAPPENS
        else:
            world.apply(chosen)
            observation = outcome_text(chosen, world)
            self._offer_choices(world)
        success = world.is_solved()
        truncated = not success and self._turns_taken >= self.max_turns
        self._is_over = success or truncated
        info = {
            "admissible_actions": list(self._choices),
            "valid": chosen is not None,
            "success": success,
            "progress": self._progress(world),
        }
        return StepResult(observation, float(success), success, truncated, info)

    def _progress(self, world: World) -> float:
        """Minus the length of the oracle's plan."""
        return 0.0 if world.is_solved() else -float(len(plan(world)))

    def _offer_choices(self, world: World) -> None:
        self._choices = {action_text(action): action for action in world.actions()}

    def generic_skill(self, family: str) -> str:
        return GENERIC_SKILLS.get(family, "")

    def worked_examples(self, family: str) -> tuple[WorkedExample, ...]:
        """Two tasks of the family, then those of the others."""
        return of_family(builtin_examples("household"), family)

    def oracle_plan(self) -> list[str] | None:
        """The oracle's actions from the present state; empty where the goal holds."""
        if self.world is None:
            return None
        return [] if self.world.is_solved() else plan(self.world)

    def world_state(self) -> Hashable | None:
        """All that actions change in the room."""
        return None if self.world is None else self.world.state()

    @classmethod
    def dataset(  # type: ignore[override]
        cls,
        split: str = "train",
        preset: str = "standard",
        size: int | None = None,
        families: Iterable[str] | None = None,
    ):
        """A `datasets.Dataset` of tasks: columns `task_id`, `family`, `split`, `preset` and `index`.

        The families alternate, so that every prefix is balanced. A larger `size` appends tasks and changes none.

        Args:
            split (`str`, *optional*, defaults to `"train"`):
                `"train"`, `"valid_seen"` (rooms met in training, other tasks) or `"valid_unseen"` (other rooms).
            preset (`str`, *optional*, defaults to `"standard"`):
                `"standard"` or `"small"`.
            size (`int`, *optional*):
                Number of tasks. Defaults to the tasks of `families` among the first 3,000 of `train`, 144 of
                `valid_seen` or 138 of `valid_unseen`.
            families (`Iterable[str]`, *optional*):
                Task families to keep; all by default.
        """
        check_preset(preset)
        check_split(split)
        indices = _indices(split, preset, size, _check_families(families))

        from datasets import Dataset

        return Dataset.from_dict(
            {
                "task_id": [task_id(preset, split, index) for index in indices],
                "family": [family_of(index) for index in indices],
                "split": [split] * len(indices),
                "preset": [preset] * len(indices),
                "index": indices,
            }
        )


def _check_families(families: Iterable[str] | None) -> frozenset[str]:
    kept = frozenset(FAMILIES if families is None else families)
    unknown = sorted(kept - set(FAMILIES))
    if unknown or not kept:
        raise ConfigurationError(
            f"`families` ({', '.join(map(repr, unknown)) or 'empty'}) must name at least one of "
            f"{', '.join(map(repr, FAMILIES))}."
        )
    return kept


def _indices(split: str, preset: str, size: int | None, families: frozenset[str]) -> list[int]:
    if size is None:
        return [index for index in range(DEFAULT_SIZES[split]) if family_of(index) in families]
    if size < 1:
        raise ConfigurationError(f"`size` ({size}) must be at least 1.")
    # Each run of six indices holds one task of each family, so this range is long enough.
    rounds = -(-size // len(families))
    indices = [index for index in range(rounds * len(FAMILIES)) if family_of(index) in families][:size]
    most = capacity(preset, split)
    if indices[-1] >= most:
        raise ConfigurationError(
            f"`size` ({size}) is more than the household split {split!r} of preset {preset!r} holds: it numbers "
            f"{most} tasks, {most // len(FAMILIES)} of each family. Ask for fewer."
        )
    return indices
