"""The policy itself plays the teacher's branch, with the weights of the moment at which it is asked."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch

from ...generation.decoder import base_model
from ...generation.frozen import frozen_mode
from ..distributions import Head
from ..layout import runs_without_padding
from ..projection import head_of
from ..whole import TokenScores, WholeRow, num_row_batches, score_rows
from .base import PolicyAccess


class RolloutTeacher:
    """The policy as it is when it is asked: pi_old where the batch is scored before its update."""

    def __init__(self, policy: PolicyAccess):
        self.policy = policy
        self._head: Head | None = None

    @property
    def head(self) -> Head:
        if self._head is None:  # resumed
            model = self.policy.unwrap(self.policy.get_model())
            with torch.no_grad(), self._playing(model):
                self._head = self._kept_head(model)
        return self._head

    def score(
        self,
        rows: Sequence[WholeRow],
        *,
        vocabulary: int = 0,
        temperature: float | None = None,
        num_batches: int | None = None,
    ) -> list[TokenScores]:
        wrapped = self.policy.get_model()
        model = self.policy.unwrap(wrapped)
        with torch.no_grad(), self._playing(model), frozen_mode(wrapped), self.policy.autocast():
            scores = score_rows(
                model,
                rows,
                vocabulary=vocabulary,
                temperature=temperature,
                max_tokens=self.policy.max_tokens,
                pad_token_id=self.policy.pad_token_id,
                forward=wrapped,
                num_batches=num_batches,
            )
            if vocabulary == -1:
                self._head = self._kept_head(model)
        return scores

    def num_batches(self, rows: Sequence[WholeRow]) -> int:
        padding_free = runs_without_padding(self.policy.unwrap(self.policy.get_model()))
        return num_row_batches(rows, self.policy.max_tokens, padding_free)

    def follow(self, step: int) -> None:
        """The policy is always itself."""

    def state_dict(self) -> dict[str, Any]:
        """The LM head of the batch that is being learned from, where training changes it."""
        head = self._head
        return {} if head is None or not self._head_is_trained() else {"head": head.weight, "head_bias": head.bias}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._head = None
        if "head" in state:
            weight, bias = state["head"], state["head_bias"]
            now = self.head
            self._head = replace(now, weight=weight.to(now.weight), bias=None if bias is None else bias.to(now.weight))

    def close(self) -> None:
        """Nothing is open."""

    def _playing(self, model: Any) -> AbstractContextManager[Any]:
        """The teacher's weights are in `model` inside."""
        return contextlib.nullcontext()

    def _kept_head(self, model: Any) -> Head:
        # The optimizer changes the policy's weights in place.
        return detached(head_of(base_model(model), self.policy.temperature, self.policy.in_fp32), copied=True)

    def _head_is_trained(self) -> bool:
        weight = base_model(self.policy.unwrap(self.policy.get_model())).get_output_embeddings().weight
        return bool(weight.requires_grad)


def detached(head: Head, copied: bool) -> Head:
    """The head without gradient; copied where training would change it in place."""
    weight, bias = head.weight.detach(), head.bias.detach() if head.bias is not None else None
    if copied and head.weight.requires_grad:
        weight, bias = weight.clone(), bias.clone() if bias is not None else None
    return replace(head, weight=weight, bias=bias)
