"""Who plays the teacher's branch: the policy itself, a copy of its past, an average, another model, a server."""

from __future__ import annotations

from typing import Any

import torch

from ...errors import ConfigurationError
from .base import PolicyAccess, TeacherScorer, score_for_term
from .copies import AverageTeacher, FrozenTeacher, StaleTeacher
from .model import ModelTeacher, check_tokenizers, load_model
from .rollout import RolloutTeacher
from .served import ServedTeacher


__all__ = [
    "AverageTeacher",
    "FrozenTeacher",
    "ModelTeacher",
    "PolicyAccess",
    "RolloutTeacher",
    "ServedTeacher",
    "StaleTeacher",
    "TeacherScorer",
    "check_tokenizers",
    "load_model",
    "make_teacher",
    "score_for_term",
]


def make_teacher(
    kind: str,
    policy: PolicyAccess,
    *,
    every: int = 10,
    rate: float = 0.05,
    model: Any = None,
    is_sharded: bool = False,
) -> TeacherScorer:
    """The teacher that [`~taspo_trl.credit.base.Needs`] names.

    Args:
        kind (`str`):
            `"rollout"`, `"stale"`, `"ema"`, `"frozen"` or `"model"`.
        policy (`PolicyAccess`):
            The policy.
        every (`int`, *optional*, defaults to `10`), rate (`float`, *optional*, defaults to `0.05`):
            m of `"stale"`, rho of `"ema"`.
        model ([`~transformers.PreTrainedModel`] or `TeacherScorer`, *optional*):
            Of `"model"`: a loaded model, see [`load_model`], or a [`ServedTeacher`].
        is_sharded (`bool`, *optional*, defaults to `False`):
            Whether ZeRO-3 or FSDP holds the policy in pieces.

    Raises:
        ConfigurationError: an unknown kind, a missing model, or a teacher that sharded weights do not allow.
    """
    kinds = ("rollout", "stale", "ema", "frozen", "model")
    if kind not in kinds:
        raise ConfigurationError(f"{kind!r} is no teacher; choose one of {', '.join(kinds)}.")
    if kind == "model":
        if model is None:
            raise ConfigurationError(
                'A teacher of the kind "model" needs a second model: name it, pass it, or give the address of a '
                "server that serves it."
            )
        if not isinstance(model, torch.nn.Module):
            return model
    if is_sharded and kind != "rollout":
        raise ConfigurationError(
            f'The teacher "{kind}" keeps whole weights on every process, but the policy is sharded (ZeRO-3 or FSDP). '
            'Use DDP or ZeRO-2, choose teacher="rollout", or serve the teacher with vLLM.'
        )
    if kind == "model":
        return ModelTeacher(model, policy)
    if kind == "stale":
        return StaleTeacher(policy, every)
    if kind == "ema":
        return AverageTeacher(policy, rate)
    return FrozenTeacher(policy) if kind == "frozen" else RolloutTeacher(policy)
