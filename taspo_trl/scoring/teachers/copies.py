"""Copies of the policy's trained weights play the teacher's branch: stale, averaged, or frozen at the start.

A copy holds the trained parameters alone (with LoRA the adapter's) and is put in their place for its forwards, so that
no second model is kept. Every process holds its own copy; all are the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ...errors import ConfigurationError, InvariantError
from ...generation.decoder import base_model
from ..distributions import Head
from ..projection import head_of
from .base import PolicyAccess
from .rollout import RolloutTeacher, detached


class _CopyTeacher(RolloutTeacher):
    """A teacher whose weights are a copy of what the policy trains."""

    def __init__(self, policy: PolicyAccess):
        super().__init__(policy)
        self.weights: dict[str, torch.Tensor] = {}
        self.step = -1
        """Completed updates that it has seen; -1 = none, nor the start."""

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "step": self.step, "weights": dict(self.weights)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        trained = self._trained()
        found = state.get("weights", {})
        if set(found) != set(trained) or any(found[name].shape != one.shape for name, one in trained.items()):
            raise ConfigurationError(
                f"The checkpoint's teacher has {len(found)} trained tensors, the policy {len(trained)} of other names "
                "or shapes. Resume with the model and the adapter of the run that wrote it, or start a new run."
            )
        self.weights = {name: found[name].to(trained[name].device, copy=True) for name in trained}
        self.step = int(state["step"])
        super().load_state_dict(state)

    def _trained(self) -> dict[str, torch.Tensor]:
        model = self.policy.unwrap(self.policy.get_model())
        return {name: one.detach() for name, one in model.named_parameters() if one.requires_grad}

    def _copy(self) -> None:
        # New tensors, never a change in place: a head that a batch still needs stays as it was.
        self.weights = {name: one.clone() for name, one in self._trained().items()}

    def _refuse_without_state(self, step: int) -> None:
        if step > 0 and self.step < 0:
            raise ConfigurationError(
                f"Training goes on at update {step}, but no state of its teacher was loaded: the checkpoint is of a "
                "run without one. Resume from a checkpoint of a run with this method, or start a new run."
            )

    @contextlib.contextmanager
    def _playing(self, model: Any) -> Iterator[None]:
        if not self.weights:
            raise InvariantError("A teacher was asked before it followed the policy once.")
        members = [(one, self.weights[name]) for name, one in model.named_parameters() if name in self.weights]
        kept = [one.data for one, _ in members]
        try:
            for one, weight in members:
                one.data = weight.to(one.dtype)
            yield
        finally:
            for (one, _), data in zip(members, kept, strict=True):
                one.data = data

    def _kept_head(self, model: Any) -> Head:
        return detached(head_of(base_model(model), self.policy.temperature, self.policy.in_fp32), copied=False)


class StaleTeacher(_CopyTeacher):
    """At update n the weights after m * floor(n / m) updates.

    Args:
        policy (`PolicyAccess`):
            Of whom copies are taken.
        every (`int`):
            m.
    """

    def __init__(self, policy: PolicyAccess, every: int):
        if every < 1:
            raise ConfigurationError(
                f"A stale teacher is copied every `teacher_every` updates, got {every}; at least 1."
            )
        super().__init__(policy)
        self.every = every

    def follow(self, step: int) -> None:
        self._refuse_without_state(step)
        if step == self.step:
            return
        if step % self.every == 0:
            self._copy()
        elif step // self.every != self.step // self.every:
            raise InvariantError(f"A stale teacher saw update {step} after {self.step} and missed its copy between.")
        self.step = step


class AverageTeacher(_CopyTeacher):
    """After each update teacher <- (1 - rho) * teacher + rho * student, from the initial policy on.

    Half precision is averaged in float32, where small steps are not lost.

    Args:
        policy (`PolicyAccess`):
            Whose average is kept.
        rate (`float`):
            rho, in (0, 1].
    """

    def __init__(self, policy: PolicyAccess, rate: float):
        if not 0 < rate <= 1:
            raise ConfigurationError(f"`teacher_rate` must be above 0 and at most 1, got {rate}.")
        super().__init__(policy)
        self.rate = rate

    def follow(self, step: int) -> None:
        self._refuse_without_state(step)
        if step == self.step:
            return
        if step == 0:
            self.weights = {name: _wide(one).clone() for name, one in self._trained().items()}
        elif step == self.step + 1:
            now = self._trained()
            self.weights = {
                name: torch.lerp(one, now[name].to(one.dtype), self.rate) for name, one in self.weights.items()
            }
        else:
            raise InvariantError(f"An averaged teacher saw update {step} after {self.step}: it has to see each one.")
        self.step = step


class FrozenTeacher(_CopyTeacher):
    """The policy as it was before the first update of the run."""

    def follow(self, step: int) -> None:
        self._refuse_without_state(step)
        if not self.weights:
            self._copy()
        self.step = step


def _wide(weight: torch.Tensor) -> torch.Tensor:
    return weight.float() if weight.dtype in (torch.float16, torch.bfloat16) else weight
