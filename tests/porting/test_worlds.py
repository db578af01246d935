"""Classes of the shapes of TRL's examples, trained on unchanged: 2048, Sudoku, a tool named `step`, two games."""

from __future__ import annotations

import pytest

from taspo_trl.environments.base import StepResult
from taspo_trl.environments.tools import is_tool_environment
from taspo_trl.errors import ConfigurationError
from tests import tiny
from tests.environments.test_tools import call
from tests.porting import stand, worlds
from tests.trainer.test_trainer import history


def ask(content: str) -> dict:
    return {"prompt": [{"role": "user", "content": content}]}


def test_a_board_a_grid_and_an_echo_in_one_run(tmp_path):
    """Routed by the row as TRL's dictionary of environments is: rewards of `get_reward` and of a function, typed
    arguments, refusals as answers, and `max_tool_calling_iterations` rounds with a reply after the last."""
    rows = [
        {"environment": "board", **ask("Slide to 4. "), "goal": 4},
        {"environment": "grid", **ask("Fill the grid. "), "givens": [1, 0, 0, 1]},
        {"environment": "echo", **ask("Say hello.")},
        {"environment": "grid", **ask("Fill the grid. "), "givens": [0, 2, 2, 0]},
    ]
    place = [call("place", row=row, column=column, value=2) for row, column in ((1, 2), (2, 1), (1, 1))]
    plays = {
        (0, 0): [call("move", direction="left"), call("move", direction="left"), call("move", direction="left")],
        (0, 1): [call("move", direction="up"), "It does not move."],
        (1, 0): [place[0], place[1], "Done."],
        (1, 1): [place[2], place[0] + place[1], "Done."],
        (2, 0): [call("step", message="hello"), "HELLO"],
        (2, 1): ["hello"],
        (3, 0): ["I give up."],
        (3, 1): [call("place", row="one", column=1, value=1), "Hm."],
    }
    made = stand.trained(
        {"board": worlds.Slides, "grid": worlds.Grid, "echo": worlds.Stepper}, plays, tmp_path, rows,
        reward_funcs=lambda environments, **_: [getattr(one, "reward", None) for one in environments],
        num_generations=2, max_tool_calling_iterations=2, success_threshold=1.0,
    )  # fmt: skip
    found = stand.trajectories(tmp_path)
    board = [found[0, k] for k in range(2)]
    assert len(board[0].turns) == 3, "two rounds and a reply"
    assert {one.seed for one in board} == {board[0].seed} and board[0].opening == board[1].opening
    assert board[0].reward == 1.0 and board[0].success and board[1].reward == 0.5
    assert stand.is_refusal(board[1].turns[0].next_observation) and not board[1].turns[0].valid
    assert [found[1, k].reward for k in range(2)] == [1.0, 1.0]
    assert [turn.valid for turn in found[1, 1].turns] == [False, True, True], "a given cell, then both at once"
    assert [found[2, k].reward for k in range(2)] == [1.0, 0.0]
    assert "HELLO" in found[2, 0].turns[0].next_observation
    assert found[3, 1].reward == 0.0 and stand.is_refusal(found[3, 1].turns[0].next_observation)
    assert history(made, "frac_reward_zero_std") == [0.5]


def test_two_games_behind_one_class_with_a_function_for_each(tmp_path):
    """A function that gives None for the other game is left out of these rewards, as in TRL."""
    rows = [{**ask("Play. "), "game": "slides"}, {**ask("Play. "), "game": "grid"}]
    wrong = call("move", direction="left")
    right = call("place", row=1, column=2, value=2)
    plays = {0: [right, wrong, "Done."], 1: [wrong, right, wrong, "Done."], 2: ["No."], 3: [wrong, "Done."]}
    made = stand.trained(
        worlds.Both, plays, tmp_path, rows, reward_funcs=[worlds.slides_reward, worlds.grid_reward], guidance="none"
    )
    found = stand.trajectories(tmp_path)
    assert [found[1, k].reward for k in range(4)] == [1.0, 1.0, 0.0, 0.0]
    assert found[0, 1].rewards["grid_reward"] is None and found[0, 2].reward == 0.5
    assert [turn.valid for turn in found[1, 1].turns] == [False, True, False, True]
    assert history(made, "rewards/grid_reward/mean") == [0.5]


def test_an_environment_that_owns_its_tasks_needs_no_rows(tmp_path):
    """As in TRL with `max_steps`; every group has a game of its own, its members the same one."""
    move = call("move", direction="left")
    plays = {0: [move, "Done."], 1: [move, move, "Done."], 2: ["No."], 3: ["No."]}
    stand.trained(worlds.Slides, plays, tmp_path, None, success_threshold=1.0)
    found = stand.trajectories(tmp_path)
    seeds = {key: one.seed for key, one in found.items()}
    assert len(found) == 8 and len({seeds[0, k] for k in range(4)}) == 1 and seeds[0, 0] != seeds[1, 0]
    assert all(one.opening[0]["content"].split() for one in found.values())
    with pytest.raises(ConfigurationError, match="set `max_steps`"):
        tiny.trainer(tmp_path, train_dataset=None, max_steps=-1)
    with pytest.raises(ConfigurationError, match="its column `environment`"):
        tiny.trainer(tmp_path, train_dataset=None, environment_factory={"board": worlds.Slides})


def test_a_batch_that_nobody_rates_goes_on(tmp_path):
    """In TRL such episodes have no advantage; here they count nowhere, and it is said."""
    plays = {k: ["No."] for k in range(4)}
    with pytest.warns(UserWarning, match="No reward function rated any of the 8 episodes"):
        made = stand.trained(
            worlds.Both, plays, tmp_path, [{"game": "grid"}] * 2,
            reward_funcs=lambda completions, **_: [None] * len(completions), guidance="none",
        )  # fmt: skip
    assert history(made, "stop/reward_error") == [1.0] and history(made, "grad_norm") == [0.0]


def test_a_step_is_a_tool_only_where_it_is_described_as_one():
    class Ours:
        def reset(self, *, seed, **row): ...

        def step(self, action: str) -> StepResult:
            """
            Act.

            Args:
                action: What to do.
            """

    class Bare(Ours):
        def step(self, action): ...

    assert is_tool_environment(worlds.Stepper()) and not is_tool_environment(Ours())
    assert not is_tool_environment(Bare())
