"""Distillation terms: what a policy learns from a teacher's branch, beside or instead of the outcome."""

from .base import Branch, DistillTerm, Reduction
from .coefficients import distill_coefficients
from .compose import TeacherColumns, distillation_loss, row_scores, teacher_columns, update_distribution
from .opd import opd
from .opsd import OPSD, grpo_opsd
from .sdar import SDAR, grpo_opsd_sdar, opsd_sdar
from .sdpo import SDPO, grpo_sdpo
from .skillsd import SkillSD


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
