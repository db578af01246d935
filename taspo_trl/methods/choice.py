"""Which method a configuration means: names are checked, what is unset comes from it, contradictions are refused."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from ..credit.option_checks import check_choice
from ..credit.states import STATE_KEYS
from ..errors import ConfigurationError, did_you_mean
from ..guidance.constructions import CONSTRUCTIONS
from .method import Method
from .recipe import Recipe
from .registry import FIELDS, METHODS


ALLOCATIONS = ("action", "token")


@dataclass(frozen=True)
class Choice:
    """The options that name a method, settled: chosen again they give themselves.

    Args:
        method (`str`), method_options (`dict`):
            Its name, and the options that were given.
        guidance (`str`):
            Its context; `"none"` without any, several joined by `+`.
        allocation (`str`, *optional*):
            Of TASPO's weights; None for methods that have none.
    """

    method: str
    method_options: dict[str, Any]
    guidance: str
    allocation: str | None


def choose(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> Choice:
    """The method that options ask for.

    Args:
        values (`Mapping[str, Any]`):
            `method`, `method_options`, `guidance`, `allocation`, `teacher_model` and TASPO's constants of a
            configuration.
        defaults (`Mapping[str, Any]`):
            Those of TASPO's constants.

    Raises:
        ConfigurationError: no such method, option, context or value, or two options that contradict each other.
    """
    guidance, allocation = values["guidance"], values["allocation"]
    options = _mapping(values["method_options"])
    method = _named(values["method"])
    if allocation not in (*ALLOCATIONS, None):
        raise ConfigurationError(f"`allocation` must be one of 'action', 'token', got {allocation!r}.")
    if method.name == "taspo" and guidance == "none":
        method = METHODS["grpo"]  # two names of one thing
    if method.name == "taspo":
        guidance = guidance or "aligned"
        _check_context(method, guidance)
    elif method.name != "grpo":
        _refuse_of_taspo(method, values, defaults)
    if method.name in ("taspo", "grpo"):
        allocation = allocation or "action"
    recipe = _recipe(method, options, guidance, allocation, values)
    if guidance not in (None, "none", _used(recipe)) and "block" in method.options and "block" not in options:
        options["block"] = guidance
        recipe = _recipe(method, options, guidance, allocation, values)
    elif guidance not in (None, _used(recipe)):
        raise ConfigurationError(
            f"`guidance={guidance!r}` contradicts `method={method.name!r}`, which shows {_shown(recipe)}. Leave "
            "`guidance` out, or choose another method."
        )
    _check_recipe(method, recipe)
    return Choice(method.name, options, _used(recipe), allocation)


def _recipe(
    method: Method, options: dict[str, Any], guidance: str | None, allocation: str | None, values: Mapping[str, Any]
) -> Recipe:
    if options.get("block") is not None:
        _check_context(method, options["block"])
    constants = {name: values[name] for name in (*FIELDS.values(), "teacher_model")}
    return method.make(SimpleNamespace(**constants, guidance=guidance, allocation=allocation), **options)


def _used(recipe: Recipe) -> str:
    """Its contexts, as `guidance` names them."""
    return "+".join(recipe.contexts) or "none"


def _named(name: Any) -> Method:
    if isinstance(name, str) and name in METHODS:
        return METHODS[name]
    if str(name).lower() in ("ppo", "gae"):
        raise ConfigurationError(
            f"`method={name!r}` needs a learned value function, which is no part of this trainer. The nearest "
            "choices: 'rloo' (a baseline from the other episodes), 'gigpo' (a baseline from states seen again), "
            "'factor' (temporal differences of a table of values)."
        )
    raise ConfigurationError(
        f"`method` must be one of {', '.join(map(repr, METHODS))}, got {name!r}.{did_you_mean(name, METHODS)}"
    )


def _mapping(options: Any) -> dict[str, Any]:
    """`method_options` as a mapping; a text is JSON or a YAML mapping in braces, as on a command line."""
    if isinstance(options, str):
        try:
            options = json.loads(options)
        except ValueError:
            options = _braces(options)
    if options is None:
        return {}
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise ConfigurationError(
            f"`method_options` must be a mapping of names to values, such as '{{\"share\": 0.5}}' (JSON) or "
            f"'{{share: 0.5}}' (YAML), got {options!r}."
        )
    return dict(options)


def _braces(text: str) -> Any:
    """The YAML mapping in braces that `text` is, or else the text."""
    import yaml

    with contextlib.suppress(yaml.YAMLError):
        if text.lstrip().startswith("{"):
            return yaml.safe_load(text)
    return text


def _check_context(method: Method, block: Any) -> None:
    """A context must exist, have one block, and be one that the method may show."""
    allowed = [name for name, entry in CONSTRUCTIONS.items() if entry.blocks == (name,)]
    allowed = [name for name in allowed if name.startswith(method.contexts)]
    if block not in allowed:
        where = "`guidance`" if method.name == "taspo" else f"`guidance` or `block` of method={method.name!r}"
        names = [*allowed, *(["none"] if method.name == "taspo" else [])]
        raise ConfigurationError(
            f"{where} must be one of {', '.join(map(repr, names))}, got {block!r}.{did_you_mean(block, names)}"
        )


def _refuse_of_taspo(method: Method, values: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """TASPO's own options are no one else's."""
    names = [name for option, name in FIELDS.items() if option not in method.fields]
    moved = [name for name in names if values[name] != defaults[name]]
    if values["allocation"] is not None:
        moved.insert(0, "allocation")
    if moved:
        raise ConfigurationError(
            f"`{moved[0]}={values[moved[0]]!r}` belongs to method='taspo'; method={method.name!r} does not have it. "
            "Its own options are `method_options`."
        )


def _shown(recipe: Recipe) -> str:
    return " and ".join(map(repr, recipe.contexts)) or "no context"


def _check_recipe(method: Method, recipe: Recipe) -> None:
    """What cannot be given to a rule is refused before anything is played."""
    is_other = recipe.needs.teacher == "model" and (recipe.needs.plain_only or bool(recipe.needs.blocks))
    if is_other and recipe.teacher_model is None:
        raise ConfigurationError(
            f"`method={method.name!r}` learns from another model, and `teacher_model` is not set. Name a model id, a "
            "folder, or the address of a server that gives log-probabilities."
        )
    if recipe.teacher_model is not None and not is_other:
        raise ConfigurationError(
            f"`teacher_model={recipe.teacher_model!r}` has no use in `method={method.name!r}`, whose teacher is "
            f"{recipe.needs.teacher!r}. Leave it out, or take teacher='model' in `method_options`."
        )
    check_choice("state_key", recipe.state_key, STATE_KEYS, "'observation' is what the published codes compare.")
    if recipe.place not in ("start", "splice"):
        raise ConfigurationError(f"`place` must be one of 'start', 'splice', got {recipe.place!r}.")
