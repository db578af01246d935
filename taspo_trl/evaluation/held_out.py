"""The trainer's held-out tasks, dealt to its processes and played with the policy as it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..generation import SamplingSettings
from ..rollout.groups import Collector
from ..rollout.tasks import split_names
from .play import evaluate_tasks
from .results import EvaluationResult, Play


def play_held_out(
    rows: Sequence[Mapping[str, Any]],
    args: Any,
    collector: Collector,
    *,
    num_plays: int,
    settings: Mapping[str, Any],
    on_play: Callable[[Play], None] | None = None,
) -> EvaluationResult:
    """Play each row `num_plays` times, each process its share; the result is the same on all of them.

    Args:
        rows (`Sequence[Mapping[str, Any]]`):
            The tasks of the split.
        args ([`~taspo_trl.TASPOConfig`]):
            `eval_temperature`, `eval_top_p`, `eval_seed`, `per_device_eval_batch_size`.
        collector (`Collector`):
            Engine, environments, contexts and limits of the training's episodes.
        num_plays (`int`), settings (`Mapping[str, Any]`), on_play (`Callable`, *optional*):
            As in [`~taspo_trl.evaluation.evaluate_tasks`].
    """
    result = evaluate_tasks(
        rows,
        part=slice(collector.process_index, None, collector.num_processes),
        engine=collector.engine,
        pool=collector.pool,
        renderer=collector.renderer,
        rollout=collector.rollout,
        sampling=SamplingSettings(args.eval_temperature, args.eval_top_p),
        seed=args.eval_seed,
        num_plays=num_plays,
        max_in_flight=args.per_device_eval_batch_size,
        on_play=on_play,
        settings=settings,
    )
    plays = collector.gather(list(result.plays))
    splits = list(split_names(row.get("split") for row in rows))
    return EvaluationResult(tuple(plays), {**result.settings, "splits": splits})
