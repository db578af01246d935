"""Index folders: what lies in them, and how one comes into being whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import ConfigurationError
from .store import PassageStore, scan_offsets


MANIFEST = "manifest.json"
PASSAGES = "passages.jsonl"
OFFSETS = "offsets.npy"
FORMAT_VERSION = 1


def write_folder(folder: Path, kind: str, settings: dict[str, Any], fill: Callable[[Path], None]) -> None:
    """Make an index folder.

    Args:
        folder (`Path`):
            Must not exist, or be empty.
        kind (`str`):
            `"bm25"` or `"dense"`.
        settings (`dict[str, Any]`):
            What is needed to search it, kept in the manifest.
        fill (`Callable[[Path], None]`):
            Writes `passages.jsonl` and the index into the folder it gets.
    """
    if is_index(folder):
        raise ConfigurationError(f"{folder} already holds an index. Load it, or remove it to build another.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
    draft.mkdir()
    try:
        fill(draft)
        offsets = scan_offsets(draft / PASSAGES)
        np.save(draft / OFFSETS, offsets)
        manifest = {"version": FORMAT_VERSION, "kind": kind, "num_passages": len(offsets) - 1, "settings": settings}
        (draft / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        try:
            os.replace(draft, folder)  # at once: a folder that is there is complete
        except OSError as error:
            if not is_index(folder):  # else another process was faster with the same folder
                raise ConfigurationError(f"Cannot make the index folder {folder}: {error}.") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def is_index(folder: Path) -> bool:
    return (folder / MANIFEST).is_file()


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of an index folder of the version that this package writes."""
    if not is_index(folder):
        raise ConfigurationError(
            f"{folder} is no index folder: it has no {MANIFEST}. Build one with `BM25Retriever.build`."
        )
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    if manifest.get("version") != FORMAT_VERSION:
        raise ConfigurationError(
            f"{folder} is an index of version {manifest.get('version')!r}, this package reads version "
            f"{FORMAT_VERSION}. Build it again."
        )
    return manifest


def open_passages(folder: Path) -> PassageStore:
    """The passages of an index folder, mapped into memory."""
    return PassageStore(folder / PASSAGES, np.load(folder / OFFSETS, mmap_mode="r"))
