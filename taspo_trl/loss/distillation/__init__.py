"""Distillation terms: what a policy learns from a teacher's branch, beside or instead of the outcome.

What computes with tensors is loaded on first use: a list of the methods needs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .base import Branch, DistillTerm, Reduction
from .coefficients import distill_coefficients
from .opd import opd
from .opsd import OPSD, grpo_opsd
from .sdar import SDAR, grpo_opsd_sdar, opsd_sdar
from .sdpo import SDPO, grpo_sdpo
from .skillsd import SkillSD


if TYPE_CHECKING:
    from .compose import TeacherColumns, distillation_loss, row_scores, teacher_columns, update_distribution

_OF_COMPOSE = ("TeacherColumns", "distillation_loss", "row_scores", "teacher_columns", "update_distribution")


__all__ = [
    "OPSD",
    "SDAR",
    "SDPO",
    "Branch",
    "DistillTerm",
    "Reduction",
    "SkillSD",
    "TeacherColumns",
    "distill_coefficients",
    "distillation_loss",
    "grpo_opsd",
    "grpo_opsd_sdar",
    "grpo_sdpo",
    "opd",
    "opsd_sdar",
    "row_scores",
    "teacher_columns",
    "update_distribution",
]


def __getattr__(name: str) -> Any:
    if name in _OF_COMPOSE:
        return getattr(import_module(".compose", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
