"""Players, their recorded episodes, and what is imitated of them: verified turns, under the prompts of training."""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from dataclasses import replace

import pytest

from taspo_trl.environments import HouseholdEnvironment, ResetResult, StepResult, TextEnvironment
from taspo_trl.environments.household import solve
from taspo_trl.environments.workers import EnvironmentPool
from taspo_trl.errors import ConfigurationError, ServiceError
from taspo_trl.guidance.block import CLOSING, OPENING, Composer
from taspo_trl.imitation import FunctionPlayer, OraclePlayer, demonstrations_of, record_episodes, replayed_successes
from taspo_trl.imitation.players import reply_format_of
from taspo_trl.imitation.recording import recorded_episodes
from taspo_trl.rollout.episode import RolloutSettings
from taspo_trl.rollout.templates import ChatRenderer
from tests import tiny


TOKENIZER = tiny.tokenizer()
ROWS = list(tiny.household_rows(size=4))


@contextmanager
def stage(factory=HouseholdEnvironment):
    pool = EnvironmentPool({None: factory})
    try:
        settings = RolloutSettings(max_completion_length=8)
        yield {"pool": pool, "renderer": ChatRenderer(TOKENIZER), "rollout": settings}
    finally:
        pool.close()


def record(folder, player, rows=ROWS, factory=HouseholdEnvironment, **values):
    with stage(factory) as played:
        try:
            return record_episodes(rows, player, folder, **played, **values)
        finally:
            player.close()


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recording")
    return record(folder, OraclePlayer(HouseholdEnvironment)), folder


@pytest.fixture(scope="module")
def kept(recording):
    with stage() as played:
        return replayed_successes(recorded_episodes(recording[1] / "episodes.jsonl"), **played)


def test_an_oracle_plays_shortest_successes(recording):
    made, _ = recording
    assert made.num_successes == made.num_planned == len(ROWS) and not made.failures
    for trajectory, row in zip(made.trajectories, ROWS, strict=True):
        assert [turn.action for turn in trajectory.turns] == solve(row)


def test_the_prompts_are_those_of_training(kept, tmp_path):
    """A trainer on the same tasks whose policy says the same is prompted with the same ids."""
    assert not kept.dropped
    replies = {one.task["task_id"]: [turn.reply_text for turn in one.turns] for one in kept.trajectories}
    made = tiny.trainer(tmp_path, train_dataset=tiny.household_rows(size=4), shuffle_dataset=False,
                        per_device_train_batch_size=16)  # fmt: skip
    policy = tiny.ScriptedPolicy(lambda uid, turn: replies[ROWS[int(uid[4])]["task_id"]][turn])
    tiny.use_policy(made, policy)
    made.train()
    made.close()
    trained = {request.prompt_ids for request in policy.requests}
    data = demonstrations_of(kept.trajectories)
    assert {one.prompt_ids for one in data} == trained and len(data) == sum(map(len, replies.values()))
    assert all(one.reply_ids[-1] == TOKENIZER.eos_token_id for one in data)


def test_guidance_stands_where_scoring_puts_it_and_tells_the_solution(kept):
    composer = Composer(TOKENIZER)
    plain = demonstrations_of(kept.trajectories, composer=composer)
    guided = demonstrations_of(kept.trajectories, guided_share=1.0, composer=composer)
    opening, closing = (TOKENIZER.convert_tokens_to_ids(one) for one in (OPENING, CLOSING))
    turns = [turn for one in kept.trajectories for turn in one.turns]
    for one, other, turn in zip(plain, guided, turns, strict=True):
        length = len(other.prompt_ids) - len(one.prompt_ids)
        block = other.prompt_ids[turn.splice_index : turn.splice_index + length]
        assert opening in block and closing in block and one.reply_ids == other.reply_ids
        assert other.prompt_ids[: turn.splice_index] + other.prompt_ids[turn.splice_index + length :] == one.prompt_ids
    halves = [
        demonstrations_of(kept.trajectories, guided_share=0.5, composer=composer, seed=seed) for seed in range(20)
    ]
    num_plain = sum(one in plain for half in halves for one in half)
    assert 0.3 < num_plain / (20 * len(plain)) < 0.7
    with pytest.raises(ConfigurationError, match="between 0 and 1"):
        demonstrations_of(kept.trajectories, guided_share=2.0)


def test_nothing_is_played_twice_and_a_failed_episode_goes_on(tmp_path, caplog):
    """The second run asks for what the first did not finish, a line that a kill cut off included."""
    calls = itertools.count()
    plans = {row["task_id"]: solve(row) for row in ROWS}

    def fails_at(number):
        def act(turn):
            if next(calls) == number:
                raise ServiceError("the player is down")
            return plans[turn.row["task_id"]][len(turn.history)]

        return FunctionPlayer(act, "plans")

    first = record(tmp_path, fails_at(7), max_in_flight=1)
    assert len(first.trajectories) == 3 and sum(first.failures.values()) == 1
    assert "the player is down" in next(iter(first.failures))
    lines = (tmp_path / "episodes.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "episodes.jsonl").write_text("".join(lines[:2]) + lines[2][:100])
    before = next(calls)
    second = record(tmp_path, fails_at(-1))
    assert second.num_successes == 4 and not second.failures
    assert "line 3 is no whole episode" in caplog.text
    kept_before = {one.task["task_id"] for one in first.trajectories[:2]}
    missing = {one.task["task_id"] for one in second.trajectories} - kept_before
    assert next(calls) - before - 1 == sum(len(plans[name]) for name in missing)
    assert len(recorded_episodes(tmp_path / "episodes.jsonl")) == 4
    with pytest.raises(ConfigurationError, match="`player` was 'plans' and is 'others'"):
        record(tmp_path, FunctionPlayer(lambda turn: "look", "others"))


def test_failures_and_refused_actions_are_history_and_not_imitated(tmp_path):
    def clumsy(turn):
        plan = solve(turn.row)
        if turn.row["task_id"] == ROWS[1]["task_id"]:
            return "look"  # never solves it
        return "<action>dance" if not turn.history else plan[len(turn.history) - 1]

    made = record(tmp_path, FunctionPlayer(clumsy), rows=ROWS[:2])
    assert made.num_successes == 1 and len(made.trajectories) == 2
    with stage() as played:
        kept = replayed_successes(made.trajectories, **played)
    assert kept.dropped == {"no_success": 1}
    data = demonstrations_of(kept.trajectories)
    assert len(data) == len(solve(ROWS[0])) and not any("dance" in TOKENIZER.decode(one.reply_ids) for one in data)


def test_a_success_that_does_not_come_back_is_left_out(recording):
    first, second, *_ = recording[0].trajectories
    broken = replace(first, turns=tuple(replace(turn, reply_text="<action>look</action>") for turn in first.turns))
    with stage() as played:
        kept = replayed_successes([broken, replace(second, seed=None)], **played)
    assert not kept.trajectories and kept.dropped == {"again_generation_error": 1, "no_seed": 1}


class Moody(TextEnvironment):
    """Its instances differ, whatever the seed."""

    made = itertools.count()

    def __init__(self):
        self.mood = next(self.made)

    def reset(self, *, seed, **row):
        return ResetResult(f"mood {self.mood}")

    def step(self, action):
        return StepResult("", 0.0, True, False)

    def oracle_plan(self):
        return ["smile"]


def test_mistakes_of_players_are_told(tmp_path):
    with pytest.raises(ZeroDivisionError):
        record(tmp_path / "bug", FunctionPlayer(lambda turn: 1 / 0))
    with pytest.raises(ConfigurationError, match="answered with None; it must return a string"):
        record(tmp_path / "none", FunctionPlayer(lambda turn: None, "mute"))
    with pytest.raises(ConfigurationError, match="`ScriptedPlan` has no `oracle_plan"):
        OraclePlayer(type("ScriptedPlan", (TextEnvironment,), {}))
    with pytest.raises(ConfigurationError, match=r"must hold \{action\}"):
        FunctionPlayer(lambda turn: "", reply_format="<action>")
    made = record(tmp_path / "moody", OraclePlayer(Moody), rows=[{"k": 0}], factory=Moody)
    assert not made.trajectories and "it must be the same game" in next(iter(made.failures))


def test_alfworld_s_walkthroughs_are_successes_under_its_prompts(tmp_path):
    pytest.importorskip("textworld", reason="textworld is not installed (taspo_trl[alfworld])")
    from functools import partial

    from taspo_trl.environments import ALFWorldEnvironment
    from tests.tokenizers import byte_bpe

    rows = list(ALFWorldEnvironment.dataset("train", data="embedded", size=1))
    factory = partial(ALFWorldEnvironment, data="embedded")
    pool = EnvironmentPool({None: factory}, backend="thread")
    player = OraclePlayer(factory, "<think>As planned.</think><action>{action}</action>")
    try:
        played = {"pool": pool, "renderer": ChatRenderer(byte_bpe()), "rollout": RolloutSettings()}
        made = record_episodes(rows, player, tmp_path, **played)
        kept = replayed_successes(made.trajectories, **played)
    finally:
        player.close()
        pool.close()
    assert made.num_successes == 1 and not kept.dropped
    turns = kept.trajectories[0].turns
    assert all(turn.valid and turn.reply_text.startswith("<think>As planned.") for turn in turns)
    assert len(demonstrations_of(kept.trajectories)) == len(turns) > 2


def test_a_class_with_tools_is_played_in_whole_replies(tmp_path):
    from tests.environments.test_tools import call, template
    from tests.environments.tool_worlds import Counter
    from tests.tokenizers import byte_bpe

    def add(turn):
        return call("add", amount=turn.row["target"]) if not turn.history else "Done."

    pool = EnvironmentPool({None: Counter}, success_threshold=1.0)
    played = {"pool": pool, "renderer": ChatRenderer(byte_bpe(template("qwen2_5"))), "rollout": RolloutSettings()}
    try:
        player = FunctionPlayer(add, reply_format=reply_format_of(pool.traits[None]))
        made = record_episodes([{"target": 3}], player, tmp_path, **played)
        kept = replayed_successes(made.trajectories, **played)
    finally:
        pool.close()
    (one,) = kept.trajectories
    assert [bool(turn.action) for turn in one.turns] == [True, False] and len(demonstrations_of([one])) == 2
