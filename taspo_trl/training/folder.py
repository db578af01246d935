"""The output folder of a run while it trains: locked, without what belongs to other runs, and said where to go on."""

from __future__ import annotations

import contextlib
import logging
import pickle
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from ..checkpoints import checkpoint_to_resume, checkpoints_of, fault_of, last_checkpoint, step_of
from ..errors import ConfigurationError
from .checkpoint import load_state, unreadable_file
from .earlier_run import set_aside, set_aside_beyond
from .lock import only_run_in
from .saving import mend


logger = logging.getLogger(__name__)


@contextlib.contextmanager
def run_in_folder(args: Any, accelerator: Any, before: float, resume: str | bool | None) -> Iterator[str | None]:
    """Hold `args.output_dir` for a training that begins or goes on; yields the checkpoint that it goes on from.

    Every process enters it; the first one locks the folder, and says from which checkpoint to go on when the training
    breaks off: in the log, and as the note of the exception, which is the last line of a traceback. SIGTERM breaks it
    off like Ctrl-C, unless the program handles that signal itself.

    Args:
        args ([`TASPOConfig`]), accelerator (`Accelerator`):
            The trainer's.
        before (`float`):
            As in [`~taspo_trl.training.earlier_run.set_aside`].
        resume (`str` or `bool`, *optional*):
            As in [`~taspo_trl.checkpoints.checkpoint_to_resume`].

    Raises:
        ConfigurationError: another live run has the folder, or nothing can go on from `resume`.
    """
    with contextlib.ExitStack() as held:
        if accelerator.is_main_process:
            held.enter_context(only_run_in(args.output_dir))
            mend(args.output_dir)
        accelerator.wait_for_everyone()
        checkpoint = checkpoint_to_resume(resume, args.output_dir)
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            _set_aside(args.output_dir, before, checkpoint)
        accelerator.wait_for_everyone()
        held.enter_context(_terminated_as_interrupted())
        try:
            yield checkpoint
        except BaseException as error:
            file = unreadable_file(checkpoint) if checkpoint is not None and _is_of_reading(error) else None
            if file is not None:
                raise ConfigurationError(_damaged(str(checkpoint), file, args.output_dir)) from error
            if accelerator.is_main_process and not isinstance(error, ConfigurationError):
                text = how_to_go_on(args.output_dir)
                logger.warning("The training broke off. %s", text)
                error.add_note(text)
            raise


def _is_of_reading(error: BaseException) -> bool:
    """Whether torch may have said that of a file that it could not read."""
    return isinstance(error, pickle.UnpicklingError | EOFError) or "PytorchStreamReader" in str(error)


def _damaged(checkpoint: str, file: str, output_dir: str) -> str:
    others = [one for one in checkpoints_of(output_dir) if one.resolve() != Path(checkpoint).resolve()]
    whole = next((one for one in others if not fault_of(one)), None)
    remedy = f"Resume from {whole}" if whole else f"Start a new run from its model (`model_name_or_path` {checkpoint})"
    return f"{checkpoint} cannot be resumed from: its {file} is damaged. {remedy}."


@contextlib.contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM raises `SystemExit` with the shell's code for it; a second one ends the process at once."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def end(number: int, frame: FrameType | None) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _set_aside(output_dir: str, before: float, checkpoint: str | None) -> None:
    if checkpoint is None:
        set_aside(output_dir, before)
        return
    state = load_state(checkpoint, 0)
    if state is None:
        raise ConfigurationError(
            f"{checkpoint} was not saved by this trainer: it does not say which rollout batches were played. Start a "
            "new run from its model (`model_name_or_path`), in another `output_dir`."
        )
    set_aside_beyond(output_dir, step_of(checkpoint), state.num_rollouts)


def how_to_go_on(output_dir: str, command: str = "") -> str:
    """One line: from which checkpoint a run goes on, and how.

    Args:
        output_dir (`str`):
            The run's folder.
        command (`str`, *optional*):
            The command that goes on, for whoever works in a shell.
    """
    last = last_checkpoint(output_dir)
    if last is None:
        return f"There is no checkpoint in {Path(output_dir)} to go on from (`save_steps`): the run starts anew."
    how = command or "`trainer.train(resume_from_checkpoint='last')`"
    return f"Go on from {last} with {how}"
