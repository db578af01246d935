"""Turns as tables of W&B and trackio: what was done, whether it was accepted, and the credit that it got.

Texts of episodes are in them, so they go only where TRL's own table of completions goes: with `log_completions`.
Secrets are taken out. Trackio's logs that leave this machine get them only with `hub_push_trajectories`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

from ..records import TrajectoryRecord
from ..redaction import redactor
from ..types import Credit
from .trackio import cleaned, firsts, leaves


logger = logging.getLogger(__name__)

TABLE_KEY = "turns"
"""What the table is logged as."""
MOST_TURNS = 1_000
"""Rows of a table, in whole episodes: a batch of 512 episodes has some 15,000 turns, too many for a page."""

_MODULES = ("wandb", "trackio")


def tables_wanted(args: Any) -> list[str]:
    """The trackers of a run that get tables of turns."""
    return [name for name in _MODULES if args.log_completions and name in (args.report_to or ())]


def log_turns(name: str, args: Any, records: Sequence[TrajectoryRecord], step: int) -> bool:
    """Log the turns of a rollout batch to one tracker. Call it on the main process only.

    Args:
        name (`str`):
            `"wandb"` or `"trackio"`.
        args ([`~taspo_trl.TASPOConfig`]):
            With `log_unique_prompts` only the first trajectory of each group is logged.
        records (`Sequence[TrajectoryRecord]`):
            The batch.
        step (`int`):
            `global_step`.

    Returns:
        `bool`: whether anything was logged.
    """
    if name == "trackio" and leaves(args) and not args.hub_push_trajectories:
        logger.info("trackio gets no tables of turns: its logs go elsewhere, `hub_push_trajectories` is not set.")
        return False
    import importlib

    import pandas

    module = importlib.import_module(name)
    if name == "wandb" and module.run is None:
        return False
    shown = firsts(records) if args.log_unique_prompts else records
    table = module.Table(dataframe=pandas.DataFrame(turn_rows(shown, step)))
    options = {"step": step} if name == "trackio" else {}  # transformers' W&B callback counts its own steps
    module.log({TABLE_KEY: table}, **options)
    return True


def turn_rows(records: Sequence[TrajectoryRecord], step: int, most: int = MOST_TURNS) -> list[dict[str, Any]]:
    """A row for each turn of the first episodes whose turns together are at most `most`, in their order.

    Args:
        records (`Sequence[TrajectoryRecord]`):
            The episodes.
        step (`int`):
            `global_step`.
        most (`int`, *optional*, defaults to `1000`):
            Rows at most; the first episode is whole even if it has more.
    """
    redact = redactor()
    rows: list[dict[str, Any]] = []
    for record in records:
        if rows and len(rows) + len(record.trajectory.turns) > most:
            break
        rows += _rows(record, step, redact)
    return rows


def _rows(record: TrajectoryRecord, step: int, redact: Callable[[str], str]) -> list[dict[str, Any]]:
    t, credit = record.trajectory, record.credit
    rows = []
    for k, turn in enumerate(t.turns):
        weight = credit.weights[k] if credit is not None else None
        support = credit.supports[k] if credit is not None and credit.supports else None
        row = {
            "step": step,
            "group": record.group_id,
            "episode": t.uid,
            "turn": k,
            "observation": turn.observation,
            "reply": turn.reply_text,
            "action": turn.action,
            "accepted": turn.valid,
            "answer": turn.next_observation,
            "success": t.success,
            "reward": t.reward,
            "advantage": credit.advantage if credit is not None else None,
            "support": support,
            "weight": weight,
            "credit": _carried(credit, k) if credit is not None else None,
            "guidance": record.guidance.text if record.guidance else "",
        }
        rows.append({name: cleaned(value, redact) for name, value in row.items()})
    return rows


def _carried(credit: Credit, turn_idx: int) -> float:
    """The mean of A~ over the reply of a turn."""
    tokens = () if credit.token_advantages is None else credit.token_advantages[turn_idx]
    return math.fsum(tokens) / len(tokens) if tokens else credit.advantage * credit.weights[turn_idx]
