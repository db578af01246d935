"""The embedded Search-QA world: an invented archipelago, its passages and questions, made by code at first use."""

from .facts import Entity, World, build_world
from .questions import WorldQuestion, build_questions
from .text import build_passages


__all__ = ["Entity", "World", "WorldQuestion", "build_passages", "build_questions", "build_world"]
