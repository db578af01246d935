"""The methods: rules of credit put together under a name."""

from .recipe import Assigned, Recipe
from .registry import METHODS, Method, recipe_for


__all__ = ["METHODS", "Assigned", "Method", "Recipe", "recipe_for"]
