"""Each task of a split played once, or as often as an agent may try, and what can be said of the result."""

from .agents import AGENTS, EvaluationAgent, PlainAgent, ReActAgent, ReflexionAgent, RetryAgent
from .notes import AnalyzerReflector, PolicyReflector, Reflector
from .play import distinct_ids, evaluate_tasks, evaluation_facts, planned_plays, refuse_repeated, tasks_digest
from .results import Attempt, Comparison, EvaluationResult, Note, Play, compare, refuse_other_result
from .statistics import Rate, macro_rate, wilson_rate


__all__ = [
    "AGENTS",
    "AnalyzerReflector",
    "Attempt",
    "Comparison",
    "EvaluationAgent",
    "EvaluationResult",
    "Note",
    "PlainAgent",
    "Play",
    "PolicyReflector",
    "Rate",
    "ReActAgent",
    "Reflector",
    "ReflexionAgent",
    "RetryAgent",
    "compare",
    "distinct_ids",
    "evaluate_tasks",
    "evaluation_facts",
    "macro_rate",
    "planned_plays",
    "refuse_other_result",
    "refuse_repeated",
    "tasks_digest",
    "wilson_rate",
]
