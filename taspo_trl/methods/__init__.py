"""The methods: rules of credit put together under a name."""

from .method import Method
from .papers import PAPERS, Paper
from .recipe import Assigned, Recipe
from .registry import GROUPS, METHODS, recipe_for


__all__ = ["GROUPS", "METHODS", "PAPERS", "Assigned", "Method", "Paper", "Recipe", "recipe_for"]
