"""The engine against ALFWorld's own, and the caches in front of it."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest


pytest.importorskip("textworld", reason="the alfworld extra is not installed")
pytest.importorskip("alfworld", reason="the alfworld extra is not installed")

from mementos.core import _memento_cache
from textworld.generator.game import EntityInfo

from taspo_trl.environments.alfworld import grammar
from taspo_trl.environments.alfworld.cache import DiskCache
from taspo_trl.environments.alfworld.engine import Engine
from taspo_trl.environments.alfworld.games import Game, find_game_file, find_games, read_game
from taspo_trl.environments.alfworld.translation import Translation, Translator, translate
from taspo_trl.errors import ConfigurationError

from .alfworld_helpers import needs_stock_engine, our_transcript, own_cache, stock_transcript  # noqa: F401 (a fixture)


def game_path(index: int, split: str = "valid_seen") -> Path:
    return find_game_file(find_games(split, "embedded")[index].game_file)


def wandering(path: Path, num_steps: int, seed: int) -> list[str]:
    """Random commands, most of them possible, some not, and a walkthrough behind them."""
    rng = random.Random(seed)
    engine = Engine()
    engine.start(read_game(path))
    commands = []
    for _ in range(num_steps):
        doing = [command for command in engine.commands if not command.startswith(("go to", "examine"))]
        commands.append(rng.choice([*engine.commands, *doing * 4, "put mug 1 in/on desk 1", "LOOK", "", "xyzzy"]))
        engine.step(commands[-1])
    return [*commands, *read_game(path).walkthrough]


@needs_stock_engine
@pytest.mark.parametrize("index", [0, 5, 9, 13, 17, 21])  # one game of each family
def test_transcripts_are_those_of_the_stock_engine(index):
    path = game_path(index)
    commands = wandering(path, num_steps=40, seed=index)
    assert our_transcript(path, commands) == stock_transcript(path, commands)


def test_one_game_of_each_family_is_compared():
    games = find_games("valid_seen", "embedded")
    assert {games[index].family for index in (0, 5, 9, 13, 17, 21)} == {game.family for game in games}


def test_an_older_grammar_needs_no_special_case():
    game = read_game(game_path(13))
    assert any(command.startswith("move ") for command in game.walkthrough)
    older = Game(
        domain=game.domain,
        problem=game.problem,
        grammar=game.grammar.replace("move {o} to {r}", "put {o} in/on {r}"),
    )
    engine = Engine()
    engine.start(older)
    for command in game.walkthrough:
        if command.startswith("move "):
            command = command.replace("move ", "put ").replace(" to ", " in/on ")
        assert command in engine.commands
        engine.step(command)
    assert engine.is_won


def test_live_games_of_one_process_do_not_touch_each_other():
    paths = [game_path(index) for index in (0, 0, 9, 17)]
    alone = [our_transcript(path, read_game(path).walkthrough) for path in paths]
    engines = [Engine() for _ in paths]
    together = [
        [(engine.start(read_game(path)), engine.commands)] for engine, path in zip(engines, paths, strict=True)
    ]
    for turn in range(max(map(len, alone)) - 1):
        for engine, path, transcript in zip(engines, paths, together, strict=True):
            walkthrough = read_game(path).walkthrough
            if turn < len(walkthrough):
                transcript.append((engine.step(walkthrough[turn]), engine.commands))
    assert [[turn[:2] for turn in transcript] for transcript in alone] == together
    assert all(engine.is_won for engine in engines)


def test_threads_are_correct():
    """The parsers are the fragile part, so nothing may be in their caches, and threads take turns often."""
    for cache in (grammar.parse_grammar, grammar.parse_symbols, grammar._parse_query):
        cache.cache_clear()
    paths = [game_path(index) for index in (0, 5, 9, 13) * 2]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(max_workers=8) as pool:
            actual = list(pool.map(lambda path: our_transcript(path, read_game(path).walkthrough), paths))
    finally:
        sys.setswitchinterval(interval)
    assert actual == [our_transcript(path, read_game(path).walkthrough) for path in paths]


def test_a_restarted_engine_begins_anew():
    path = game_path(0)
    engine = Engine()
    first = engine.start(read_game(path))
    commands = engine.commands
    for command in read_game(path).walkthrough:
        engine.step(command)
    assert engine.is_won
    assert (engine.start(read_game(path)), engine.commands, engine.is_won) == (first, commands, False)


def test_a_closed_engine_may_be_closed_again_and_says_that_no_game_runs():
    engine = Engine()
    engine.start(read_game(game_path(0)))
    engine.close()
    engine.close()
    with pytest.raises(RuntimeError, match="No game has been started"):
        engine.step("look")


def test_an_engine_forgets_the_facts_of_earlier_games():
    engine = Engine()
    sizes = []
    for index in range(4):
        engine.start(read_game(game_path(index)))
        sizes.append(len(_memento_cache))
    assert max(sizes) < 1.5 * min(sizes)


def test_a_text_that_is_no_pddl_is_an_error_with_the_translators_message():
    with pytest.raises(ConfigurationError, match=r"could not translate the game \(exit code 1\)"):
        translate("(define (domain alfred))", "nonsense")


def test_the_callers_command_line_and_output_are_left_alone(capfd):
    argv = list(sys.argv)
    game = read_game(game_path(1))
    Engine(Translator()).start(game)
    assert sys.argv == argv
    assert capfd.readouterr().out == ""


class CountingTranslations:
    """Counts the runs of the real translator."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.count = 0
        from taspo_trl.environments.alfworld import translation

        real = translation.translate

        def counted(domain: str, problem: str) -> bytes:
            self.count += 1
            return real(domain, problem)

        monkeypatch.setattr(translation, "translate", counted)


@pytest.fixture
def translations(monkeypatch):
    return CountingTranslations(monkeypatch)


def test_a_game_is_translated_once_in_a_process_and_once_on_a_machine(tmp_path, translations):
    game = read_game(game_path(2))
    one, other = (Translator(DiskCache(tmp_path / "cache", ".z")) for _ in range(2))
    assert one(game.domain, game.problem) == one(game.domain, game.problem)
    assert other(game.domain, game.problem) == one(game.domain, game.problem)
    assert translations.count == 1


def test_another_text_is_another_translation(tmp_path, translations):
    game = read_game(game_path(2))
    translator = Translator(DiskCache(tmp_path, ".z"))
    translator(game.domain, game.problem)
    translator(game.domain, game.problem + " ")
    assert translations.count == 2


def test_a_damaged_entry_is_made_again(tmp_path, translations, caplog):
    game = read_game(game_path(2))
    whole = Translator(DiskCache(tmp_path, ".z"))(game.domain, game.problem)
    [entry] = tmp_path.glob("*/*.z")
    entry.write_bytes(entry.read_bytes()[:1000])
    again = Translator(DiskCache(tmp_path, ".z"))(game.domain, game.problem)
    assert "is damaged" in caplog.text
    assert sorted(again.sas) == sorted(whole.sas)  # the translator's order differs from run to run
    Translation.from_bytes(entry.read_bytes())
    assert translations.count == 2


def test_a_cache_folder_that_cannot_be_used_costs_time_only(tmp_path, translations, caplog):
    (tmp_path / "file").write_text("not a folder")
    game = read_game(game_path(2))
    translator = Translator(DiskCache(tmp_path / "file" / "cache", ".z"))
    assert translator(game.domain, game.problem).sas
    assert "Set `TASPO_CACHE`" in caplog.text
    assert translations.count == 1


def test_sibling_processes_translate_once(tmp_path):
    """Four processes want the same new game at the same moment."""
    program = """
import sys, time
from pathlib import Path
from taspo_trl.environments.alfworld import translation
from taspo_trl.environments.alfworld import grammar
from taspo_trl.environments.alfworld.cache import DiskCache
from taspo_trl.environments.alfworld.games import read_game

real = translation.translate
translation.translate = lambda *texts: print("translated") or real(*texts)
game = read_game(sys.argv[1])
time.sleep(max(0.0, float(sys.argv[3]) - time.time()))
translation.Translator(DiskCache(Path(sys.argv[2]), ".z"))(game.domain, game.problem)
"""
    arguments = [str(game_path(3)), str(tmp_path), str(time.time() + 4.0)]
    processes = [
        subprocess.Popen([sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    assert "".join(outputs).count("translated") == 1
    assert not list(tmp_path.glob("*/.*.z.*"))  # no temporary file is left


def test_an_entry_is_whole_or_absent(tmp_path):
    """Readers that look while an entry is written see nothing or all of it."""
    cache = DiskCache(tmp_path, ".json")
    entry = json.dumps(list(range(50_000))).encode()
    seen: list[bytes] = []

    def read() -> None:
        while entry not in seen[-1:]:
            files = list(tmp_path.glob("*/[!.]*.json"))
            seen.append(files[0].read_bytes() if files else b"")

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    assert cache.fetch("ab12", make=lambda: entry, check=json.loads) == entry
    reader.join(timeout=10.0)
    assert seen[-1] == entry
    assert set(seen) <= {b"", entry}


# ---- what a grammar may say -----------------------------------------------------------------------------------------


def said(text: str) -> str:
    """`text` with the mug bound to `o` and a thing without a name of its own to `r`."""
    mug, place = EntityInfo("mug_1", "object"), EntityInfo("desk_1", "receptacle")
    mug.name, mug.indefinite, place.name = "mug 1", "a", ""
    context = {"state": None, "entity_infos": {}, "variables": {"o": mug, "r": place}, "mapping": {}}
    return grammar.Grammar({}).derive(text, context)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("You take {o.indefinite} {o.name}.", "You take a mug 1."),
        ("{o}", "mug 1"),
        ("{ o.name }", "mug 1"),
        ("{r.name or r.id}", "desk_1"),
        ("{o.name or o.id}", "mug 1"),
        ("{o.desc}", "None"),
        ("{o.indefinite + ' ' + o.name }", "a mug 1"),
        ("{r.name or o.indefinite + ' or ' + r.id}", "a or desk_1"),
    ],
)
def test_braces_name_an_entity_and_an_attribute(text, expected):
    assert said(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "{o.__class__}",
        "{o.__class__.__init__.__globals__}",
        "{o.__init__.__globals__.get('os').system('touch ran')}",
        "{().__class__.__base__.__subclasses__()}",
        "{__import__('os').system('touch ran')}",
        "{o.name.format}",
        "{o.name()}",
        "{5}",
        "{o.name + 5}",
        "{o.name o.id}",
        "{o.name + + o.id}",
        "{o.name + '\\x41'}",
        "{o.name or __import__('os')}",
        "{o.name or}",
        "{or}",
        "{o.nаme}",
        "{lambda: 0}",
    ],
)
def test_nothing_else_in_braces_is_executed(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match="grammar"):
        said(text)
    assert list(tmp_path.iterdir()) == []


def test_an_entity_that_is_not_there_is_no_command_without_effect():
    with pytest.raises(NameError, match="'x'"):
        said("{x.name}")


def test_a_game_file_that_would_run_a_command_is_refused_when_it_is_begun(tmp_path):
    game = json.loads(game_path(0).read_text())
    command = f"{{r.__class__.__init__.__globals__.get('__builtins__').get('open')('{tmp_path}/ran', 'w')}}"
    changed = game["grammar"].replace("{r.name}", command)
    assert changed != game["grammar"]
    engine = Engine()
    with pytest.raises(ConfigurationError, match="grammar holds"):
        engine.start(Game(game["pddl_domain"], game["pddl_problem"], changed))
    assert not (tmp_path / "ran").exists()
