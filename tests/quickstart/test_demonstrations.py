"""Demonstrations follow the block in their prompt, in the words of the constructions; wrong blocks are not obeyed."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest

from taspo_trl.environments import HouseholdEnvironment
from taspo_trl.environments.household import solve
from taspo_trl.guidance.base import GuidanceContext
from taspo_trl.guidance.block import CLOSING, OPENING, Composer
from taspo_trl.guidance.feedback import immediate, next_state
from taspo_trl.guidance.serl import success
from taspo_trl.guidance.transcripts import first_success
from taspo_trl.imitation.hints import Step, consequence_text, solution_text, verdict_text
from taspo_trl.quickstart.demonstrations import DemonstrationSettings, demonstrations
from taspo_trl.quickstart.tokenizer import make_tokenizer
from taspo_trl.types import StopReason, Trajectory, TrajectoryGroup, Turn


TOKENIZER = make_tokenizer("small")
CLEAN = DemonstrationSettings(
    noise_share=0.0, guided_share=1.0, per_turn_share=0.0, verdict_share=0.0, wrong_share=0.0
)


@pytest.fixture(scope="module")
def group():
    """A success of the first task, and a target of the same group."""
    environment, turns = HouseholdEnvironment(), []
    row = {"preset": "small", "split": "train", "index": 0}
    start = environment.reset(**row)
    before = start
    for action in solve(row):
        after = environment.step(action)
        admissible = tuple(before.info["admissible_actions"])
        turn = Turn(
            (), (1,), f"<action>{action}</action>", action, (True,), before.observation, after.observation, True
        )
        turns.append(replace(turn, admissible_actions=admissible))
        before = after
    winner = Trajectory(
        "g-k0", row, start.info["task"], "", None, 0, tuple(turns), StopReason.SOLVED, True, (), 1.0, reward=1.0
    )
    target = replace(winner, uid="g-k1", generation_idx=1)
    return TrajectoryGroup("g", (winner, target)), target


def test_the_wordings_are_those_of_the_constructions(group):
    played, target = group
    context, rng = GuidanceContext(), random.Random(0)
    steps = [Step(turn.action, turn.next_observation) for turn in target.turns]
    transcript = solution_text("transcript", target.task_text, steps, rng)
    assert transcript == first_success(context, played, target).turns[0]
    wordings = {solution_text("replies", target.task_text, steps, rng) for _ in range(20)}
    assert success(context, played, target).turns[0] in wordings
    first, second = target.turns[:2]
    told = {
        "feedback": immediate(context, played, target).turns[0],
        "next": next_state(context, played, target).turns[0],
    }
    for wording, text in told.items():
        made = consequence_text(wording, first.action, first.next_observation, second.admissible_actions, (), rng)
        assert made == text


def test_a_table_s_best_action_is_the_one_to_take():
    for seed in range(30):
        text = consequence_text("table", "look", "", (), ("inventory", "go to bed 1"), random.Random(seed))
        means = {line.split(":")[0]: float(re.search(r"mean return ([\d.]+)", line)[1]) for line in text.splitlines()}
        assert max(means, key=means.get) == "- look" and len(means) >= 2
    assert verdict_text(True) != verdict_text(False)


def test_the_tokenizer_knows_every_word_of_a_block():
    settings = DemonstrationSettings(noise_share=0.0, guided_share=1.0, per_turn_share=0.5, verdict_share=0.5)
    opening, closing = (TOKENIZER.convert_tokens_to_ids(one) for one in (OPENING, CLOSING))
    num_blocks = 0
    for one in demonstrations(TOKENIZER, 600, settings=settings):
        if opening in one.prompt_ids:
            num_blocks += 1
            block = one.prompt_ids[one.prompt_ids.index(opening) : one.prompt_ids.index(closing)]
            assert TOKENIZER.unk_token_id not in block, TOKENIZER.decode(block)
    assert num_blocks > 300


def _told_share(settings):
    """How often the demonstrated action is in the block, of actions other than ways and doors."""
    found = []
    for one in demonstrations(TOKENIZER, 800, settings=settings):
        text, action = TOKENIZER.decode(one.prompt_ids), TOKENIZER.decode(one.reply_ids[1:-2])
        block = text.partition(OPENING)[2]
        if block and not action.startswith(("go to", "open", "look")):
            found.append(action in block)
    assert len(found) > 50
    return sum(found) / len(found)


def test_the_player_does_what_a_block_says_and_does_not_obey_a_wrong_one():
    assert _told_share(CLEAN) > 0.8
    assert _told_share(replace(CLEAN, wrong_share=1.0)) < 0.3


def test_the_same_seed_gives_the_same():
    first, second = (list(demonstrations(TOKENIZER, 60, seed=3)) for _ in range(2))
    assert first == second != list(demonstrations(TOKENIZER, 60, seed=4))


def test_blocks_are_whole_composed_blocks():
    composer = Composer(TOKENIZER)
    opening, closing = (TOKENIZER.convert_tokens_to_ids(one) for one in (OPENING, CLOSING))
    for one in demonstrations(TOKENIZER, 100, settings=CLEAN):
        ids = one.prompt_ids
        inside = ids[ids.index(opening) + 1 : ids.index(closing)]
        assert composer.block(TOKENIZER.decode(inside)) == ids[ids.index(opening) : ids.index(closing) + 1]
