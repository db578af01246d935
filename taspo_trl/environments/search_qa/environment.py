"""Search-QA: a question, a few searches over a passage collection, one answer judged by exact match."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import ConfigurationError, EnvironmentContractError
from ...tokens import ActionBlock
from ..base import ResetResult, StepResult, TextEnvironment
from ..examples import WorkedExample, builtin_examples, of_family
from .passages import render_passages
from .prompts import EMPTY_SEARCH_HINT, FIRST_OBSERVATION, GENERIC_SKILLS, NO_ACTION_HINT, ReplyFormat, build_prompt
from .questions import load_questions
from .replies import TAGS, find_fault, format_action, parse_action
from .retrievers.base import Retriever, check_topk
from .retrievers.open import EMBEDDED, check_spec, open_retriever
from .scoring import NO_ANSWER, AnswerScore, score_answer


if TYPE_CHECKING:
    from datasets import Dataset


class SearchQAEnvironment(TextEnvironment):
    """Multi-turn question answering with a retriever.

    A reply holds one `<search>query</search>` or one `<answer>text</answer>`. A search is answered with passages, the
    answer ends the episode with reward 1 for an exact match and 0 otherwise. A reply without a complete block, or with
    a blank search, gets a hint and costs its turn. A search in the last turn retrieves nothing: the episode is cut
    there. A retriever that is down makes `step` raise [`~taspo_trl.errors.ServiceError`]; the policy never sees that
    as text.

    Args:
        retriever (`Retriever`, `str` or `Path`, *optional*, defaults to `"embedded"`):
            Where to search: `"embedded"` for BM25 over the embedded corpus, the address of a served index
            (`"http://..."` for the batch format, `"single+http://..."` for the single one), an index folder, a corpus
            in JSON lines, or an object with `search(queries, topk)` and `close()`. All episodes of a process share it.
        topk (`int`, *optional*, defaults to `3`):
            Passages for each search.
        max_passage_chars (`int`, *optional*, defaults to `1200`):
            Characters of one passage that are shown.
        max_turns (`int`, *optional*, defaults to `4`):
            Replies in an episode. `TASPOConfig.max_turns` can only make it fewer.
        reply_format (`"think"` or `"action"`, *optional*, defaults to `"think"`):
            Whether replies are asked to reason inside think tags first.
    """

    action_tags = TAGS
    max_turns = 4

    def __init__(
        self,
        retriever: Retriever | str | Path = EMBEDDED,
        *,
        topk: int = 3,
        max_passage_chars: int = 1200,
        max_turns: int = 4,
        reply_format: ReplyFormat = "think",
    ):
        check_spec(retriever)
        for name, value in (("max_turns", max_turns), ("max_passage_chars", max_passage_chars)):
            if value < 1:
                raise ConfigurationError(f"`{name}` ({value}) must be at least 1.")
        self.prompt = build_prompt(reply_format, max_turns)
        self.max_turns = max_turns
        self.history_length = max_turns  # the window shows every turn
        self._spec = retriever
        self._topk = check_topk(topk)
        self._max_passage_chars = max_passage_chars
        self._golden_answers: list[str] = []
        self._turns_left = 0
        self._num_searches = 0

    @classmethod
    def dataset(  # type: ignore[override]  # the base takes any keywords
        cls,
        split: str = "train",
        *,
        sets: Sequence[str] | None = None,
        source: str | Path = "embedded",
        limit: int | None = None,
        seed: int = 0,
    ) -> Dataset:
        """One row for each question: `task_id`, `question`, `golden_answers`, `family` (the set's name), `split`.

        The arguments are those of [`~taspo_trl.environments.search_qa.load_questions`].
        """
        from datasets import Dataset, Features, Value

        rows = load_questions(split, sets=sets, source=source, limit=limit, seed=seed)
        text = Value("string")
        columns = {"task_id": text, "question": text, "golden_answers": [text], "family": text, "split": text}
        return Dataset.from_list(rows, features=Features(columns))

    def reset(  # type: ignore[override]  # the columns of its rows, by name
        self, *, seed: int, question: str, golden_answers: Sequence[str], family: str = "all", **row: Any
    ) -> ResetResult:
        """Start with a question. Nothing is drawn at random, so `seed` changes nothing."""
        self._golden_answers = [golden_answers] if isinstance(golden_answers, str) else list(golden_answers)
        if not self._golden_answers:
            raise ConfigurationError(f"The question {question!r} has no golden answer, so no answer can be right.")
        self._turns_left = self.max_turns
        self._num_searches = 0
        return ResetResult(FIRST_OBSERVATION, {"task": question, "family": family})

    def step(self, action: str) -> StepResult:
        if self._turns_left == 0:
            raise EnvironmentContractError("`step` was called before `reset`, or after the episode had ended.")
        self._turns_left -= 1
        request = parse_action(action)
        if request is None:
            return self._go_on(NO_ACTION_HINT, valid=False)
        if request.tag == "answer":
            self._turns_left = 0
            score = score_answer(request.text, self._golden_answers)
            return self._result("", score, valid=bool(request.text), terminated=True)
        if not request.text:
            return self._go_on(EMPTY_SEARCH_HINT, valid=False)
        if self._turns_left == 0:  # nobody would read the passages
            return self._go_on("", valid=True)
        passages = self._retriever().search([request.text], self._topk)[0]
        self._num_searches += 1
        return self._go_on(render_passages(passages, self._max_passage_chars), valid=True)

    def action_of(self, block: ActionBlock) -> str:
        return format_action(block)

    def reply_fault(self, reply_text: str, block: ActionBlock | None) -> str:
        return find_fault(reply_text, block)

    def generic_skill(self, family: str) -> str:
        return GENERIC_SKILLS.get(family, "")

    def worked_examples(self, family: str) -> tuple[WorkedExample, ...]:
        """A question of one hop and one of two, about the embedded archipelago; of several for such a set."""
        hops = "two_hop" if family in ("hotpotqa", "2wikimultihopqa", "musique", "bamboogle", "two_hop") else "one_hop"
        return of_family(builtin_examples("search_qa"), hops)

    def _retriever(self) -> Retriever:
        return open_retriever(self._spec)

    def _go_on(self, observation: str, *, valid: bool) -> StepResult:
        """An episode without an answer so far; cut when its last turn is used up."""
        return self._result(observation, NO_ANSWER, valid=valid, terminated=False)

    def _result(self, observation: str, score: AnswerScore, *, valid: bool, terminated: bool) -> StepResult:
        is_cut = not terminated and self._turns_left == 0
        return StepResult(
            observation="" if is_cut else observation,
            reward=float(score.exact_match),
            terminated=terminated,
            truncated=is_cut,
            info={
                "valid": valid,
                "success": score.exact_match,
                "exact_match": score.exact_match,
                "f1": score.f1,
                "num_searches": self._num_searches,
            },
        )
