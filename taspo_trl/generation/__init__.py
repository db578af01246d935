"""The generation engines: prompt ids in, sampled ids out. The only package that knows them."""

from .base import Engine, EngineAround, Generation, GenerationRequest, SamplingSettings, SteppedEngine
from .frozen import frozen_mode
from .transformers import TransformersEngine


__all__ = [
    "Engine",
    "EngineAround",
    "Generation",
    "GenerationRequest",
    "SamplingSettings",
    "SteppedEngine",
    "TransformersEngine",
    "frozen_mode",
]
