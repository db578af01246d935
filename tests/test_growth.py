"""Questions, actions and saved records take time in proportion to their length, a question up to a megabyte.

Replies have theirs in `test_actions.py` and `test_tokens.py`, tool calls in `environments/test_tool_calls.py`,
observations in `test_markup.py` and `rollout/test_contexts.py`, analyzer answers and what an analyzer is asked in
`analyzer/test_linear.py`.
"""

from __future__ import annotations

import dataclasses

import pytest

from taspo_trl.environments import HouseholdEnvironment, SearchQAEnvironment, WebShopEnvironment
from taspo_trl.records import TrajectoryRecord, read_records, write_records
from taspo_trl.viewer import write_viewer
from tests.growth import growth
from tests.trajectories import make_trajectory, make_turn


PIECES = (" ", "a", "a ", "[", "<", "\u00e9\u0301")
"""Blanks, one endless word, many words, and what the parsers of actions look for."""


@pytest.mark.parametrize("piece", PIECES)
def test_a_question_and_an_answer(piece):
    environment = SearchQAEnvironment()

    def ask(text: str) -> None:
        environment.reset(seed=0, question=text, golden_answers=[text, "b"])
        environment.step(f"<search>{text}</search>")
        environment.step(f"<answer>{text}</answer>")

    assert growth(ask, piece) < 60


@pytest.mark.parametrize("piece", PIECES)
def test_an_action_in_a_world(piece):
    household, shop = HouseholdEnvironment(preset="small"), WebShopEnvironment()
    tasks = HouseholdEnvironment.dataset("train", preset="small", size=1)[0], WebShopEnvironment.dataset("train")[0]

    def act(text: str) -> None:
        for environment, task in zip((household, shop), tasks, strict=True):
            environment.reset(seed=0, **task)
        household.step(f"go to {text}")
        household.step(text)
        shop.step(f"search[{text}]")
        shop.step(f"click[{text}]")

    assert growth(act, piece, size=2**12) < 60, "a reply has no more tokens than that"


@pytest.mark.parametrize("piece", ["a", "\\", "\ud83d", "</script>", "http://a@"])
def test_a_record_written_read_and_shown(tmp_path, piece):
    def save(text: str) -> None:
        turn = make_turn(text, text, text)
        record = TrajectoryRecord(dataclasses.replace(make_trajectory(0, turn), error=text), "g0", 0, 0)
        write_records(tmp_path / "run" / "_trajectories" / "rollout_000000.jsonl", [record])
        assert len(list(read_records(tmp_path / "run" / "_trajectories"))) == 1
        write_viewer(tmp_path / "run")

    assert growth(save, piece, size=2**14) < 60
