"""What of a run's folders stays here when they go to the Hub.

transformers uploads folders whole, but for names that begin with `_` and, in `output_dir`, checkpoints. A run of ours
leaves more text than that: episodes in TRL's table of completions, sampled tokens in checkpoints, analyzer answers.
"""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import transformers.trainer
from huggingface_hub import HfApi

from .trackio import traces_kept_here


PRIVATE_NAMES = ("_*", "completions/*")
"""Patterns of what holds episodes: records, evaluations, viewer pages, buffered rows; TRL's table of completions."""


def ignored_patterns(
    folder: str | os.PathLike, patterns: Sequence[str], *, with_trajectories: bool, secret_files: Sequence[Path] = ()
) -> list[str]:
    """What an upload of `folder` leaves out.

    Args:
        folder (`str` or `PathLike`):
            The folder that is uploaded.
        patterns (`Sequence[str]`):
            What transformers leaves out.
        with_trajectories (`bool`):
            Whether the user asked for what holds episodes.
        secret_files (`Sequence[Path]`, *optional*):
            Files that never go up, with whatever stands beside them under a longer name.
    """
    if with_trajectories:
        kept = [pattern for pattern in patterns if pattern not in PRIVATE_NAMES]
    else:
        kept = list(dict.fromkeys([*patterns, *PRIVATE_NAMES]))
    root = Path(folder).resolve()
    inside = [file.resolve() for file in secret_files if file.resolve().is_relative_to(root)]
    return kept + [glob.escape(file.relative_to(root).as_posix()) + "*" for file in inside]


@contextlib.contextmanager
def what_may_leave(args: Any, analyzer: Any) -> Iterator[None]:
    """An upload of a run's folder inside takes no episodes, no traces, no analyzer answers along unless asked.

    Args:
        args ([`~taspo_trl.TASPOConfig`]):
            `hub_push_trajectories`.
        analyzer (`Analyzer`):
            Its cache of answers never goes up.
    """
    cache = getattr(getattr(analyzer, "settings", None), "cache_path", None)
    secret_files = [cache] if cache is not None else []
    with (
        selective_uploads(with_trajectories=args.hub_push_trajectories, secret_files=secret_files),
        traces_kept_here(args),
    ):
        yield


@contextlib.contextmanager
def selective_uploads(*, with_trajectories: bool, secret_files: Sequence[Path] = ()) -> Iterator[None]:
    """Folders that a `transformers.Trainer` uploads inside go up without what [`ignored_patterns`] names.

    The Trainer has no option for it, and copying its two methods would freeze them: the one function through which it
    reaches the Hub is replaced while they run. What is left out is decided then, also for uploads in the background.
    """
    hf_api = transformers.trainer.hf_api
    api: Any = _SelectiveApi(hf_api(), with_trajectories, secret_files)
    transformers.trainer.hf_api = lambda: api
    try:
        yield
    finally:
        transformers.trainer.hf_api = hf_api


class _SelectiveApi:
    """An `HfApi` whose `upload_folder` leaves more out."""

    def __init__(self, api: HfApi, with_trajectories: bool, secret_files: Sequence[Path]):
        self._api = api
        self._with_trajectories = with_trajectories
        self._secret_files = secret_files

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)

    def upload_folder(self, *, folder_path: str, ignore_patterns: Sequence[str] | None = None, **options: Any) -> Any:
        patterns = ignored_patterns(
            folder_path,
            ignore_patterns or (),
            with_trajectories=self._with_trajectories,
            secret_files=self._secret_files,
        )
        return self._api.upload_folder(folder_path=folder_path, ignore_patterns=patterns, **options)
