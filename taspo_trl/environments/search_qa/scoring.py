"""How an answer is judged: exact match and token F1 after the standard normalisation of question answering.

Pure: strings in, numbers out.
"""

from __future__ import annotations

import re
import string
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


MACRO = "macro"
"""Name of the unweighted mean over the sets in [`summarize_scores`]."""

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_DROP_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True, slots=True)
class AnswerScore:
    """The verdict on one answer."""

    exact_match: bool
    f1: float


NO_ANSWER = AnswerScore(exact_match=False, f1=0.0)
"""The score of an episode that ended without an answer."""


@dataclass(frozen=True, slots=True)
class SetScore:
    """Mean scores of one question set."""

    exact_match: float
    f1: float
    num_questions: int


def normalize_answer(text: str) -> str:
    """`text` in lower case, without ASCII punctuation and English articles, its white space collapsed.

    The order is the published one: punctuation goes before articles, so "A.N." becomes the article "an" and vanishes,
    and is deleted rather than replaced by a blank, so "well-known" becomes "wellknown". Accents, curly quotes, long
    dashes and number formats stay as they are.
    """
    without_punctuation = text.lower().translate(_DROP_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", without_punctuation).split())


def exact_match(prediction: str, golden_answers: Sequence[str]) -> bool:
    """Whether `prediction` equals any golden answer after normalisation. A blank prediction equals none."""
    if not prediction.strip():
        # A golden answer such as "A" is all article: normalised it is empty and would be matched by saying nothing.
        return False
    normalized = normalize_answer(prediction)
    return any(normalized == normalize_answer(answer) for answer in golden_answers)


def f1_score(prediction: str, golden_answers: Sequence[str]) -> float:
    """The best token F1 of `prediction` against any golden answer, tokens being the normalised words."""
    predicted = normalize_answer(prediction).split()
    return max((_token_f1(predicted, normalize_answer(answer).split()) for answer in golden_answers), default=0.0)


def _token_f1(predicted: list[str], golden: list[str]) -> float:
    num_common = (Counter(predicted) & Counter(golden)).total()
    if num_common == 0:
        return 0.0
    precision = num_common / len(predicted)
    recall = num_common / len(golden)
    return 2 * precision * recall / (precision + recall)


def score_answer(prediction: str, golden_answers: Sequence[str]) -> AnswerScore:
    """Exact match and F1 of one answer; an exact match always has F1 1."""
    if exact_match(prediction, golden_answers):
        # The two differ only where a golden answer normalises to nothing and so has no tokens to share.
        return AnswerScore(exact_match=True, f1=1.0)
    return AnswerScore(exact_match=False, f1=f1_score(prediction, golden_answers))


def summarize_scores(scores: Iterable[tuple[str, AnswerScore]]) -> Mapping[str, SetScore]:
    """Mean scores of each set, and under `"macro"` the mean of the sets' means, which is what papers report.

    Args:
        scores (`Iterable[tuple[str, AnswerScore]]`):
            One (set name, score) pair for each question; unanswered questions count as [`NO_ANSWER`].
    """
    by_set: dict[str, list[AnswerScore]] = defaultdict(list)
    for name, score in scores:
        by_set[name].append(score)
    if not by_set:
        return {}
    summary = {
        name: SetScore(
            exact_match=sum(score.exact_match for score in members) / len(members),
            f1=sum(score.f1 for score in members) / len(members),
            num_questions=len(members),
        )
        for name, members in by_set.items()
    }
    means = list(summary.values())
    summary[MACRO] = SetScore(
        exact_match=sum(mean.exact_match for mean in means) / len(means),
        f1=sum(mean.f1 for mean in means) / len(means),
        num_questions=sum(mean.num_questions for mean in means),
    )
    return summary
