"""Searches made at the same time by many threads, put to a retriever as one batch.

No thread of its own and no waiting time: while one batch runs, the searches that come in meanwhile gather, and the
first of their threads to find a free place runs them all.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from time import monotonic

from ..passages import Passage
from .base import Retriever, RetrieverError


# Causes that may lie in one query of the batch rather than in the service.
_MAYBE_ONE_QUERY = frozenset({"http_400", "http_413", "http_422", "http_500"})


class _Call:
    """One thread's search: waiting, then taken into a batch, then done."""

    def __init__(self, queries: list[str], topk: int):
        self.queries = queries
        self.topk = topk
        self.is_taken = False
        self.is_done = False
        self.hits: list[list[Passage]] = []
        self.error: BaseException | None = None
        self.had_company = False


class BatchingRetriever:
    """Merges concurrent searches into batches for another retriever.

    Args:
        retriever (`Retriever`):
            What answers the batches.
        max_batch (`int`, *optional*, defaults to `64`):
            Queries in a batch; a single call with more is passed on whole.
        max_concurrency (`int`, *optional*, defaults to `1`):
            Batches that run at the same time. 1 for a retriever in this process, more for a server.
        patience (`float`, *optional*):
            Seconds a search may wait for its batch to begin and end before it fails; None waits for ever.
    """

    def __init__(
        self,
        retriever: Retriever,
        *,
        max_batch: int = 64,
        max_concurrency: int = 1,
        patience: float | None = None,
    ):
        self.retriever = retriever
        self.max_batch = max_batch
        self.max_concurrency = max_concurrency
        self.patience = patience
        self._changed = threading.Condition()
        self._waiting: deque[_Call] = deque()
        self._num_running = 0

    def __reduce__(self):
        return _rebuild, (self.retriever, self.max_batch, self.max_concurrency, self.patience)

    def search(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        call = _Call(list(queries), topk)
        with self._changed:
            self._waiting.append(call)
        try:
            self._take_part(call)
        except BaseException:  # out of patience, or Ctrl-C: nobody is to search this any more
            with self._changed:
                if not call.is_taken:
                    self._waiting.remove(call)
            raise
        if call.error is None:
            return call.hits
        if call.had_company and getattr(call.error, "cause", "") in _MAYBE_ONE_QUERY:
            # Someone else's query may be what the server cannot stomach; alone, only the culprit fails.
            return self.retriever.search(call.queries, topk)
        raise call.error

    def close(self) -> None:
        self.retriever.close()

    def _take_part(self, call: _Call) -> None:
        """Returns when `call` is done, having run batches, perhaps of others, wherever a place was free."""
        deadline = None if self.patience is None else monotonic() + self.patience
        while True:
            with self._changed:
                timeout = None if deadline is None else max(0.0, deadline - monotonic())
                if not self._changed.wait_for(lambda: call.is_done or self._may_run(call), timeout):
                    raise RetrieverError.of(
                        "queue_timeout",
                        f"A search waited {self.patience:g} s behind other searches of {self.retriever!r}.",
                    )
                if call.is_done:
                    return
                batch = self._take_batch()
                self._num_running += 1
            try:
                self._run(batch)
            finally:
                with self._changed:
                    self._num_running -= 1
                    self._changed.notify_all()

    def _may_run(self, call: _Call) -> bool:
        return not call.is_taken and self._num_running < self.max_concurrency

    def _take_batch(self) -> list[_Call]:
        """The oldest waiting calls that ask for the same number of passages."""
        batch = [self._waiting.popleft()]
        num_queries = len(batch[0].queries)
        while (
            self._waiting
            and self._waiting[0].topk == batch[0].topk
            and num_queries + len(self._waiting[0].queries) <= self.max_batch
        ):
            call = self._waiting.popleft()
            num_queries += len(call.queries)
            batch.append(call)
        for call in batch:
            call.is_taken = True
            call.had_company = len(batch) > 1
        return batch

    def _run(self, batch: list[_Call]) -> None:
        """Fill in the outcome of every call of the batch, whatever happens."""
        try:
            queries = [query for call in batch for query in call.queries]
            hits = self.retriever.search(queries, batch[0].topk)
            if len(hits) != len(queries):
                raise RetrieverError.of(
                    "wrong_count", f"{self.retriever!r} gave {len(hits)} result lists for {len(queries)} queries."
                )
            start = 0
            for call in batch:
                call.hits = hits[start : start + len(call.queries)]
                start += len(call.queries)
        except Exception as error:
            for call in batch:
                call.error = error
        except BaseException:  # Ctrl-C, which is for this thread alone; the others see a search that failed
            for call in batch:
                call.error = RetrieverError.of("interrupted", f"A search of {self.retriever!r} was interrupted.")
            raise
        finally:
            for call in batch:
                call.is_done = True


def _rebuild(retriever: Retriever, max_batch: int, max_concurrency: int, patience: float | None) -> BatchingRetriever:
    return BatchingRetriever(retriever, max_batch=max_batch, max_concurrency=max_concurrency, patience=patience)
