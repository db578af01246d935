"""ALFWorld as a text environment: household tasks on TextWorld's PDDL engine, the official games or self-made ones."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ...errors import ConfigurationError, MissingDependencyError
from ..base import ResetResult, StepResult, TextEnvironment
from ..examples import WorkedExample, builtin_examples, of_family
from .games import FAMILIES, GameEntry, family_of, find_game_file, find_games, read_game
from .oracle import rest_of_walkthrough
from .prompts import SKILLS, prompt_template


if TYPE_CHECKING:
    from datasets import Dataset

# At import and not on first use: the fork server that imports this module (`preload`) hands the loaded engine on to
# every worker, which saves each of them 0.6 s and 60 MB.
try:
    from .engine import Engine, share_memory_with_parent
except ImportError as error:
    _engine_error: ImportError | None = error
else:
    _engine_error = None

_TASK_MARK = "Your task is to: "


class ALFWorldEnvironment(TextEnvironment):
    """Household tasks in text: find objects, clean, heat or cool them, put them somewhere, examine them under a lamp.

    An episode is won, `reward` 1 and `info["success"]` True, when the game's goal is reached. The game file determines
    everything: `seed` has no effect, and all members of a group start from the same observation.

    An action counts as valid when it is one of the admissible actions that the prompt showed, apart from case and
    white space. `help` is not among them. Anything else is answered by the engine, nearly always with "Nothing
    happens.", and is flagged `info["valid"]` False.

    The engine is not thread-safe: instances run in worker processes, or one after the other behind a lock.

    Args:
        data (`str` or `PathLike`, *optional*):
            The folder that the rows' `game_file` is relative to. Defaults to the environment variable `ALFWORLD_DATA`,
            else `~/.cache/alfworld`. Self-made games (`game_file` begins with `embedded/`) need none.
        reply_format (`str`, *optional*, defaults to `"think"`):
            What the prompt asks for: `"think"` (reasoning in think tags, then the action) or `"action"`.
    """

    action_tags = ("action",)
    history_length = 2
    max_turns = 50
    worker: ClassVar[Literal["thread", "process"]] = "process"
    preload: ClassVar[bool] = True

    def __init__(self, data: str | os.PathLike[str] | None = None, reply_format: str = "think"):
        self.prompt = prompt_template(reply_format)
        self._data = data
        self._engine: Engine | None = None
        self._admissible: dict[str, str] = {}
        self._walkthrough: tuple[str, ...] = ()
        self._commands: list[str] = []

    def reset(self, *, seed: int = 0, game_file: str, **row: Any) -> ResetResult:  # type: ignore[override]
        """Begin the game `game_file`, a path relative to the data folder."""
        if self._engine is None:
            self._engine = _new_engine()
        game = read_game(find_game_file(game_file, self._data))
        observation = self._engine.start(game)
        self._walkthrough, self._commands = game.walkthrough, []
        info = {
            "task": _task_of(observation, game_file),
            "family": family_of(game_file),
            "admissible_actions": self._admissible_actions(self._engine),
        }
        return ResetResult(observation, info)

    def step(self, action: str) -> StepResult:
        if self._engine is None:
            raise RuntimeError("`step` was called before `reset`: no game has been started.")
        command = _normalize(action)
        is_valid = command in self._admissible
        observation = self._engine.step(self._admissible.get(command, command))
        self._commands += [command] if is_valid else []
        is_won = self._engine.is_won
        info = {
            "valid": is_valid,
            "success": is_won,
            "admissible_actions": self._admissible_actions(self._engine),
        }
        return StepResult(observation, reward=float(is_won), terminated=is_won, truncated=False, info=info)

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def generic_skill(self, family: str) -> str:
        return SKILLS.get(family, "")

    def worked_examples(self, family: str) -> tuple[WorkedExample, ...]:
        """Two self-made games of the family, then those of the others."""
        return of_family(builtin_examples("alfworld"), family)

    def oracle_plan(self) -> list[str] | None:
        """What is left of the game's walkthrough; None once something else was done than it says."""
        return rest_of_walkthrough(self._walkthrough, self._commands)

    def world_state(self) -> Hashable | None:
        """The facts of the planning domain that hold now, without those that only remember what was looked at."""
        return None if self._engine is None else self._engine.facts

    @classmethod
    def require_packages(cls) -> None:
        """What `taspo train` asks before it looks for tasks: data without the engine is of no use.

        Raises:
            MissingDependencyError: the `alfworld` extra is not installed.
        """
        if _engine_error is not None:
            raise MissingDependencyError(
                f"ALFWorld's engine cannot be loaded ({_engine_error}). Install it with "
                '`pip install -e ".[alfworld]"` in the clone.'
            ) from _engine_error

    @classmethod
    def dataset(  # type: ignore[override]
        cls, split: str = "train", data: str | os.PathLike[str] | None = None, size: int | None = None
    ) -> Dataset:
        """One row for each game of `split`: `task_id`, `game_file`, `family`, `split`.

        Args:
            split (`str`, *optional*, defaults to `"train"`):
                `"train"`, `"valid_seen"` (rooms of the training games) or `"valid_unseen"` (other rooms).
            data (`str` or `PathLike`, *optional*):
                The folder with the games, as for the class, or `"embedded"` for the self-made ones.
            size (`int`, *optional*):
                Take this many games, as evenly from the six families as they allow. Defaults to all.
        """
        from datasets import Dataset

        entries = find_games(split, data)
        if size is not None:
            entries = _balanced(entries, size)
        columns = GameEntry.__slots__
        return Dataset.from_dict({name: [getattr(entry, name) for entry in entries] for name in columns})

    def _admissible_actions(self, engine: Engine) -> list[str]:
        """What can be done now, `help` left out, and remembered for the next `step`."""
        actions = [command for command in engine.commands if command != "help"]
        self._admissible = {_normalize(action): action for action in actions}
        return actions


def _new_engine() -> Engine:
    ALFWorldEnvironment.require_packages()
    share_memory_with_parent()
    return Engine()


def _task_of(observation: str, game_file: str) -> str:
    _, mark, task = observation.partition(_TASK_MARK)
    if not mark:
        raise ConfigurationError(
            f"The first observation of {game_file} holds no {_TASK_MARK!r}, after which the task is told: "
            f"{observation!r}. Use the grammar that ALFWorld ships."
        )
    return task.strip()


def _normalize(command: str) -> str:
    return " ".join(command.split()).lower()


def _balanced(entries: list[GameEntry], size: int) -> list[GameEntry]:
    """`size` of the games, in their order: the first ones of each family, in turns."""
    if not 0 < size <= len(entries):
        raise ConfigurationError(f"`size` must be between 1 and {len(entries)}, the games of the split, got {size}.")
    ranks: dict[str, int] = defaultdict(int)
    order = list(FAMILIES.values())
    keyed = []
    for idx, entry in enumerate(entries):
        keyed.append((ranks[entry.family], order.index(entry.family), idx))
        ranks[entry.family] += 1
    return [entries[idx] for _, _, idx in sorted(sorted(keyed)[:size], key=lambda key: key[2])]
