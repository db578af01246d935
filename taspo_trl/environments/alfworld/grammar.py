"""Turns a game's grammar into text: TextWorld's rules and queries, parsed once and expanded without deep copies.

TextWorld parses a template anew for every command of every turn and deep-copies the bindings at every symbol: nearly
all of the cost of a turn. Here symbols are values in a cache, and bindings are handed down instead of copied. The
texts are those of `textworld.envs.pddl.textgen`, character for character. But what stands in braces, which TextWorld
evaluates as Python, is a small language of its own here: entities' attributes and quoted texts, joined by `+` and
`or`; a game file may come from anywhere. TextWorld's parsers keep module-level state: call nothing here from two
threads at once (`engine.py` holds the lock).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from textworld.envs.pddl import logic as pddl_logic
from textworld.envs.pddl import textgen
from textworld.generator.game import EntityInfo
from textworld.logic import Rule, State

from ...errors import ConfigurationError


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
                yield _value_of(symbol.expression, bindings.variables)
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
    for action in actions.values():
        for template in (action.template, action.feedback_rule):
            parse_symbols(template)
    productions = {
        name: [Production(parse_symbols(rule["rhs"]), rule.get("condition", "")) for rule in alternatives]
        for name, alternatives in rules.items()
    }
    return actions, Grammar(productions)


# Bounded well above what one grammar needs (about 100), so that commands with entity names cannot push rules out.
@lru_cache(maxsize=4096)
def parse_symbols(text: str) -> tuple[textgen.Symbol, ...]:
    """The symbols of a right-hand side or template. Shared: never change them."""
    symbols = tuple(textgen._parse_and_convert(text, rule_name="symbols"))
    for symbol in symbols:
        _check(symbol)
    return symbols


@lru_cache(maxsize=1024)
def _parse_query(expression: str) -> Rule:
    return Rule.parse_conjunctive_query(expression)


@dataclass(frozen=True, slots=True)
class _Term:
    """`entity`, `entity.attribute` or a quoted text."""

    entity: str = ""
    attribute: str | None = None
    text: str = ""


_TOKEN = re.compile(
    r"""\s*(?:(?P<text>'[^'\\]*'|"[^"\\]*")|(?P<entity>[a-z_]\w*)(?:\.(?P<attribute>[a-z_]\w*))?|(?P<plus>\+))\s*""",
    re.ASCII | re.IGNORECASE,
)


@lru_cache(maxsize=1024)
def _parse_expression(expression: str) -> tuple[tuple[_Term, ...], ...]:
    """The alternatives of `term + term or term + term`, each with its terms.

    Raises:
        ConfigurationError: it is anything else.
    """
    alternatives: list[list[_Term]] = [[]]
    position, wants_term = 0, True
    while position < len(expression):
        match = _TOKEN.match(expression, position)
        if match is None:
            break
        position = match.end()
        is_term = match["plus"] is None and match[0].strip() != "or"
        if is_term != wants_term or match["attribute"] not in (None, *EntityInfo.__slots__):
            position = 0
            break
        wants_term = not is_term
        if match["text"]:
            alternatives[-1].append(_Term(text=match["text"][1:-1]))
        elif is_term:
            alternatives[-1].append(_Term(match["entity"], match["attribute"]))
        elif match["plus"] is None:
            alternatives.append([])
    if position < len(expression) or wants_term:
        raise ConfigurationError(
            f"The game's grammar holds {{{expression[:80]}}}; in braces there may be entities with one of their "
            f"attributes ({', '.join(EntityInfo.__slots__)}) and quoted texts, for example {{o.name or o.id}} or "
            "{o.indefinite + ' ' + o.name}. Use the grammar that ALFWorld ships."
        )
    return tuple(map(tuple, alternatives))


def _value_of(expression: str, entities: Mapping[str, Any]) -> str:
    """The text that an expression in braces stands for: the first alternative that is not empty, else the last."""
    value: Any = None
    for terms in _parse_expression(expression):
        values = [_term_value(term, entities) for term in terms]
        value = values[0] if len(values) == 1 else "".join(map(str, values))
        if value:
            break
    return str(value)


def _term_value(term: _Term, entities: Mapping[str, Any]) -> Any:
    if not term.entity:
        return term.text
    entity = entities.get(term.entity)
    if not isinstance(entity, EntityInfo):  # no ValueError: TextWorld would take it for a command without effect
        raise NameError(f"The game's grammar speaks of {term.entity!r}, which is no entity here.")
    return entity if term.attribute is None else getattr(entity, term.attribute)


def _check(symbol: textgen.Symbol) -> None:
    """Refuse an expression when its game is begun, and not in the middle of it."""
    match symbol:
        case textgen.EvalSymbol():
            _parse_expression(symbol.expression)
        case textgen.ConditionalSymbol():
            _check(symbol.expression)
        case textgen.ListSymbol():
            _check(symbol.symbol)


def _given(symbol: textgen.ConditionalSymbol, bindings: Bindings) -> Iterable[Bindings]:
    return bindings.satisfying(symbol.given) if symbol.given else (bindings,)
