"""Checkpoints and models that appear whole: written aside, flushed to the disk, then renamed into their place."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers.trainer_utils import sort_checkpoints

from ..checkpoints import last_checkpoint
from ..errors import CheckpointError
from ..files import flush_entry, flush_folder, remove_folder


DRAFTS = "_saving"
"""Folder inside a run's for what is being written; what a kill leaves in it is removed when the run goes on."""
_REPLACED = "replaced"


@dataclass
class CheckpointWriter:
    """Lets the Trainer write a checkpoint aside and puts it into its place.

    Args:
        args ([`TASPOConfig`]), accelerator (`Accelerator`):
            The trainer's.
    """

    args: Any
    accelerator: Any
    is_open: bool = False
    """Whether a checkpoint is being written now."""

    def folder(self, run_folder: str) -> str:
        """Where the Trainer writes `checkpoint-N` now."""
        return os.path.join(run_folder, DRAFTS) if self.is_open else run_folder

    @contextlib.contextmanager
    def writing(self, run_folder: str, state: Any, model: Any) -> Iterator[Path]:
        """What the Trainer writes inside becomes `checkpoint-N` of `run_folder`, whole, when the block ends.

        Every process enters it. Yields the checkpoint's place.

        Args:
            run_folder (`str`):
                The folder of the run.
            state ([`~transformers.TrainerState`]):
                The Trainer's; its best checkpoint is named by its place.
            model (`torch.nn.Module`):
                What is saved, whose weights must be finite.

        Raises:
            CheckpointError: the disk does not take it, or a weight is no finite number. Earlier checkpoints stay.
        """
        place = Path(run_folder, f"checkpoint-{state.global_step}")
        draft = Path(run_folder, DRAFTS, place.name)
        self._refuse_broken_weights(model, place)
        if self.accelerator.is_local_main_process:
            shutil.rmtree(draft, ignore_errors=True)  # of a save that was killed
        self.accelerator.wait_for_everyone()
        self.is_open = True
        try:
            with disk_errors_told(place, draft if self.accelerator.num_processes == 1 else None):
                yield place
                self.accelerator.wait_for_everyone()
                self._name_best(state, place)
                if self.args.should_save:
                    write_state(state, draft / "trainer_state.json")
                for is_mine in (self.accelerator.is_main_process, self.accelerator.is_local_main_process):
                    if is_mine and draft.is_dir():  # the second time where machines share no disk
                        put_in_place(draft, place)
                    self.accelerator.wait_for_everyone()
        finally:
            self.is_open = False

    def rotate(self, run_folder: Path, state: Any) -> None:
        """Keep `save_total_limit`."""
        if self.args.should_save:
            rotate(str(run_folder), self.args.save_total_limit, state.best_model_checkpoint)

    @contextlib.contextmanager
    def model_folder(self, folder: str) -> Iterator[str]:
        """Where a model that belongs into `folder` is written: inside a checkpoint that is a draft itself, there."""
        if self.is_open:
            yield folder
        else:
            with model_draft(folder, self.args.should_save) as draft:
                yield draft

    def _refuse_broken_weights(self, model: Any, place: Path) -> None:
        bad = torch.zeros((), device=self.accelerator.device)
        for parameter in model.parameters():
            local = parameter.detach()
            local = local.to_local() if hasattr(local, "to_local") else local
            if local.is_floating_point() and local.numel():
                bad += (~torch.isfinite(local).all()).to(bad)
        if float(self.accelerator.reduce(bad, reduction="sum")):
            raise CheckpointError(
                f"{place.name} is not saved: some weights are no finite numbers, so nothing could go on from it. "
                f"Lower `learning_rate`. {_last(place)}"
            )

    @staticmethod
    def _name_best(state: Any, place: Path) -> None:
        """The Trainer looks for the best checkpoint beside the draft; it stands beside the place."""
        if state.best_global_step:
            best = place.with_name(f"checkpoint-{state.best_global_step}")
            if best == place or best.is_dir():
                state.best_model_checkpoint = str(best)


def put_in_place(draft: Path, place: Path) -> None:
    """Flush a draft to the disk and rename it; a checkpoint that is there already is replaced."""
    flush_folder(draft)
    replaced = draft.parent / _REPLACED / place.name
    if place.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        replaced.parent.mkdir(exist_ok=True)
        os.rename(place, replaced)
    os.rename(draft, place)
    flush_entry(place.parent)
    shutil.rmtree(draft.parent, ignore_errors=True)


def mend(run_folder: str | os.PathLike) -> None:
    """Undo what a kill left half done: a replaced checkpoint whose successor never came is put back.

    Call it while no run lives in the folder.
    """
    drafts = Path(run_folder, DRAFTS)
    for old in drafts.glob(f"{_REPLACED}/checkpoint-*"):
        if not Path(run_folder, old.name).exists():
            os.rename(old, Path(run_folder, old.name))
    shutil.rmtree(drafts, ignore_errors=True)


def rotate(run_folder: str, limit: int | None, best: str | None) -> None:
    """Remove the oldest checkpoints until `limit` are left; the newest and the best one stay, as with transformers."""
    if limit is None or limit <= 0:
        return
    found = sort_checkpoints(run_folder, use_mtime=True)
    protected = {Path(one).resolve() for one in [*found[-1:], *([best] if best else [])]}
    surplus = len(found) - max(limit, len(protected))
    for one in [one for one in found if Path(one).resolve() not in protected][: max(0, surplus)]:
        remove_folder(one, Path(run_folder, DRAFTS))
    shutil.rmtree(Path(run_folder, DRAFTS), ignore_errors=True)


@contextlib.contextmanager
def model_draft(folder: str, is_writer: bool) -> Iterator[str]:
    """A folder to write a model into; its files then replace those in `folder`, one by one and each at once.

    Raises:
        CheckpointError: the disk does not take it; what was there stays.
    """
    draft = Path(folder, DRAFTS, "model")
    if is_writer:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
    with disk_errors_told(Path(folder, "model"), draft):
        yield str(draft)
        if is_writer:
            flush_folder(draft)
            files = sorted(
                (one for one in draft.rglob("*") if one.is_file()), key=lambda one: one.name == "config.json"
            )
            names = {one.relative_to(draft) for one in files}
            for one in files:  # a configuration says that there is a model, so it comes last
                target = Path(folder, one.relative_to(draft))
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(one, target)
            for stale in [*Path(folder).glob("model-*-of-*.safetensors"), *Path(folder).glob("model*.index.json")]:
                if stale.relative_to(folder) not in names:
                    stale.unlink()
            flush_entry(folder)
            shutil.rmtree(draft.parent, ignore_errors=True)


def write_state(state: Any, path: Path) -> None:
    """Write a [`~transformers.TrainerState`] so that the file is the old one or the new one."""
    partial = path.with_name(path.name + ".partial")
    state.save_to_json(str(partial))
    with open(partial, "rb") as file:
        os.fsync(file.fileno())
    os.replace(partial, path)


@contextlib.contextmanager
def disk_errors_told(place: Path, draft: Path | None) -> Iterator[None]:
    """Turn what safetensors, torch and the system raise on a full or broken disk into one line with its remedy."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        if not _is_of_the_disk(error):
            raise
        if draft is not None:
            shutil.rmtree(draft, ignore_errors=True)  # room for what the run still has to write
            with contextlib.suppress(OSError):
                draft.parent.rmdir()
        raise CheckpointError(
            f"{place.name} could not be written to {place.parent}: {_words(error)}{_free(place.parent)}. Free space "
            f"there, or keep fewer checkpoints (`save_total_limit`), then go on. {_last(place)}"
        ) from error


def _is_of_the_disk(error: BaseException) -> bool:
    text = str(error)
    return (
        isinstance(error, OSError)
        or (type(error).__name__ == "SafetensorError" and ("I/O error" in text or "os error" in text))
        or (isinstance(error, RuntimeError) and ("PytorchStreamWriter" in text or "unexpected pos" in text))
    )


def _words(error: BaseException) -> str:
    """The system's own word for it, which torch does not tell."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return str(error).splitlines()[0][:200].rstrip(".") if str(error) else type(error).__name__


def _free(folder: Path) -> str:
    with contextlib.suppress(OSError):
        return f" ({shutil.disk_usage(folder).free / 2**20:,.0f} MiB are free)"
    return ""


def _last(place: Path) -> str:
    with contextlib.suppress(OSError):
        last = last_checkpoint(place.parent)
        if last is not None:
            return f"The last good checkpoint is {last} (`resume_from_checkpoint`)."
    return "There is no earlier checkpoint."
