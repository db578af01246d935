"""The embedded Search-QA world: an invented archipelago, its passages and questions, made by code at first use."""

from .facts import World, build_world
from .words import WorldQuestion, build_passages, build_questions


__all__ = ["World", "WorldQuestion", "build_passages", "build_questions", "build_world"]
