"""One line of the table of methods: its parts, its options, what it needs and promises, in words too."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Literal

from ..credit.base import Guarantees, Needs, OutcomeAdvantage
from ..credit.grpo import GRPO
from ..credit.rloo import RLOO
from ..errors import ConfigurationError, did_you_mean
from .papers import Paper
from .recipe import Recipe


Slot = Literal["advantage", "weight", "distill"]


@dataclass(frozen=True)
class Part:
    """A rule or a term of a method, and which of its parameters are the method's options.

    Args:
        slot (`str`):
            Where it goes in the [`Recipe`].
        make (`Callable`):
            Makes it: its class, or a function that sets some of its parameters.
        rest (`type`, *optional*):
            Class whose fields `make` takes as `**options` too.
        hidden (`tuple[str, ...]`, *optional*):
            Parameters that the method itself sets.
        renamed (`Mapping[str, str]`, *optional*):
            Parameter -> option, where the two have different names.
    """

    slot: Slot
    make: Callable[..., Any]
    rest: type | None = None
    hidden: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def options(self) -> dict[str, Any]:
        """Option -> default."""
        found = {one.name: one.default for one in fields(self.rest) if one.init} if self.rest is not None else {}
        for one in inspect.signature(self.make).parameters.values():
            if one.kind is not one.VAR_KEYWORD:
                found[one.name] = one.default
        return {self.renamed.get(name, name): value for name, value in found.items() if name not in self.hidden}

    def made(self, options: Mapping[str, Any]) -> Any:
        """The rule with those of the method's options that are its own.

        Raises:
            ConfigurationError: a value outside its range.
        """
        own = {option: parameter for parameter, option in self.renamed.items()}
        try:
            return self.make(**{own.get(name, name): options[name] for name in self.options if name in options})
        except (TypeError, ValueError) as error:
            if isinstance(error, ConfigurationError):
                raise
            raise ConfigurationError(f"`method_options`: {error}") from error


@dataclass(frozen=True)
class Method:
    """One line of the table.

    Args:
        name (`str`):
            As `method` of [`~taspo_trl.TASPOConfig`].
        line (`str`):
            What it does, in one line.
        papers (`tuple[Paper, ...]`):
            Whom to cite; none for what is nobody's method.
        parts (`tuple[Part, ...]`, *optional*):
            Without an advantage A_i, without a weight A_it on every sampled token.
        state_keys (`bool`, *optional*, defaults to `False`):
            Whether `state_key` is an option: how turns that stand in the same state are found.
        places (`bool`, *optional*, defaults to `False`):
            Whether `place` is an option: `"start"` (the default) shows the context before the whole chat, `"splice"`
            where the package shows all others.
        contexts (`str`, *optional*):
            Beginning of the names that its option `block` may have; by default any.
        fields (`Mapping[str, str]`, *optional*):
            Option -> field of the configuration that sets it, for TASPO, whose options are fields.
        formulas (`str`, *optional*):
            What it computes, where the documentation of its parts does not say it in a few lines.
        note (`str`, *optional*):
            What a reader of its results must know.
    """

    name: str
    line: str
    papers: tuple[Paper, ...]
    parts: tuple[Part, ...] = ()
    state_keys: bool = False
    places: bool = False
    contexts: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)
    formulas: str = ""
    note: str = ""

    @cached_property
    def options(self) -> dict[str, Any]:
        """`method_options` -> default."""
        found = {name: value for part in self.parts for name, value in part.options.items()}
        found |= {"state_key": "observation"} if self.state_keys else {}
        found |= {"place": "start"} if self.places else {}
        return {name: value for name, value in found.items() if name not in self.fields}

    @property
    def citation(self) -> str:
        """Title and number of each paper."""
        return "; ".join(paper.reference for paper in self.papers)

    def make(self, args: Any = None, **options: Any) -> Recipe:
        """Its recipe.

        Args:
            args ([`~taspo_trl.TASPOConfig`], *optional*):
                Where the options that are fields come from; without it they have their defaults.
            options:
                Its `method_options`.

        Raises:
            ConfigurationError: it has no such option, or the value is outside its range.
        """
        for name in options:
            if name in self.fields:
                raise ConfigurationError(
                    f"`method_options` holds `{name}`, which is an option of its own for method={self.name!r}: "
                    f"`{self.fields[name]}`."
                )
            if name not in self.options:
                known = f"it has {', '.join(map(repr, self.options))}" if self.options else "it has none"
                raise ConfigurationError(
                    f"`method_options` holds `{name}`, which method={self.name!r} does not have: {known}."
                    f"{did_you_mean(name, self.options)}"
                )
        given = dict(options)
        if args is not None:
            given |= {name: getattr(args, field_name) for name, field_name in self.fields.items()}
        parts: dict[str, Any] = {part.slot: part.made(given) for part in self.parts_for(args, options)}
        settings = {"state_key": given.get("state_key", "observation")} if self.state_keys else {}
        settings |= {"place": given.get("place", "start")} if self.places else {}
        return Recipe(self.name, **parts, **settings, teacher_model=getattr(args, "teacher_model", None))

    def parts_for(self, args: Any, options: Mapping[str, Any]) -> tuple[Part, ...]:
        """Its parts, where the configuration or its options decide which."""
        return self.parts

    @cached_property
    def usual(self) -> Recipe:
        """Its recipe with all options at their defaults."""
        return self.make()

    @property
    def needs_words(self) -> str:
        """What it needs beside the rollouts and their rewards."""
        return needs_in_words(self.usual.needs, self.usual.contexts)

    @property
    def cost_words(self) -> str:
        """What it computes beyond GRPO."""
        return cost_in_words(self.usual.needs)

    @property
    def guarantee_words(self) -> str:
        """What its weights keep to, at every step."""
        rule = self.usual
        words = guarantees_in_words(rule.weight.guarantees)
        if not isinstance(rule.advantage, OutcomeAdvantage | GRPO | RLOO):
            words += "; A_it may have another sign than A_i, and move groups of equal outcomes"
        return words + ("; the term adds a loss of its own" if rule.distill is not None else "")


def needs_in_words(needs: Needs, contexts: tuple[str, ...] = ()) -> str:
    """What is needed beside rollouts and rewards: contexts, a teacher, states, continuations."""
    found = []
    if contexts:
        found.append(" and ".join(f"`{name}`" for name in contexts))
    if needs.blocks or needs.plain_only:
        found.append(_TEACHERS[needs.teacher].format(every=needs.teacher_every, rate=needs.teacher_rate))
    if needs.state_key:
        found.append("a state key")
    if needs.values:
        found.append(f"{needs.values} continuations from each state")
    if needs.progress:
        found.append("the simulator's own progress: an oracle")
    if needs.alternatives:
        found.append(f"up to {needs.alternatives} actions of each guided turn")
    return "; ".join(found) or "nothing"


_TEACHERS = {
    "rollout": "teacher: the policy itself",
    "stale": "teacher: a copy taken every {every} updates",
    "ema": "teacher: an average of its weights (rate {rate:g})",
    "frozen": "teacher: the initial policy",
    "model": "teacher: another model",
}


def cost_in_words(needs: Needs) -> str:
    """What is computed beyond GRPO; nothing of it carries a gradient."""
    found = []
    if needs.plain_only:
        found.append("one forward of the teacher and one of the policy")
    elif needs.blocks:
        number = len(needs.blocks)
        found.append(
            "guided replies scored with and without their block"
            if number == 1
            else f"guided replies scored without and with each of {number} blocks"
        )
    if needs.blocks or needs.plain_only:
        found += {"rollout": [], "model": ["the weights of a second model, or a server"]}.get(
            needs.teacher, ["a second set of weights"]
        )
    if needs.vocabulary:
        of = "whole distributions" if needs.vocabulary < 0 else f"the top {needs.vocabulary}"
        found.append(f"{of} in chunks of positions")
    if needs.values:
        found.append("more episodes, played on")
    if needs.alternatives:
        found.append("other actions scored behind the same prefixes")
    if needs.state_key:
        found.append("hashing")
    if needs.progress:
        found.append("episodes replayed where the environment's answers tell no progress")
    return "; ".join(found) or "nothing"


def guarantees_in_words(promised: Guarantees) -> str:
    """What is checked at every step of A~ against A_it."""
    if promised.bounds == (1.0, 1.0):
        return "A~ = A_it on every token of the turn"
    found = ["keeps the sign of A_it" if promised.keeps_sign else "may turn the sign of A_it"]
    if promised.bounds is not None:
        found.append("A~ / A_it in [{:g}, {:g}]".format(*promised.bounds))
    if promised.mean_one is not None:
        found.append(f"mean one over {_MEANS[promised.mean_one]}")
    if promised.identity_at_zero:
        where = "in a whole group " if promised.identity_at_zero == "group" else ""
        found.append(f"no shift {where}gives A~ = A_it")
    if not promised.flat_is_zero:
        found.append("moves turns with A_it = 0")
    return "; ".join(found)


_MEANS = {
    "turns": "the turns of a trajectory",
    "action_tokens": "its scored action tokens",
    "each_action": "the tokens of each action",
}
