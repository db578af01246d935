"""Each task of a split played once, and what can be said of the result."""

from .play import distinct_ids, evaluate_tasks, refuse_repeated, tasks_digest
from .results import Comparison, EvaluationResult, Play, compare
from .statistics import Rate, bootstrap_macro, wilson_rate


__all__ = [
    "Comparison",
    "EvaluationResult",
    "Play",
    "Rate",
    "bootstrap_macro",
    "compare",
    "distinct_ids",
    "evaluate_tasks",
    "refuse_repeated",
    "tasks_digest",
    "wilson_rate",
]
