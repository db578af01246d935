"""Each task of a split played once, and what can be said of the result."""

from .results import (
    Comparison,
    EvaluationResult,
    Play,
    Rate,
    bootstrap_macro,
    compare,
    distinct_ids,
    evaluate_tasks,
    tasks_digest,
    wilson_rate,
)


__all__ = [
    "Comparison",
    "EvaluationResult",
    "Play",
    "Rate",
    "bootstrap_macro",
    "compare",
    "distinct_ids",
    "evaluate_tasks",
    "tasks_digest",
    "wilson_rate",
]
