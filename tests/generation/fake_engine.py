"""The few methods of vLLM's `LLMEngine` and `LLM` that are used, with their contracts, on a CPU.

Faithful to vLLM 0.32 in what the policy relies on: requests join between steps, `step` gives one token to each of at
most `max_num_seqs` running requests and returns the finished ones (`FINAL_ONLY`), `add_request` raises for a prompt
that is too long, a reply includes its end token, log-probabilities come as one dictionary for each position, and an
aborted request is never heard of again.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any


EOS = 2


@dataclass
class _Running:
    prompt: list[int]
    params: SimpleNamespace
    ids: list[int]


class FakeEngine:
    """An engine whose request of prompt (n, ...) ends after n tokens.

    Args:
        max_num_seqs (`int`), max_model_len (`int`):
            As in vLLM.
        on_step (`Callable`, *optional*):
            Called with the number of each step; may raise.
        logp (`Callable`, *optional*):
            Position -> log-probability.
    """

    def __init__(
        self,
        max_num_seqs: int = 4,
        max_model_len: int = 64,
        on_step: Callable[[int], None] = lambda number: None,
        logp: Callable[[int], float] = lambda position: -0.25 * (position + 1),
    ):
        self.max_num_seqs = max_num_seqs
        self.model_config = SimpleNamespace(max_model_len=max_model_len)
        self.on_step, self.logp = on_step, logp
        self.requests: OrderedDict[str, _Running] = OrderedDict()
        self.num_steps = 0
        self.batches: list[list[str]] = []
        """Who ran in each step, by the second prompt token."""
        self.threads: set[str] = set()
        self.params: list[SimpleNamespace] = []
        self.aborted: list[str] = []
        self._is_busy = False

    def add_request(self, request_id: str, prompt: dict[str, Any], params: SimpleNamespace) -> str:
        self._alone()
        ids = prompt["prompt_token_ids"]
        if len(ids) >= self.model_config.max_model_len:
            raise ValueError(f"This model's maximum context length is {self.model_config.max_model_len} tokens.")
        assert request_id not in self.requests
        self.params.append(params)
        self.requests[request_id] = _Running(list(ids), params, [])
        return request_id

    def step(self) -> list[Any]:
        self._alone()
        self._is_busy = True
        try:
            self.on_step(self.num_steps)
            self.num_steps += 1
            running = list(self.requests.items())[: self.max_num_seqs]
            self.batches.append([one.prompt[-1] for _, one in running])
            finished = []
            for request_id, one in running:
                one.ids.append(EOS if len(one.ids) + 1 >= one.prompt[0] else 10 + one.params.seed % 7)
                if one.ids[-1] == EOS or len(one.ids) >= one.params.max_tokens:
                    finished.append(self._output(request_id, self.requests.pop(request_id)))
            return finished
        finally:
            self._is_busy = False

    def has_unfinished_requests(self) -> bool:
        return bool(self.requests)

    def abort_request(self, request_ids: list[str]) -> None:
        self._alone()
        for request_id in request_ids:
            self.aborted.append(request_id)
            self.requests.pop(request_id, None)

    def _output(self, request_id: str, one: _Running) -> SimpleNamespace:
        logprobs = [{token: SimpleNamespace(logprob=self.logp(k), rank=1)} for k, token in enumerate(one.ids)]
        reason = "stop" if one.ids[-1] == EOS else "length"
        reply = SimpleNamespace(token_ids=one.ids, finish_reason=reason, logprobs=logprobs)
        return SimpleNamespace(request_id=request_id, finished=True, outputs=[reply])

    def _alone(self) -> None:
        """vLLM's engine is not made for two threads at once."""
        assert not self._is_busy, "the engine was touched during a step"
        self.threads.add(threading.current_thread().name)


class FakeLLM:
    """vLLM's `LLM` with sleep mode: its weights are lost with every sleep of level 2."""

    def __init__(self, engine: FakeEngine | None = None):
        self.llm_engine = engine or FakeEngine()
        self.events: list[str] = []
        self.loaded: dict[str, Any] = {}
        self.has_weights, self.has_cache = True, True
        model = SimpleNamespace(load_weights=self._load)
        runner = SimpleNamespace(model_runner=SimpleNamespace(model=model))
        self.llm_engine.model_executor = SimpleNamespace(driver_worker=runner)  # type: ignore[attr-defined]
        step = self.llm_engine.step

        def checked_step() -> list[Any]:
            assert self.has_weights and self.has_cache, "the engine generates in its sleep"
            return step()

        self.llm_engine.step = checked_step  # type: ignore[method-assign]

    def sleep(self, level: int) -> None:
        assert level == 2 and not self.llm_engine.has_unfinished_requests()
        self.events.append("sleep")
        self.loaded.clear()
        self.has_weights = self.has_cache = False

    def wake_up(self, tags: list[str]) -> None:
        self.events.append(f"wake {tags[0]}")
        self.has_weights |= tags == ["weights"]
        self.has_cache |= tags == ["kv_cache"]

    def reset_prefix_cache(self) -> None:
        self.events.append("reset")

    def _load(self, weights: list[tuple[str, Any]]) -> None:
        assert self.has_weights, "weights are written to memory that is not there"
        if not self.loaded:
            self.events.append("load")
        self.loaded |= {name: value.clone() for name, value in weights}


def make_parameters(**keywords: Any) -> SimpleNamespace:
    """Stands in for `SamplingParams`."""
    return SimpleNamespace(**keywords)


def slowly(seconds: float = 0.005) -> Callable[[int], None]:
    return lambda number: time.sleep(seconds)
