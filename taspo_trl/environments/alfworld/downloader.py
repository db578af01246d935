"""Gets the official ALFWorld games, with the downloader that the `alfworld` package installs."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from ...errors import ConfigurationError, MissingDependencyError
from .games import SPLIT_SIZES, data_folder, find_games


_SCRIPT = "alfworld-download"


def download(data: str | os.PathLike[str] | None = None, force: bool = False) -> dict[str, int]:
    """Run `alfworld-download` and count what it brought.

    Args:
        data (`str` or `PathLike`, *optional*):
            Where to put the data. Defaults to the environment variable `ALFWORLD_DATA`, else `~/.cache/alfworld`.
        force (`bool`, *optional*, defaults to `False`):
            Download and overwrite what is already there.

    Returns:
        `dict[str, int]`: split -> number of playable games.
    """
    folder = data_folder(data)
    command = [sys.executable, str(_find_script()), "--data-dir", str(folder)]
    if force:
        command += ["--force", "--force-download"]
    try:
        subprocess.run(command, check=True)
    except subprocess.CalledProcessError as error:
        raise ConfigurationError(
            f"`{_SCRIPT}` ended with exit code {error.returncode}; its own message stands above. It gets about 0.5 GB "
            f"from github.com into {folder}: check the network, the proxy settings and the free space."
        ) from error
    return {split: len(find_games(split, folder)) for split in SPLIT_SIZES}


def _find_script() -> Path:
    """The downloader is a script beside the interpreter, not a module."""
    script = Path(sys.executable).parent / _SCRIPT
    if find_spec("alfworld") is None or not script.is_file():
        raise MissingDependencyError(
            f"The games are downloaded by `{_SCRIPT}` of the package `alfworld`, which is not installed beside "
            f'{sys.executable}. Install it with `pip install -e ".[alfworld]"` in the clone.'
        )
    return script
