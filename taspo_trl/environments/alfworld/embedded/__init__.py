"""Self-made ALFWorld games: small rooms, all six families, three splits, made from nothing but the installed package.

The domain, the grammar and the goals are those that `alfworld` ships; the rooms and what lies in them are this
package's. The games have ALFWorld's own format and run on the same engine, with the same commands and sentences. They
are far easier than the official ones: no result on them can be compared with published ones.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from ....errors import ConfigurationError, MissingDependencyError
from ..cache import cache_dir
from ..games import EMBEDDED, GAME_FILE
from .game import game_json
from .language import Language
from .tasks import SPLITS, games_of


@cache
def embedded_folder() -> Path:
    """The data folder of the self-made games, built on first use.

    The folder is named after all that its content depends on, and appears whole or not at all, whichever process
    builds it.
    """
    package = _package_folder()
    folder = cache_dir() / "alfworld" / f"games-{_fingerprint(package)}"
    if not folder.is_dir():
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            _build(folder, package)
        except OSError as error:
            raise ConfigurationError(
                f"The self-made ALFWorld games cannot be written to {folder} ({error}). Set `TASPO_CACHE` to a folder "
                "that can be written."
            ) from error
    return folder


def write_games(folder: Path, package: Path) -> None:
    """Write all games below `folder`, with the language of the installed package at `package`."""
    language = Language(
        domain=(package / "data" / "alfred.pddl").read_text(encoding="utf-8"),
        grammar=(package / "data" / "alfred.twl2").read_text(encoding="utf-8"),
        goals=_load(package / "gen" / "goal_library.py").gdict,
    )
    for split in SPLITS:
        for setup in games_of(split):
            path = folder / EMBEDDED / split / setup.task_name / setup.trial / GAME_FILE
            path.parent.mkdir(parents=True)
            path.write_text(game_json(setup, language), encoding="utf-8")


def _build(folder: Path, package: Path) -> None:
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        write_games(temporary, package)
        temporary.chmod(0o755)  # mkdtemp's folders are for the owner only, a cache may be shared
        try:
            os.rename(temporary, folder)
        except OSError:
            if not folder.is_dir():  # else another process was faster, with the same games
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _fingerprint(package: Path) -> str:
    digest = hashlib.sha256()
    for path in (*_sources(package), *sorted(Path(__file__).parent.glob("*.py"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _sources(package: Path) -> Iterator[Path]:
    yield package / "data" / "alfred.pddl"
    yield package / "data" / "alfred.twl2"
    yield package / "gen" / "goal_library.py"


def _package_folder() -> Path:
    """Where `alfworld` is installed. It is not imported: that would make its data folder and set `ALFWORLD_DATA`."""
    spec = find_spec("alfworld")
    if spec is None or not spec.submodule_search_locations:
        found = "is not installed" if spec is None else f"is hidden by {spec.origin}: rename that file"
        raise MissingDependencyError(
            f"The self-made ALFWorld games need the domain and grammar of the package `alfworld`, which {found}. "
            '`pip install -e ".[alfworld]"` in the clone installs it.'
        )
    return Path(spec.submodule_search_locations[0])


def _load(path: Path) -> ModuleType:
    spec = spec_from_file_location(f"_{path.stem}", path)
    assert spec is not None and spec.loader is not None, path  # holds for every file that ends in .py
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
