"""`taspo eval --player`: oracle, chance and functions on a split without a model, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from taspo_trl.cli import main
from taspo_trl.environments import HouseholdEnvironment, ResetResult, StepResult, TextEnvironment
from taspo_trl.environments.workers import EnvironmentPool
from taspo_trl.errors import ConfigurationError
from taspo_trl.evaluation import EvaluationResult
from taspo_trl.imitation import FunctionPlayer, OraclePlayer, PlayerTurn, RandomPlayer, evaluate_player
from taspo_trl.imitation.byte_tokenizer import byte_tokenizer
from taspo_trl.rollout.episode import RolloutSettings
from taspo_trl.rollout.templates import ChatRenderer
from tests import tiny


ROWS = list(tiny.household_rows(size=3))
SMALL = ("--dataset-kwargs", '{"preset": "small", "size": 3}')


def evaluate(player, rows=ROWS, factory=HouseholdEnvironment, **values):
    pool = EnvironmentPool({None: factory})
    settings = RolloutSettings(max_turns=8, max_completion_length=4096)
    try:
        return evaluate_player(
            rows, player, pool=pool, renderer=ChatRenderer(byte_tokenizer()), rollout=settings, **values
        )
    finally:
        player.close()
        pool.close()


def turn_of(actions, seed=0, play=0, number=0, task=""):
    return PlayerTurn("u", {}, seed, play, task, "", actions, history=(None,) * number)


def drawn(**values):
    return RandomPlayer("w", "{action}").reply(turn_of(("a", "b", "c"), **values))


class Mute(TextEnvironment):
    """It lists nothing, and knows a plan of the first state only."""

    def reset(self, *, seed, **row):
        self.turns = 0
        return ResetResult("begun")

    def step(self, action):
        self.turns += 1
        return StepResult("on", 0.0, False, False)

    def oracle_plan(self):
        return None if self.turns else ["go on"]


@pytest.mark.parametrize("text", ["go to desk 1", "<action>schön 漢</action>\n\n  x  ", "\x00<|im|>"])
def test_no_text_is_unknown_to_the_byte_tokenizer(text):
    tokenizer = byte_tokenizer()
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert len(ids) == len(text.encode()) and tokenizer.decode(ids) == text


def test_chance_is_a_function_of_seed_play_and_turn_and_fair():
    for axis in ("seed", "play", "number"):
        counts = [[drawn(**{axis: k}) for k in range(300)].count(action) for action in "abc"]
        assert min(counts) > 70, axis  # 100 expected, standard deviation 8
        assert drawn(**{axis: 7}) == drawn(**{axis: 7})
    form = turn_of(("search[<your keywords>]",), task="red [x] <b> shoes")
    assert RandomPlayer("w", "{action}").reply(form) == "search[red x b shoes]"


def test_an_oracle_bounds_from_above_and_chance_repeats_itself(tmp_path):
    told, made = [], []
    player = OraclePlayer(lambda: made.append(HouseholdEnvironment()) or made[-1])
    oracle = evaluate(player, num_plays=2, on_play=told.append, max_in_flight=1)
    assert len(made) == 2  # a probe, and one world for one episode after the other
    assert oracle.overall().value == 1.0 and len(told) == len(oracle.plays) == 6
    assert oracle.settings["player"] == "oracle" and oracle.settings["temperature"] is None
    first = evaluate(RandomPlayer("household"), progress_path=tmp_path / "p.jsonl", max_in_flight=3)
    again = evaluate(RandomPlayer("household"), rows=ROWS[::-1], max_in_flight=1)
    assert {play.task_id: play for play in first.plays} == {play.task_id: play for play in again.plays}
    # What was played is not asked for again: this one could not answer.
    kept = evaluate(FunctionPlayer(lambda turn: 1 / 0, "random"), progress_path=tmp_path / "p.jsonl")
    assert kept.plays == first.plays


def test_a_missing_plan_ends_its_play_with_the_reason():
    (play,) = evaluate(OraclePlayer(Mute), rows=[{"k": 0}], factory=Mute).plays
    assert not play.is_usable and play.num_turns == 1 and "knows no plan from this state" in play.error


def test_a_world_without_lists_is_refused_and_mistakes_are_raised(tmp_path):
    path = tmp_path / "p.jsonl"
    with pytest.raises(ConfigurationError, match="The environment Mute lists no admissible actions"):
        evaluate(RandomPlayer("Mute"), rows=[{"k": 0}], factory=Mute, progress_path=path)
    assert not path.exists()
    with pytest.raises(ZeroDivisionError):
        evaluate(FunctionPlayer(lambda turn: 1 / 0))


def test_the_command_names_the_player_and_overwrites_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("def look(turn):\n    return 'look'\n")
    for player in ("oracle", "mine:look"):
        assert main(["eval", "--player", player, *SMALL, "--max-turns", "12", "--markdown"]) == 0
        assert f"player {player} on household/valid_seen: seed 0" in capsys.readouterr().out
    high, low = (
        str(next(Path("evaluations").glob(f"{name}-household-valid_seen-*-seed0.json")))
        for name in ("oracle", "mine.look")
    )
    assert EvaluationResult.load(high).overall().value == 1.0 > EvaluationResult.load(low).overall().value
    facts = json.loads(Path(high).read_text())["settings"]
    assert facts["player"] == "oracle" and facts["tokenizer"] == "bytes" and "model" not in facts
    assert main(["eval", "--compare", low, high]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "player mine:look" in shown and "player oracle" in shown
    assert main(["eval", "--player", "mine:look", *SMALL, "--max-turns", "12", "-o", high]) == 1
    assert "other settings (player)" in capsys.readouterr().err


def test_default_files_tell_the_arguments_of_data_and_world_apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    play = ["eval", "--player", "oracle", "--limit", "1"]
    ways = [
        [],
        ["--dataset-kwargs", '{"preset": "small", "size": 4}'],
        ["--dataset-kwargs", "{size: 4, preset: small}"],
        ["--dataset-kwargs", "{preset: small, size: 5}"],
        ["--dataset-kwargs", "{preset: small, size: 4}", "--environment-kwargs", "{preset: small}"],
    ]
    for way in ways:
        assert main([*play, *way]) == 0
    assert Path("evaluations/oracle-household-valid_seen-seed0.json").exists()
    assert len(list(Path("evaluations").iterdir())) == len(ways) - 1, "two of them say the same"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("oracle --agent reflexion", "`--agent reflexion` changes what a model is prompted with"),
        ("oracle --temperature 0.0", "`--temperature 0.0` is read where a model generates"),
        ("oracle --vllm-server http://x", "`--vllm-server http://x` is read where"),
        ("oracle --environment search_qa --split test", "has no `oracle_plan()`"),
        ("somebody", "There is no player 'somebody'. A player is `oracle`, `random` or"),
        ("os:sep", "'os:sep' is a str; a player is a function"),
    ],
)
def test_what_means_nothing_is_refused(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["eval", "--limit", "1", "--player", *arguments.split()]) == 1
    assert message in capsys.readouterr().err and not list(tmp_path.iterdir())
