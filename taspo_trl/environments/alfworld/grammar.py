"""Turns a game's grammar into text: TextWorld's rules and queries, parsed once and expanded without deep copies.

TextWorld parses a template anew for every command of every turn and deep-copies the bindings at every symbol: nearly
all of the cost of a turn. Here symbols are values in a cache, and bindings are handed down instead of copied. The
texts are those of `textworld.envs.pddl.textgen`, character for character. Its parsers keep module-level state: call
nothing here from two threads at once (`engine.py` holds the lock).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import CodeType
from typing import Any

from textworld.envs.pddl import logic as pddl_logic
from textworld.envs.pddl import textgen
from textworld.logic import Rule, State


@dataclass(frozen=True, slots=True)
class Bindings:
    """What the placeholders of a text stand for."""

    state: State
    entities: Mapping[str, Any]
    """Id of an entity -> its `EntityInfo`."""
    variables: Mapping[str, Any]
    """Name of a placeholder -> the `EntityInfo` bound to it."""
    mapping: Mapping[Any, Any]
    """`Placeholder` -> the logical `Variable` bound to it."""

    def satisfying(self, query: str) -> Iterator[Bindings]:
        """The bindings, extended in each way that makes the conjunctive `query` true in the state."""
        for mapping in self.state.all_assignments(_parse_query(query), self.mapping):
            bound = {placeholder.name: self.entities[variable.name] for placeholder, variable in mapping.items()}
            yield replace(self, variables={**self.variables, **bound}, mapping=mapping)


class Grammar:
    """The production rules of one game.

    Args:
        rules (`Mapping[str, Sequence[Production]]`):
            Symbol -> its productions; the first one whose condition holds is used.
    """

    def __init__(self, rules: Mapping[str, Sequence[Production]]):
        self._rules = rules

    def derive(self, start: str, context: Mapping[str, Any]) -> str:
        """The text of `start`; `context` is what `textworld.envs.pddl.PddlEnv` passes to its own grammar."""
        bindings = Bindings(context["state"], context["entity_infos"], context["variables"], context["mapping"])
        return "".join(self._expand_all(parse_symbols(start), bindings))

    def _expand_all(self, symbols: Iterable[textgen.Symbol], bindings: Bindings) -> Iterator[str]:
        for symbol in symbols:
            yield from self._expand(symbol, bindings)

    def _expand(self, symbol: textgen.Symbol, bindings: Bindings) -> Iterator[str]:
        match symbol:
            case textgen.TerminalSymbol():
                yield symbol.symbol
            case textgen.NonterminalSymbol():
                yield from self._expand_all(self._production(symbol, bindings), bindings)
            case textgen.EvalSymbol():
                yield str(eval(_compile(symbol.expression), {"__builtins__": {}}, bindings.variables))
            case textgen.ConditionalSymbol():
                for bound in _given(symbol, bindings):
                    yield from self._expand(symbol.expression, bound)
            case textgen.ListSymbol():
                yield from self._enumerate(symbol.symbol, bindings)
            case _:
                raise NotImplementedError(f"The grammar holds a symbol of the unknown type {type(symbol).__name__}.")

    def _enumerate(self, item: textgen.ConditionalSymbol, bindings: Bindings) -> Iterator[str]:
        """`a, b, and c`, with the separators that the grammar defines."""
        texts = ["".join(self._expand(item.expression, bound)) for bound in _given(item, bindings)]
        if not texts:
            yield from self._expand(textgen.NonterminalSymbol("list_empty"), bindings)
            return
        yield texts[0]
        for position, text in enumerate(texts[1:], start=2):
            name = "list_last_separator" if position == len(texts) else "list_separator"
            yield from self._expand(textgen.NonterminalSymbol(name), bindings)
            yield text

    def _production(self, symbol: textgen.NonterminalSymbol, bindings: Bindings) -> Sequence[textgen.Symbol]:
        for production in self._rules.get(symbol.symbol, ()):
            if not production.condition or any(True for _ in bindings.satisfying(production.condition)):
                return production.symbols
        raise textgen.CSGUnknownSymbolError(symbol)


@dataclass(frozen=True, slots=True)
class Production:
    """One alternative of a rule."""

    symbols: Sequence[textgen.Symbol]
    condition: str = ""
    """A conjunctive query that must hold; empty = always."""


@lru_cache(maxsize=8)
def parse_grammar(text: str) -> tuple[Mapping[str, pddl_logic.Action], Grammar]:
    """The actions (lower-case name -> action with its templates) and the rules of a `.twl2` text."""
    actions: dict[str, pddl_logic.Action] = {}
    rules: dict[str, list[dict[str, str]]] = {}
    converter = pddl_logic._ModelConverter()
    for part in pddl_logic._PARSER.parse(text, rule_name="pddlStart").parts:
        if isinstance(part, pddl_logic.model.ActionTypeNode):
            action = converter.walk(part)
            actions[action.name.lower()] = action
            lines = (line for line in action.grammar.split("\n") if not line.lstrip().startswith("#"))
            rules.update(json.loads("\n".join(lines)))
        elif isinstance(part, pddl_logic.model.ActionGrammarNode):
            rules.update(json.loads(converter._unescape_block(part.code)))
    productions = {
        name: [Production(parse_symbols(rule["rhs"]), rule.get("condition", "")) for rule in alternatives]
        for name, alternatives in rules.items()
    }
    return actions, Grammar(productions)


# Bounded well above what one grammar needs (about 100), so that commands with entity names cannot push rules out.
@lru_cache(maxsize=4096)
def parse_symbols(text: str) -> tuple[textgen.Symbol, ...]:
    """The symbols of a right-hand side or template. Shared: never change them."""
    return tuple(textgen._parse_and_convert(text, rule_name="symbols"))


@lru_cache(maxsize=1024)
def _parse_query(expression: str) -> Rule:
    return Rule.parse_conjunctive_query(expression)


@lru_cache(maxsize=1024)
def _compile(expression: str) -> CodeType:
    return compile(expression.strip(), "<grammar>", "eval")


def _given(symbol: textgen.ConditionalSymbol, bindings: Bindings) -> Iterable[Bindings]:
    return bindings.satisfying(symbol.given) if symbol.given else (bindings,)
