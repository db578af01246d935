"""A game's PDDL as the planning task that the engine runs: translated once, shared by sibling processes through a disk
cache.

Translating takes a third of a second for a real game, and TextWorld does it four times for each load and reset. The
result depends on nothing but the text: it is kept here, as plain text and JSON.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zlib
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

from ...errors import ConfigurationError
from .cache import DiskCache


_FORMAT = 1
_PROGRAM = Path(__file__).with_name("pddl_to_sas.py")


@dataclass(frozen=True, slots=True)
class Translation:
    """What `textworld.envs.pddl.logic.PddlState` reads of a translated problem."""

    sas: str
    """The planning task in Fast Downward's text format, nothing pruned."""
    actions: dict[str, list[list[str]]]
    """Action -> its parameters as [name, type], question marks included."""
    types: dict[str, list[str]]
    """Type -> its supertypes, in the order of the domain."""
    objects: dict[str, str]
    """Object -> its type."""
    facts: list[tuple[str, list[str]]]
    """(predicate, arguments) of the initial state, as TextWorld keeps them."""

    @classmethod
    def from_bytes(cls, data: bytes) -> Translation:
        """Read the output of `pddl_to_sas.py`; raises `ValueError` for anything else."""
        try:
            header, _, sas = zlib.decompress(data).decode().partition("\n")
            return cls(sas=sas, **json.loads(header))
        except (zlib.error, TypeError) as error:
            raise ValueError(f"not a translation: {error}") from error


class Translator:
    """Translates problems through two caches: the last few of this process, and a folder that processes share.

    Args:
        disk (`DiskCache`, *optional*):
            The shared folder. None keeps translations in this process only.
    """

    def __init__(self, disk: DiskCache | None = None):
        self._disk = disk
        # Compressed, about 50 kB for a real game: an open one is 1 MB, too much to hold in each of 128 processes.
        self._remembered = lru_cache(maxsize=32)(self._fetch)

    def __call__(self, domain: str, problem: str) -> Translation:
        return Translation.from_bytes(self._remembered(domain, problem))

    def _fetch(self, domain: str, problem: str) -> bytes:
        if self._disk is None:
            return translate(domain, problem)
        return self._disk.fetch(
            _key(domain, problem), make=lambda: translate(domain, problem), check=Translation.from_bytes
        )


def translate(domain: str, problem: str) -> bytes:
    """Run Fast Downward's translator in a process of its own, and return what [`Translation.from_bytes`] reads.

    Raises:
        ConfigurationError: the texts are no PDDL that it can translate.
    """
    # -P: the folder of the program holds modules of this package, which are not to be found by their bare names.
    result = subprocess.run(
        [sys.executable, "-P", str(_PROGRAM)],
        input=json.dumps({"domain": domain, "problem": problem}).encode(),
        capture_output=True,
        check=False,
    )
    if result.returncode != 0:
        message = result.stderr.decode(errors="replace").strip() or "no message"
        raise ConfigurationError(
            f"Fast Downward could not translate the game (exit code {result.returncode}): {message.splitlines()[-1]}. "
            "Download the game again."
        )
    return result.stdout


def _key(domain: str, problem: str) -> str:
    digest = hashlib.sha256()
    for part in (str(_FORMAT), version("fast-downward-textworld"), domain, problem):
        digest.update(len(part).to_bytes(8, "big") + part.encode())
    return digest.hexdigest()
