"""Search-QA: seven public question sets or an embedded one, local and served retrieval, judged by exact match."""

from .environment import SearchQAEnvironment
from .passages import Passage
from .questions import load_questions
from .scoring import AnswerScore, SetScore, exact_match, f1_score, normalize_answer, score_answer, summarize_scores
from .server import RetrieverServer, serve
from .sources import EMBEDDED_SETS, FLASHRAG, QUESTION_SETS, SEARCH_R1, TRAIN_SETS


__all__ = [
    "EMBEDDED_SETS",
    "FLASHRAG",
    "QUESTION_SETS",
    "SEARCH_R1",
    "TRAIN_SETS",
    "AnswerScore",
    "Passage",
    "RetrieverServer",
    "SearchQAEnvironment",
    "SetScore",
    "exact_match",
    "f1_score",
    "load_questions",
    "normalize_answer",
    "score_answer",
    "serve",
    "summarize_scores",
]
