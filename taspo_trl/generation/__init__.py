"""The generation engines: prompt ids in, sampled ids out. The only package that knows them."""

from .base import Generation, GenerationRequest, Policy, SamplingSettings
from .frozen import frozen_mode
from .transformers import TransformersPolicy


__all__ = [
    "Generation",
    "GenerationRequest",
    "Policy",
    "SamplingSettings",
    "TransformersPolicy",
    "frozen_mode",
]
