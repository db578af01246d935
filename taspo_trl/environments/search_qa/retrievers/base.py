"""The seam between the environment and whatever finds passages: one method, and one exception for an outage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from ....errors import ConfigurationError, ServiceError
from ..passages import Passage


@runtime_checkable
class Retriever(Protocol):
    """Finds passages. May be called by several threads at once."""

    def search(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        """The best passages for each query, best first, at most `topk`; an empty list where nothing matches.

        Raises:
            [`~taspo_trl.errors.ServiceError`]: The retriever is down or answers nonsense.
        """
        ...

    def close(self) -> None:
        """Free what the retriever holds. May be called twice."""
        ...


class RetrieverError(ServiceError):
    """A retriever gave no usable answer; ends the episode with `StopReason.SERVICE_ERROR`.

    `cause` is a short name for counting: `connection`, `timeout`, `deadline`, `queue_timeout`, `http_<status>`,
    `bad_body`, `wrong_count` or `closed`.
    """

    cause: str = "unknown"

    @classmethod
    def of(cls, cause: str, message: str) -> RetrieverError:
        # OSError reads two constructor arguments as errno and text, so the cause is set afterwards.
        error = cls(message)
        error.cause = cause
        return error


def check_topk(topk: int) -> int:
    """`topk`, or [`~taspo_trl.errors.ConfigurationError`] where no passage could be returned."""
    if isinstance(topk, bool) or not isinstance(topk, int) or topk < 1:
        raise ConfigurationError(f"`topk` is {topk!r}, it must be a whole number of at least 1.")
    return topk
