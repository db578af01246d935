"""The worked examples of the built-in environments: solved training tasks, as their worlds play them today."""

from __future__ import annotations

import json
from importlib.resources import files

import pytest

from taspo_trl.environments import (
    ENVIRONMENTS,
    ALFWorldEnvironment,
    HouseholdEnvironment,
    SearchQAEnvironment,
    WebShopEnvironment,
)
from taspo_trl.environments.examples import builtin_examples, shorten
from taspo_trl.tokens import find_action


def whole_rows(name: str) -> dict:
    """What identifies a row in an example -> the row."""
    if name == "webshop":
        return {row["goal"]: row for row in WebShopEnvironment.dataset("train", catalogue="embedded")}
    if name == "search_qa":
        return {row["task_id"]: row for row in SearchQAEnvironment.dataset("train")}
    return {}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_every_example_is_played_again_word_for_word_and_succeeds(name, monkeypatch, tmp_path_factory):
    if name == "alfworld":
        pytest.importorskip("textworld")
        monkeypatch.setenv("TASPO_CACHE", str(tmp_path_factory.mktemp("cache")))
    makes = {
        "household": HouseholdEnvironment,
        "alfworld": ALFWorldEnvironment,
        "webshop": lambda: WebShopEnvironment(catalogue="embedded", tagger="words"),
        "search_qa": SearchQAEnvironment,
    }
    environment, rows = makes[name](), whole_rows(name)
    data = json.loads(files(f"taspo_trl.environments.{name}").joinpath("examples.json").read_text(encoding="utf-8"))
    assert len(data) == len(builtin_examples(name)) >= 2
    for one, example in zip(data, builtin_examples(name), strict=True):
        row = rows.get(one["row"].get("goal", one["row"].get("task_id")), one["row"])
        assert row.get("split", "train") == "train" and "valid" not in str(row.get("game_file"))
        start = environment.reset(**{"seed": 0, **row})
        assert (start.info["task"], shorten(start.observation)) == (example.task, example.start)
        for k, turn in enumerate(example.turns, 1):
            block = find_action(turn.reply, environment.action_tags)
            assert block is not None and environment.reply_fault(turn.reply, block) == "" and turn.thought
            result = environment.step(environment.action_of(block))
            assert result.info["valid"] and result.terminated is (k == len(example.turns))
            assert turn.observation == ("" if result.terminated else shorten(result.observation))
        assert result.info["success"] is True
    environment.close()


@pytest.mark.parametrize(
    ("name", "family", "first"),
    [
        ("household", "heat", ["heat", "heat"]),
        ("alfworld", "Pick2", ["Pick2", "Pick2"]),
        ("search_qa", "musique", ["two_hop"]),
    ],
)
def test_those_of_the_family_come_first(name, family, first):
    kinds = {"household": HouseholdEnvironment, "alfworld": ALFWorldEnvironment, "search_qa": SearchQAEnvironment}
    found = [one.family for one in kinds[name]().worked_examples(family)]
    assert found[: len(first)] == first and len(set(found)) > 1
