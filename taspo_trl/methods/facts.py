"""A recipe as plain data, and back: what a run writes down of its method for readers of its records.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from ..credit.contrast import ContrastWeights
from ..credit.token_level import TokenWeights
from ..errors import ConfigurationError
from .cards import equations
from .recipe import Recipe
from .registry import METHODS


_PLAIN = (str, int, float, bool, type(None))


def facts_of(recipe: Recipe, num_steps: int = 0) -> dict[str, Any]:
    """Name, citation, equations and every option of a method, as JSON data.

    Args:
        recipe (`Recipe`):
            The method with its options set.
        num_steps (`int`, *optional*, defaults to `0`):
            Updates of the whole run, for schedules; 0 = unknown.

    Returns:
        `dict[str, Any]`: `name`, `line`, `note`, `papers`, `equations`, `contexts`, `teacher`, `num_steps`,
        `state_key`, `place`, and `advantage`, `weight` and `distill` (or None), each with the name of its `rule` and
        its `options`; `distill` with the shares of both losses, too.
    """
    method = METHODS.get(recipe.name)  # a recipe of a user's own has no entry
    distill = recipe.distill
    papers = () if method is None else method.papers
    return {
        "kind": "method",
        "version": 1,
        "name": recipe.name,
        "line": "" if method is None else method.line,
        "note": "" if method is None else method.note,
        "papers": [{"reference": paper.reference, "address": paper.address} for paper in papers],
        "equations": _equations(recipe),
        "contexts": list(recipe.contexts),
        "teacher": recipe.needs.teacher if recipe.needs.blocks or recipe.needs.plain_only else "",
        "num_steps": num_steps,
        "state_key": recipe.state_key,
        "place": recipe.place,
        "advantage": _rule(recipe.advantage),
        "weight": _rule(recipe.weight),
        "distill": None
        if distill is None
        else _rule(distill)
        | {"share": distill.share(0), "policy_share": distill.policy_share(0), "reduction": distill.reduction},
    }


def recipe_of(facts: Mapping[str, Any]) -> Recipe:
    """The recipe that [`facts_of`] told of, without its distillation term: what gives turns their credit.

    Args:
        facts (`Mapping[str, Any]`):
            As a run wrote them down.

    Raises:
        ConfigurationError: they name a rule that is not known here, or options that it does not have.
    """
    rules = {type(rule).__name__: type(rule) for rule in _known_rules()}
    made = {}
    for slot in ("advantage", "weight"):
        told = facts.get(slot) or {}
        name, options = told.get("rule"), told.get("options") or {}
        if name not in rules:
            raise ConfigurationError(f"The run's {slot} rule is {name!r}, which is none of this package's.")
        try:
            made[slot] = rules[name](
                **{option: tuple(value) if isinstance(value, list) else value for option, value in options.items()}
            )
        except TypeError as error:
            raise ConfigurationError(f"The run's {slot} rule {name!r} has other options here: {error}.") from error
    more = {name: facts[name] for name in ("state_key", "place") if name in facts}
    return Recipe(str(facts.get("name", "")), **made, **more)


def _known_rules() -> list[Any]:
    usual = [method.usual for method in METHODS.values()]
    return [*(one.advantage for one in usual), *(one.weight for one in usual), TokenWeights(), ContrastWeights()]


def _equations(recipe: Recipe) -> str:
    method = METHODS.get(recipe.name)
    if method is None:
        return ""
    texts = [method.formulas] if method.formulas else [equations(part) for part in method.parts]
    lines = [line for text in dict.fromkeys(texts) for line in text.split("\n") if not line.startswith("```")]
    return "\n".join(lines).strip()


def _rule(rule: Any) -> dict[str, Any]:
    options: Mapping[str, Any] = (
        {one.name: getattr(rule, one.name) for one in fields(rule) if one.init} if is_dataclass(rule) else {}
    )
    plain = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in options.items()
        if isinstance(value, (*_PLAIN, tuple))
    }
    return {"rule": type(rule).__name__, "options": plain}
