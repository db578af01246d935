"""The seam for the teacher's branch: who scores, how it follows the policy, what the checkpoint keeps of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ..distributions import Head
from ..whole import TokenScores, WholeRow


class TeacherScorer(Protocol):
    """The seam: scores rows, follows the policy, and keeps what it needs in the checkpoint."""

    @property
    def head(self) -> Head:
        """The LM head of the latest `score` with `vocabulary` -1; its weights do not change until the next."""

    def score(
        self,
        rows: Sequence[WholeRow],
        *,
        vocabulary: int = 0,
        temperature: float | None = None,
        num_batches: int | None = None,
    ) -> list[TokenScores]:
        """As [`~taspo_trl.scoring.whole.score_rows`]."""

    def num_batches(self, rows: Sequence[WholeRow]) -> int:
        """Forwards for `rows`."""

    def follow(self, step: int) -> None:
        """To be called before the first rollout (`step` 0) and after each optimizer update, with the number of
        completed updates. A second call with the same number does nothing."""

    def state_dict(self) -> dict[str, Any]:
        """Numbers, tensors and dictionaries of these, the same on every process; empty where nothing is kept."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class PolicyAccess:
    """How a teacher reaches the policy.

    Args:
        get_model (`Callable`):
            Gives the policy as the trainer calls it now, in its wrappers.
        unwrap (`Callable`):
            Takes the training wrappers off; a PEFT wrapper stays.
        autocast (`Callable`):
            Gives the context of a forward.
        max_tokens (`int`), pad_token_id (`int`):
            As in [`~taspo_trl.scoring.whole.score_rows`].
        temperature (`float`, *optional*, defaults to `1.0`), in_fp32 (`bool`, *optional*, defaults to `False`):
            As given to [`~taspo_trl.scoring.projection.add_selected_projection`].
    """

    get_model: Callable[[], Any]
    unwrap: Callable[[Any], Any]
    autocast: Callable[[], AbstractContextManager[Any]]
    max_tokens: int
    pad_token_id: int
    temperature: float = 1.0
    in_fp32: bool = False


def score_for_term(
    teacher: TeacherScorer,
    rollout: TeacherScorer,
    guided: Sequence[WholeRow],
    plain: Sequence[WholeRow],
    *,
    vocabulary: int,
    top_of: str,
    temperature: float | None,
    num_batches: tuple[int, int] | None = None,
) -> list[TokenScores]:
    """The teacher's scores of the guided rows as a distillation term asks for them.

    Args:
        teacher (`TeacherScorer`), rollout (`TeacherScorer`):
            Who plays the guided branch, and pi_old.
        guided (`Sequence[WholeRow]`), plain (`Sequence[WholeRow]`):
            The same tokens in both branches, row by row.
        vocabulary (`int`), top_of (`str`), temperature (`float`, *optional*):
            Of [`~taspo_trl.credit.base.Needs`]. With the student's top k there is a forward more: pi_old chooses the
            ids, the teacher is gathered at them.
        num_batches (`tuple[int, int]`, *optional*):
            The least numbers of guided and of plain batches, for sharded models.
    """
    least_guided, least_plain = num_batches or (None, None)
    if vocabulary > 0 and top_of == "student":
        chosen = rollout.score(plain, vocabulary=vocabulary, temperature=temperature, num_batches=least_plain)
        guided = [replace(row, at_ids=one.top_ids) for row, one in zip(guided, chosen, strict=True)]
    return teacher.score(guided, vocabulary=vocabulary, temperature=temperature, num_batches=least_guided)
