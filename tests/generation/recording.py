"""A weight-transfer client that copies what it is sent, at the moment when vLLM's broadcast would."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch


class RecordingClient:
    """Stands in for TRL's `VLLMClient`.

    Args:
        packs (`bool`, *optional*, defaults to `True`):
            Keep references until the walk has ended, and copy only then: so does vLLM's packed broadcast with the last
            buffer, which for a small model is all of it.
        before_update (`Callable`, *optional*):
            Called as each update begins.
    """

    def __init__(self, packs: bool = True, before_update: Any = lambda: None):
        self.base_url = "http://recording:8000"
        self.packs = packs
        self.before_update = before_update
        self.updates: list[dict[str, torch.Tensor]] = []
        self.orders: list[list[str]] = []
        self.num_resets = 0
        self.events: list[str] = []
        self.is_closed = False
        self.session = SimpleNamespace(close=lambda: None)

    def update_named_params(self, metadata: list, named_params: Iterator[tuple[str, torch.Tensor]]) -> None:
        self.before_update()
        self.events.append("update")
        received: list[tuple[str, torch.Tensor]] = []
        for name, param in named_params:
            received.append((name, param if self.packs else param.clone()))
        assert [name for name, _, _ in metadata] == [name for name, _ in received]
        assert [tuple(shape) for *_, shape in metadata] == [tuple(param.shape) for _, param in received]
        self.orders.append([name for name, _ in received])
        self.updates.append({name: param.detach().clone() for name, param in received})

    def reset_prefix_cache(self) -> None:
        self.num_resets += 1
        self.events.append("reset")

    def close_communicator(self) -> None:
        self.is_closed = True
