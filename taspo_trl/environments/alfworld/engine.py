"""Steps one ALFWorld game on TextWorld's PDDL engine, and is the only module that does.

The engine is not thread-safe: its parsers and caches are module globals. Every call into it holds one lock for the
whole process, which makes threads correct and serial; run instances in worker processes. Import this module before
forking workers, and they share the loaded engine.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import fast_downward
import textworld
from fast_downward.interface import DOWNWARD_LIB_PATH
from mementos.core import _memento_cache
from textworld.envs.pddl import PddlEnv
from textworld.envs.pddl import logic as pddl_logic
from textworld.logic import Proposition, Signature, Type, TypeHierarchy, Variable

from .cache import DiskCache, cache_dir
from .games import Game
from .grammar import parse_grammar
from .names import display_names
from .translation import Translation, Translator


_LOCK = threading.RLock()
_HISTORY = frozenset({"checked", "examined", "wasinreceptacle"})
"""Facts of the past: no action of the domain needs them, and neither does a goal."""


class Engine:
    """One game at a time, from its beginning.

    Args:
        translate (`Callable`, *optional*):
            Makes a [`Translation`] of the texts of domain and problem. By default through a cache in this process and
            one on disk.
    """

    def __init__(self, translate: Callable[[str, str], Translation] | None = None):
        self._translate = translate or _default_translator()
        self._library: ctypes.CDLL | None = None
        self._game: _PddlGame | None = None

    def start(self, game: Game) -> str:
        """Begin `game` and return its first observation."""
        with _LOCK:
            self._game = None  # the library cannot serve it any longer, even if the new game cannot be begun
            # TextWorld keeps every fact that it ever made, 1.4 MB a game. They are values: equal ones may coexist.
            _memento_cache.clear()
            if self._library is None:
                self._library = _take_library()
            self._game = _PddlGame(self._library, game, self._translate(game.domain, game.problem))
            self._game.reset()
            _return_free_memory()
            return self._game.state.feedback

    def step(self, command: str) -> str:
        """Execute `command`, which must be a possible one to have an effect, and return the observation."""
        with _LOCK:
            self._playing().step(command)
            return self._playing().state.feedback

    @property
    def commands(self) -> list[str]:
        """The commands that are possible now, sorted, `help` included."""
        return self._playing().state["admissible_commands"]

    @property
    def is_won(self) -> bool:
        return self._playing().state["won"]

    @property
    def facts(self) -> frozenset[str]:
        """The facts that hold now, but for those that only remember what was done."""
        with _LOCK:
            return self._playing().facts

    def close(self) -> None:
        """Give the planner's library back to the process. May be called twice."""
        with _LOCK:
            library, self._library, self._game = self._library, None, None
            if library is not None:
                _IDLE_LIBRARIES.append(library)

    def _playing(self) -> _PddlGame:
        if self._game is None:
            raise RuntimeError("No game has been started: call `start` first.")
        return self._game


class _PddlGame(PddlEnv):
    """TextWorld's environment, begun from a translation and a parsed grammar.

    Overrides `__init__`, `reset` and `_gather_infos`; `step` is TextWorld's own.
    """

    def __init__(self, library: ctypes.CDLL, game: Game, translation: Translation):
        textworld.Environment.__init__(self)  # PddlEnv's would load a library of its own
        self.downward_lib = library
        self._logic = _Logic(game.grammar)
        self._pddl_state = _PddlState(library, translation, self._logic)
        self._entity_infos = self._get_entity_infos()
        names = display_names(self._entity_infos)
        for info in self._entity_infos.values():
            info.name = names[info.id]

    def reset(self) -> textworld.GameState:
        self.state = textworld.GameState()
        self._last_action = None
        self._moves = 0
        self.state.feedback = self._logic.grammar.derive("#intro#", self._context({}))
        self._gather_infos()
        return self.state

    @property
    def facts(self) -> frozenset[str]:
        found = self._pddl_state._current_facts()
        return frozenset(str(fact) for fact in found if fact.name.lower() not in _HISTORY)

    def _gather_infos(self) -> None:
        """What `Engine` and the next `step` read, and nothing else that TextWorld could tell."""
        ids_to_names = {id_: info.name for id_, info in self._entity_infos.items()}
        actions = self._pddl_state.all_applicable_actions()
        commands = []
        for action in actions:
            context = self._context(action.mapping)
            action.command_template = self._logic.grammar.derive(action.command_template, context)
            commands.append(action.format_command(ids_to_names))
        self.state["won"] = self._pddl_state.check_goal()
        self.state["lost"] = False
        self.state["_valid_actions"] = actions
        self.state["_valid_commands"] = commands
        self.state["admissible_commands"] = sorted(set(commands))

    def _context(self, mapping: Mapping[Any, Variable]) -> dict[str, Any]:
        return {
            "state": self._pddl_state,
            "entity_infos": self._entity_infos,
            "variables": {placeholder.name: self._entity_infos[v.name] for placeholder, v in mapping.items()},
            "mapping": mapping,
        }


class _Logic(pddl_logic.GameLogic):
    """The actions, rules and types of one game, from the cache of parsed grammars."""

    def __init__(self, grammar: str):
        self.actions, self.grammar = parse_grammar(grammar)
        self.types = TypeHierarchy()


class _PddlState(pddl_logic.PddlState):
    """TextWorld's state, begun from a [`Translation`] instead of PDDL text."""

    def __init__(self, library: ctypes.CDLL, translation: Translation, logic: _Logic):
        self._facts: dict[Signature, set[Proposition]] = defaultdict(set)
        self._vars_by_name: dict[str, Variable] = {}
        self._vars_by_type: dict[str, set[Variable]] = defaultdict(set)
        self._var_counts: Counter[str] = Counter()
        self._logic = logic
        self.downward_lib = library
        self.name2type = translation.objects
        self._actions = {
            name: SimpleNamespace(parameters=[SimpleNamespace(name=p, type_name=t) for p, t in parameters])
            for name, parameters in translation.actions.items()
        }
        for name, parents in translation.types.items():
            logic.types.add(Type(name, parents))
        library.load_sas(translation.sas.encode())
        self.add_facts(
            Proposition(name, [Variable(argument, self.name2type[argument]) for argument in arguments])
            for name, arguments in translation.facts
        )
        self.add_facts(self._current_facts())

    def _current_facts(self) -> Iterable[Proposition]:
        atoms = (pddl_logic.Atom * self.downward_lib.get_state_size())()
        self.downward_lib.get_state(atoms)
        facts = [atom.get_fact(self.name2type) for atom in atoms]
        return [fact for fact in facts if not fact.is_negation]


# The library holds its game in global variables, so one copy of it serves one game at a time. Idle copies are kept:
# `fast_downward.close_lib` unloads them, after which the interpreter can crash at its end.
_IDLE_LIBRARIES: list[ctypes.CDLL] = []
_has_loaded_installed_library = False


def _take_library() -> ctypes.CDLL:
    """A copy of the planner's library that no other game of this process uses.

    The first one is the installed file itself, whose pages all processes share. TextWorld copies that file, 34 MB, for
    every instance; here only a second instance in the same process needs one.
    """
    global _has_loaded_installed_library
    if _IDLE_LIBRARIES:
        return _IDLE_LIBRARIES.pop()
    if _has_loaded_installed_library:
        return fast_downward.load_lib()
    _has_loaded_installed_library = True
    library = ctypes.CDLL(DOWNWARD_LIB_PATH)
    library.load_sas.argtypes, library.load_sas.restype = [ctypes.c_char_p], None
    library.get_applicable_operators.argtypes = [ctypes.POINTER(fast_downward.Operator)]
    library.get_state.argtypes = [ctypes.POINTER(fast_downward.Atom)]
    library.apply_operator.argtypes = [ctypes.c_int, ctypes.POINTER(fast_downward.Atom)]
    library.check_goal.restype = ctypes.c_bool
    return library


_translator: Translator | None = None


def _default_translator() -> Translator:
    """One for the process, so that its games share the memory of it."""
    global _translator
    if _translator is None:
        _translator = Translator(DiskCache(cache_dir() / "alfworld" / "translations", suffix=".z"))
    return _translator


def share_memory_with_parent() -> None:
    """In a worker process: keep what the fork server loaded out of garbage collection.

    A collection writes to every object that it looks at, and so copies every page that is still shared: 13 MB.
    """
    if multiprocessing.parent_process() is not None:
        gc.freeze()


# glibc keeps what a large game needed while it was loaded: 14 MB in a process that has played a few.
_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)


def _return_free_memory() -> None:
    if _malloc_trim is not None:
        _malloc_trim(0)
