"""How a run's folders go to the Hub: without what stays here, and without the run having to wait for it or to end.

transformers uploads folders whole, but for names that begin with `_` and, in `output_dir`, checkpoints. A run of ours
leaves more text than that: episodes in TRL's table of completions, sampled tokens in checkpoints, analyzer answers.
huggingface_hub waits for a silent server without end, in threads that Python joins when it exits.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import transformers.trainer
from huggingface_hub import HfApi

from ..background import DaemonPool
from ..environments.answers import worded
from ..errors import HubError
from ..files import PARTIAL
from ..redaction import redacted
from .trackio import traces_kept_here


logger = logging.getLogger(__name__)

PRIVATE_NAMES = ("_*", "completions/*")
"""Patterns of what holds episodes: records, evaluations, viewer pages, buffered rows; TRL's table of completions."""
UNFINISHED_NAMES = (f"*{PARTIAL}",)
"""Patterns of files that are being written: a push in the background would list one and no longer find it."""
_SHOWN_CHARS = 300
_REPOSITORY_SECONDS = 60.0


class Pushes:
    """Requests to the Hub in a daemon thread, one after the other.

    Args:
        timeout (`float`):
            Seconds that anybody waits for one of them (`hub_timeout`). One that takes longer goes on until the
            process ends.
    """

    def __init__(self, timeout: float):
        self.timeout = timeout
        self._pool = DaemonPool(1, "taspo-hub")

    def start(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Future:
        """Run it in the background; a failure is said aloud, and is nobody else's."""
        future = self._pool.submit(functools.partial(function, *arguments, **options))
        future.add_done_callback(_tell_failure)
        return future

    def run(self, what: str, seconds: float, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Run it and wait for what it returns, `seconds` at most.

        Raises:
            HubError: it failed or took longer; `what` says what it was for.
        """
        future = self._pool.submit(functools.partial(function, *arguments, **options))
        try:
            return future.result(min(seconds, self.timeout))
        except TimeoutError:
            if future.done():  # its own, which the next clause would word
                raise HubError(f"{what}: a connection timed out.") from None
            raise HubError(
                f"{what}: the Hub did not answer within {min(seconds, self.timeout):g} s. Look at the network and "
                "https://status.huggingface.co, raise `hub_timeout`, or push later with `trainer.push_to_hub()`."
            ) from None
        except Exception as error:
            raise HubError(
                f"{what}: {_words(error)}. Look at the token (`hf auth whoami`), the repository's name and the "
                "network; without `push_to_hub` nothing is pushed."
            ) from error

    def create_repository(self, api: HfApi, *arguments: Any, **options: Any) -> Any:
        """`HfApi.create_repo`, which a run begins with."""
        what = f"The repository {arguments[0] if arguments else ''!r} cannot be made on the Hub"
        return self.run(what, _REPOSITORY_SECONDS, api.create_repo, *arguments, **options)

    def finish(self, in_progress: Any) -> None:
        """Wait for pushes under way; what is not there in time is said aloud.

        Args:
            in_progress ([`~transformers.utils.PushInProgress`] or `None`):
                The Trainer's.
        """
        jobs = [job for job in getattr(in_progress, "jobs", ()) if not job.done()]
        if not jobs:
            return
        logger.info("Waiting for %d pushes to the Hub, %g s at most (`hub_timeout`).", len(jobs), self.timeout)
        late = wait(jobs, self.timeout).not_done  # each failure was told where it happened
        if late:
            in_progress.jobs.clear()
            self._pool.retire()
            self._pool = DaemonPool(1, "taspo-hub")  # the next push does not queue behind one that hangs
            logger.warning(
                "The Hub did not take %d pushes within %g s (`hub_timeout`): they are given up. Everything is in the "
                "run's folder; `trainer.push_to_hub()` pushes it later.",
                len(late),
                self.timeout,
            )


def _tell_failure(job: Future) -> None:
    if not job.cancelled() and (error := job.exception()) is not None:
        logger.warning("A push to the Hub failed: %s. The run goes on; a later push takes everything.", _words(error))


def _words(error: BaseException) -> str:
    return redacted(" ".join(worded(error).split()))[:_SHOWN_CHARS].rstrip(".")


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
        kept = [*(pattern for pattern in patterns if pattern not in PRIVATE_NAMES), *UNFINISHED_NAMES]
    else:
        kept = list(dict.fromkeys([*patterns, *PRIVATE_NAMES, *UNFINISHED_NAMES]))
    root = Path(folder).resolve()
    inside = [file.resolve() for file in secret_files if file.resolve().is_relative_to(root)]
    return kept + [glob.escape(file.relative_to(root).as_posix()) + "*" for file in inside]


@contextlib.contextmanager
def what_may_leave(args: Any, analyzer: Any, pushes: Pushes) -> Iterator[None]:
    """An upload of a run's folder inside takes no episodes, no traces, no analyzer answers along unless asked.

    Args:
        args ([`~taspo_trl.TASPOConfig`]):
            `hub_push_trajectories`.
        analyzer (`Analyzer`):
            Its cache of answers never goes up.
        pushes ([`Pushes`]):
            The run's.
    """
    cache = getattr(getattr(analyzer, "settings", None), "cache_path", None)
    secret_files = [cache] if cache is not None else []
    with (
        selective_uploads(pushes, with_trajectories=args.hub_push_trajectories, secret_files=secret_files),
        traces_kept_here(args),
    ):
        yield


@contextlib.contextmanager
def selective_uploads(pushes: Pushes, *, with_trajectories: bool, secret_files: Sequence[Path] = ()) -> Iterator[None]:
    """Folders that a `transformers.Trainer` uploads inside go up without what [`ignored_patterns`] names, by `pushes`.

    The Trainer has no option for it, and copying its two methods would freeze them: the one function through which it
    reaches the Hub is replaced while they run. What is left out is decided then, also for uploads in the background.
    """
    hf_api = transformers.trainer.hf_api
    found: Any = hf_api()
    is_inside = isinstance(found, _SelectiveApi)  # a push that makes its repository first
    api: Any = found if is_inside else _SelectiveApi(found, pushes, with_trajectories, secret_files)
    transformers.trainer.hf_api = lambda: api
    try:
        yield
    finally:
        transformers.trainer.hf_api = hf_api


class _SelectiveApi:
    """An `HfApi` whose `upload_folder` leaves more out, and that keeps nobody waiting."""

    def __init__(self, api: HfApi, pushes: Pushes, with_trajectories: bool, secret_files: Sequence[Path]):
        self._api = api
        self._pushes = pushes
        self._with_trajectories = with_trajectories
        self._secret_files = secret_files

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)

    def create_repo(self, *arguments: Any, **options: Any) -> Any:
        return self._pushes.create_repository(self._api, *arguments, **options)

    def upload_folder(
        self,
        *,
        folder_path: str,
        ignore_patterns: Sequence[str] | None = None,
        run_as_future: bool = False,
        **options: Any,
    ) -> Any:
        patterns = ignored_patterns(
            folder_path,
            ignore_patterns or (),
            with_trajectories=self._with_trajectories,
            secret_files=self._secret_files,
        )
        upload = functools.partial(
            self._api.upload_folder, folder_path=folder_path, ignore_patterns=patterns, **options
        )
        if run_as_future:
            return self._pushes.start(upload)
        return self._pushes.run(f"{folder_path} was not pushed", self._pushes.timeout, upload)
