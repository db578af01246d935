"""The output folder of a run while it trains: locked, without what belongs to other runs, and said where to go on."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..checkpoints import checkpoint_to_resume, last_checkpoint, step_of
from ..errors import ConfigurationError
from .checkpoint import load_state
from .earlier_run import set_aside, set_aside_beyond
from .lock import only_run_in
from .saving import mend


logger = logging.getLogger(__name__)


@contextlib.contextmanager
def run_in_folder(args: Any, accelerator: Any, before: float, resume: str | bool | None) -> Iterator[str | None]:
    """Hold `args.output_dir` for a training that begins or goes on; yields the checkpoint that it goes on from.

    Every process enters it; the first one locks the folder, and says from which checkpoint to go on when the training
    breaks off.

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
        try:
            yield checkpoint
        except BaseException as error:
            if accelerator.is_main_process and not isinstance(error, ConfigurationError):
                logger.warning("The training broke off. %s", _how_to_go_on(args.output_dir))
            raise


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


def _how_to_go_on(output_dir: str) -> str:
    last = last_checkpoint(output_dir)
    if last is None:
        return f"No checkpoint is in {Path(output_dir)} yet (`save_steps`): it starts anew."
    return f"Go on from {last} with `resume_from_checkpoint='last'`."
