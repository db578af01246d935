"""Worlds behind a server: TRL's own OpenReward adapter, an OpenEnv client behind tools, a Gymnasium environment.

The libraries of the first two weigh more than this package, so their clients are replaced by ones of the same
interface that speak HTTP to a local server; everything between client and trainer is real.
"""

from __future__ import annotations

import sys

import pytest

from tests.environments.test_tools import call
from tests.porting import servers, stand
from tests.trainer.test_trainer import history


@pytest.fixture
def server():
    with servers.serving() as one:
        yield one


def example(start: str) -> str:
    """The block of the porting page that begins with a line."""
    (found,) = [block for block in stand.page_blocks("python") if block.startswith(start)]
    return found


def test_an_openenv_client_behind_tools(server, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "echo_env", servers.echo_package(server.url))
    names: dict = {"__name__": "script"}
    exec(example("from echo_env"), names)
    say = [call("say", message=word) for word in ("hello", servers.SECRET)]
    plays = {0: [say[0], say[1], "Done."], 1: [say[1], "Done."], 2: [say[0], "Done."], 3: ["No."]}
    made = stand.trained(
        names["Echo"], plays, tmp_path, [{"k": 0}, {"k": 1}], training_reward="none",
        reward_funcs=lambda environments, **_: [one.reward for one in environments],
    )  # fmt: skip
    found = stand.trajectories(tmp_path)
    assert [found[1, k].reward for k in range(4)] == [1.0, 1.0, 0.0, 0.0]
    assert [found[1, k].success for k in range(4)] == [True, True, False, False]
    assert history(made, "credit/weight_std")[0] > 0
    assert server.requests.count("/reset") == 8 and server.requests.count("/step") == 8


def test_trl_s_openreward_adapter(server, tmp_path, monkeypatch):
    """Dataset, factory and reward function of a spec, on the script of the page."""
    monkeypatch.setitem(sys.modules, "openreward", servers.openreward_package())
    submit = [call("submit", word=word) for word in ("xyzzy", servers.SECRET)]
    plays = {0: [submit[0], submit[1], "Done."], 1: [submit[1], "Done."], 2: [submit[0], "Done."], 3: ["No."]}
    script = example("from taspo_trl import TASPOConfig").replace("http://localhost:8080", server.url)
    stand.save_model(tmp_path)
    script = script.replace("Qwen/Qwen3-4B", stand.MODEL) + "\ntrainer.train()"
    context = pytest.MonkeyPatch()
    context.chdir(tmp_path)
    made = stand.run(script, plays, context, num_generations=4, max_completion_length=256)
    found = stand.trajectories(tmp_path / "runs/openreward")
    assert [found[0, k].reward for k in range(3)] == [1.0, 1.0, 0.0]
    assert found[0, 3].stop_reason.value == "reward_error", "no tool gave a reward"
    assert found[0, 0].opening[-1]["content"].endswith("submit the word.")
    assert [found[1, k].success for k in range(3)] == [True, True, False]
    assert history(made, "credit/weight_std")[0] > 0
    assert server.sessions <= 8, "an instance ends its session before it begins another"


def test_a_gymnasium_environment_in_five_lines(tmp_path):
    """With Gymnasium's own wrappers around it: its seed, its time limit, its rewards."""
    gymnasium = pytest.importorskip("gymnasium", reason="gymnasium is not installed (taspo_trl[dev])")

    class Word(gymnasium.Env):
        observation_space = action_space = gymnasium.spaces.Text(100)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.number = int(self.np_random.integers(3))
            return f"A number below {options['bound']}.", {"task": "Guess the number."}

        def step(self, action):
            is_right = action == str(self.number)
            return "Yes." if is_right else "No.", float(is_right), is_right, False, {"valid": action.isdigit()}

    name = "taspo-test/Word-v0"
    gymnasium.register(name, Word, max_episode_steps=4)
    names: dict = {"__name__": "script"}
    exec(example("import gymnasium"), names)
    guesses = [f"<action>{word}</action>" for word in ("0", "1", "2", "north")]
    plays = {0: guesses, 1: [guesses[2], guesses[1], guesses[0]], 2: [guesses[3]] * 4, 3: ["no action"] * 4}
    try:
        made = stand.trained(lambda: names["FromGymnasium"](name), plays, tmp_path, [{"bound": 3}, {"bound": 3}])
    finally:
        del gymnasium.registry[name]
    found = stand.trajectories(tmp_path)
    assert all(found[g, k].stop_reason.value == "solved" for g in range(2) for k in range(2))
    assert all(found[g, k].stop_reason.value == "env_truncated" for g in range(2) for k in (2, 3))
    assert len(found[0, 0].turns) + len(found[0, 1].turns) == 4, "one game for all of a group"
    assert not any(turn.valid for turn in found[0, 2].turns) and found[0, 0].task_text == "Guess the number."
    assert history(made, "success") == [0.5]
