"""Finds and reads ALFWorld's game files: which games a split holds, in which order, and of which family.

A game is one file, `[json_*/]<split>/<task>-<object>-<movable>-<receptacle>-<scene>/<trial>/game.tw-pddl`. Family and
id come from the path; nothing else of the benchmark's 2 GB is needed.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from ...errors import ConfigurationError


logger = logging.getLogger(__name__)

GAME_FILE = "game.tw-pddl"
EMBEDDED = "embedded"
"""Names the self-made games: as a data folder, and as the first part of their paths."""

FAMILIES = {
    "pick_and_place_simple": "Pick",
    "look_at_obj_in_light": "Look",
    "pick_clean_then_place_in_recep": "Clean",
    "pick_heat_then_place_in_recep": "Heat",
    "pick_cool_then_place_in_recep": "Cool",
    "pick_two_obj_and_place": "Pick2",
}
"""Task type in a path -> the paper's name of the family."""

SPLIT_SIZES = {"train": 3553, "valid_seen": 140, "valid_unseen": 134}
"""Games in the official data."""

# A key of the outer object: inside the grammar or problem text every quote is escaped, so this cannot match there.
_SOLVABLE = re.compile(rb'"solvable"\s*:\s*true\b')


@dataclass(frozen=True, slots=True)
class GameEntry:
    """One game of a split."""

    task_id: str
    """Its path without data folder, version and file name: `valid_seen/<task>/<trial>`."""
    game_file: str
    """Path relative to the data folder, with forward slashes."""
    family: str
    split: str


@dataclass(frozen=True, slots=True)
class Game:
    """The content of a game file."""

    domain: str
    """PDDL: what can be done."""
    problem: str
    """PDDL: what there is and what is to be achieved."""
    grammar: str
    """TextWorld's language for turning states into sentences."""
    walkthrough: tuple[str, ...] = ()
    """Commands that win the game; empty when the file has none."""


def data_folder(data: str | os.PathLike[str] | None = None) -> Path:
    """The folder below which games are looked for.

    Args:
        data (`str` or `PathLike`, *optional*):
            A folder, or `"embedded"` for the self-made games, which are built on first use. Defaults to the
            environment variable `ALFWORLD_DATA`, else `~/.cache/alfworld`, where the official downloader puts its
            data.
    """
    if data == EMBEDDED:
        from .embedded import embedded_folder

        return embedded_folder()
    return Path(data or os.environ.get("ALFWORLD_DATA") or "~/.cache/alfworld").expanduser()


def find_games(split: str, data: str | os.PathLike[str] | None = None) -> list[GameEntry]:
    """The solvable games of `split` in the order of their paths; sliced objects and movable receptacles are left out,
    as in the benchmark.

    Raises:
        ConfigurationError: there is no such split, no game in it, or it is a link that leads out of the data folder.
    """
    folder = data_folder(data)
    split_folder = _split_folder(folder, split)
    _refuse_outside(split_folder, folder)
    entries, num_skipped = [], Counter[str]()
    for path in sorted(split_folder.glob(f"*/*/{GAME_FILE}")):
        task_name = path.parts[-3]
        family = FAMILIES.get(task_name.split("-", 1)[0])
        if "movable" in task_name or "Sliced" in task_name or family is None:
            num_skipped["of no family"] += 1
        elif _SOLVABLE.search(path.read_bytes()) is None:
            num_skipped["unsolvable"] += 1
        else:
            task_id = "/".join((split, *path.parts[-3:-1]))
            if split_folder.parent.name == EMBEDDED:
                task_id = f"{EMBEDDED}/{task_id}"
            entries.append(GameEntry(task_id, path.relative_to(folder).as_posix(), family, split))
    if not entries:
        raise ConfigurationError(f"{split_folder} holds no playable game ({dict(num_skipped)} skipped). {_REMEDY}")
    _report(split, split_folder, entries, num_skipped)
    return entries


def find_game_file(game_file: str, data: str | os.PathLike[str] | None = None) -> Path:
    """The path of a dataset row's game.

    Args:
        game_file (`str`):
            Relative to the data folder; `embedded/...` is a self-made game wherever the data folder is.
        data (`str` or `PathLike`, *optional*):
            As in [`data_folder`].

    Raises:
        ConfigurationError: there is no such file, or it lies outside of the data folder, links followed.
    """
    folder = data_folder(EMBEDDED if game_file.startswith(f"{EMBEDDED}/") else data)
    path = folder / game_file
    _refuse_outside(path, folder)
    if not path.is_file():
        raise ConfigurationError(
            f"The game {game_file} is not in {folder}. Set `ALFWORLD_DATA` or `ALFWorldEnvironment(data=...)` to the "
            f"folder from which the dataset was made. {_REMEDY}"
        )
    return path


def _refuse_outside(path: Path, folder: Path) -> None:
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ConfigurationError(
            f"{path} leads out of {folder}: games lie inside the data folder, links followed, and rows name them "
            "relative to it. Set `ALFWORLD_DATA` or `ALFWorldEnvironment(data=...)` to the folder that really holds "
            "them."
        )


def family_of(game_file: str) -> str:
    """The paper's name of a game's family, from its path."""
    task_type = Path(game_file).parts[-3].split("-", 1)[0] if len(Path(game_file).parts) >= 3 else ""
    if task_type not in FAMILIES:
        raise ConfigurationError(
            f"{game_file!r} names no task type: a game's path ends in `<task>-<...>/<trial>/{GAME_FILE}` with one of "
            f"{', '.join(FAMILIES)} as `<task>`."
        )
    return FAMILIES[task_type]


def read_game(path: str | os.PathLike[str]) -> Game:
    """Read a game file.

    Raises:
        ConfigurationError: the file is no game.
    """
    try:
        content = json.loads(Path(path).read_bytes())
        return Game(
            domain=content["pddl_domain"],
            problem=content["pddl_problem"],
            grammar=content["grammar"],
            walkthrough=tuple(content.get("walkthrough") or ()),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"{path} is not an ALFWorld game ({type(error).__name__}: {error}). It must be a JSON object with "
            "`pddl_domain`, `pddl_problem` and `grammar`. Download the data again."
        ) from error


_REMEDY = (
    "Run `taspo env download alfworld` to get the official games, or use `data='embedded'` for the self-made ones."
)


def _split_folder(folder: Path, split: str) -> Path:
    """Where `split` is: in the data folder itself or in one of its versions (`json_2.1.1` in the official data)."""
    parents = [folder, folder / EMBEDDED, *sorted(folder.glob("json_*"), reverse=True)]
    present = [parent for parent in parents if any(parent.glob(f"*/*/*/{GAME_FILE}"))]
    if not present:
        raise ConfigurationError(f"No ALFWorld games in {folder}. {_REMEDY}")
    for parent in present:
        if (parent / split).is_dir():
            return parent / split
    known = sorted({path.name for parent in present for path in parent.iterdir() if path.is_dir()})
    raise ConfigurationError(f"ALFWorld has no split {split!r} in {folder}. There are: {', '.join(known)}.")


def _report(split: str, split_folder: Path, entries: list[GameEntry], num_skipped: Counter[str]) -> None:
    logger.info(f"{len(entries)} games in {split_folder}, skipped: {dict(num_skipped)}.")
    expected = SPLIT_SIZES.get(split)
    if split_folder.parent.name != EMBEDDED and expected not in (None, len(entries)):
        logger.warning(
            f"{split_folder} holds {len(entries)} games, the official split has {expected}: results on it cannot be "
            "compared with published ones. `taspo env download alfworld` gets the official data."
        )
