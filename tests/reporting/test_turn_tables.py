"""Tables of turns: one row a turn with its credit, without keys, and only where texts may go."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from taspo_trl.reporting.turn_tables import TABLE_KEY, log_turns, tables_wanted, turn_rows
from tests.reporting.test_trackio import arguments
from tests.runs import small_group
from tests.trainer.test_trainer import scripted


class Tracker:
    """Stands in for wandb and trackio: keeps what is logged."""

    def __init__(self):
        self.run, self.logged = "a run", []

    @staticmethod
    def Table(dataframe):
        return dataframe

    def log(self, values, step=None):
        self.logged.append((values, step))


@pytest.fixture
def trackers(monkeypatch):
    for name in ("TRACKIO_SPACE_ID", "TRACKIO_BUCKET_ID", "TRACKIO_DATASET_ID", "TRACKIO_SERVER_URL"):
        monkeypatch.delenv(name, raising=False)
    made = SimpleNamespace(wandb=Tracker(), trackio=Tracker())
    for name, tracker in vars(made).items():
        monkeypatch.setitem(sys.modules, name, tracker)
    return made


def test_a_row_is_a_turn_with_what_it_was_given(monkeypatch):
    _, loser, _ = small_group()  # A = -0.7, weights 1.125, 1, 0.875
    rows = turn_rows([loser], 5)
    assert [row["turn"] for row in rows] == [0, 1, 2] and {row["step"] for row in rows} == {5}
    assert [row["credit"] for row in rows] == pytest.approx([-0.7875, -0.7, -0.6125])
    assert rows[1]["observation"] == rows[0]["answer"] and rows[0]["guidance"] == "- Go to the desk."
    assert rows[0]["action"] in rows[0]["reply"]
    monkeypatch.setenv("WORLD_API_KEY", rows[0]["observation"])
    assert turn_rows([loser], 5)[0]["observation"] == "***"


def test_credit_is_what_the_tokens_carry_also_where_the_outcome_says_nothing():
    """GiGPO in a group of equal outcomes: A_i is 0, and the turns have advantages of their own."""
    _, loser, _ = small_group()
    own = replace(loser.credit, advantage=0.0, weights=(1.0,) * 3, token_advantages=((0.5, 0.5), (-0.25,), ()))
    rows = turn_rows([replace(loser, credit=own)], 5)
    assert [row["credit"] for row in rows] == [0.5, -0.25, 0.0]


def test_a_table_holds_whole_episodes_and_not_too_many():
    group = small_group()
    turns = [len(one.trajectory.turns) for one in group]
    assert len(turn_rows(group, 0)) == sum(turns)
    assert len(turn_rows(group, 0, most=turns[0] + turns[1])) == turns[0] + turns[1]
    assert len(turn_rows(group, 0, most=1)) == turns[0]


def test_tables_go_only_where_completions_go(trackers):
    assert tables_wanted(arguments(log_completions=False)) == []
    both = arguments(log_completions=True, report_to=["wandb", "trackio", "tensorboard"])
    assert tables_wanted(both) == ["wandb", "trackio"]
    group = small_group()
    assert log_turns("wandb", both, group, 3) and log_turns("trackio", both, group, 3)
    away = arguments(log_completions=True, trackio_space_id="somebody/space")
    assert not log_turns("trackio", away, group, 3)
    away.hub_push_trajectories, away.log_unique_prompts = True, True
    assert log_turns("trackio", away, group, 4)
    (first, step), (last, _) = trackers.trackio.logged
    assert step == 3 and len(last[TABLE_KEY]) == len(group[0].trajectory.turns) < len(first[TABLE_KEY])
    trackers.wandb.run = None
    assert not log_turns("wandb", both, group, 3) and trackers.wandb.logged[0][1] is None


def test_a_trainer_logs_them_with_its_entries(tmp_path, trackers, monkeypatch):
    import trl.trainer.grpo_trainer as trl_module

    monkeypatch.setattr(trl_module, "trackio", trackers.trackio, raising=False)
    monkeypatch.setattr("taspo_trl.trainer.log_traces", lambda *_: False)
    made, _ = scripted(tmp_path, max_steps=2, logging_steps=2, log_completions=True, num_completions_to_print=0)
    made.args.report_to = ["trackio"]
    made.train()
    made.close()
    (table,) = [values[TABLE_KEY] for values, _ in trackers.trackio.logged if TABLE_KEY in values]
    assert set(table["step"]) == {2} and len(table) == 8 * 3 and set(table["accepted"]) == {True, False}
